"""Which running jobs move: the slow clock's second thoughts, after all starts (ADR 0024).

In the order of least disturbance: what can start has started (`placing`); then room is made for gangs that
fit nowhere; then the best single move to a faster or a less crowded place, one a cycle; where there is none,
the best exchange of two jobs between GPU types. Each is drafted on the board, checked against the budgets,
and either begun or rolled back with what speaks against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gandiva_slurm.engine.follow import Cycle
from gandiva_slurm.engine.moving import begin_move, why_bound
from gandiva_slurm.engine.placing import in_order, need_now, tell
from gandiva_slurm.engine.state import SECOND_NS, JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.reason import because
from gandiva_slurm.policy.balance import even_out
from gandiva_slurm.policy.classes import PATIENCE_NS
from gandiva_slurm.policy.clearing import Clearing, clear_for
from gandiva_slurm.policy.draft import Draft
from gandiva_slurm.policy.faster import guess_rates, speed_up, typical_gains
from gandiva_slurm.policy.moves import Loads, Proposal, Resident, Terms, is_worth_it
from gandiva_slurm.policy.placement import Board, NodeGpus, Place
from gandiva_slurm.policy.swaps import Swap, exchange

#: Waiting gangs that room is looked for in one cycle, each of another shape.
GANGS_TRIED = 4
#: Why a job waits when room could be made for it.
NO_ROOM = frozenset({"NoFreeSlots", "NoFreeMemory"})

#: A job's mini-batches a second by GPU type, by what tells one model from another.
Rates = Mapping[tuple[str, str, int, int], Mapping[str, float]]


def plan_moves(at: Cycle, board: Board, waiting: Sequence[JobRecord]) -> None:
    """Begin the moves that are worth it; note of the others what speaks against them."""
    room = room_for_moves(at)
    if room <= 0:
        return
    residents = _residents(at)
    if not residents:
        return
    draft, loads = Draft(board), Loads(board)
    room -= _clear_for_gangs(at, draft, loads, waiting, residents, room)
    if room > 0:
        _better_places(at, draft, loads, list(residents.values()))


def room_for_moves(at: Cycle) -> int:
    """How many more jobs may be on the move."""
    if not at.settings.moves:
        return 0
    gpus = sum(node.gpus for node in at.state.nodes.values())
    under_way = sum(record.travels.is_moving for record in at.state.jobs.values())
    return at.settings.moves_at_once(gpus) - under_way


def _clear_for_gangs(
    at: Cycle,
    draft: Draft,
    loads: Loads,
    waiting: Sequence[JobRecord],
    residents: Mapping[int, Resident],
    room: int,
) -> int:
    """Make room for guaranteed jobs that found none; return how many jobs move for it."""
    by_node: dict[str, list[Resident]] = {}
    for resident in residents.values():
        for node in resident.place.nodes:
            by_node.setdefault(node, []).append(resident)
    shapes: set[tuple[object, ...]] = set()
    for record in waiting:
        need = need_now(at, record)
        record.travels.missed = ""
        is_new = at.now_ns - record.since_ns < at.settings.quantum_ns
        is_put_off = is_new or record.is_opportunistic
        if is_put_off or record.code not in NO_ROOM or record.job.dependency or need.shape in shapes:
            continue
        shapes.add(need.shape)
        clearing = clear_for(draft, loads, need, by_node, _terms(at))
        if clearing is not None and not clearing.bars and len(clearing.moves) <= room:
            _make_room(at, draft, record, clearing)
            return len(clearing.moves)
        if clearing is not None:
            record.travels.missed = _missed_room(clearing, room)
        if len(shapes) == GANGS_TRIED:
            break
    return 0


def _make_room(at: Cycle, draft: Draft, record: JobRecord, clearing: Clearing) -> None:
    """All that stand in a gang's way move, and its place is kept."""
    for move in clearing.moves:
        _begin(at, draft, move, clearing.need.job_id)
    draft.keep(clearing.need, clearing.place)
    record.target = dict(clearing.place.parts)
    jobs = ", ".join(str(move.resident.need.job_id) for move in clearing.moves)
    tell(at, record, because("MakingRoom", jobs=jobs, node=",".join(clearing.place.nodes)))


def _missed_room(clearing: Clearing, room: int) -> str:
    """Why room is not made for a gang that would have it."""
    jobs = ", ".join(str(move.resident.need.job_id) for move in clearing.moves)
    head = f"{','.join(clearing.place.nodes)} would have room if job(s) {jobs} moved away, but"
    if clearing.bars:
        first = clearing.bars[0]
        return f"{head} job {first.need.job_id} must not move now: {first.bar}"
    return f"{head} only {room} may move at once now"


def _better_places(at: Cycle, draft: Draft, loads: Loads, residents: Sequence[Resident]) -> None:
    """Begin the one move that brings most, and note of those that must not move what they miss."""
    terms = _terms(at)
    found = [*speed_up(draft, loads, residents, terms), *even_out(draft, loads, residents, terms)]
    found.sort(key=lambda each: (-each.gain_ns, each.resident.need.order))
    missed: dict[int, str] = {}
    for proposal in found:
        missed.setdefault(proposal.resident.need.job_id, _against(at, proposal))
    for resident in residents:
        travels = at.state.jobs[resident.need.job_id].travels
        travels.missed = missed.get(resident.need.job_id, "")
        if resident.need.job_id not in missed:
            travels.better_ns = 0
    best = next((each for each in found if not missed[each.resident.need.job_id]), None)
    if best is not None:
        _begin(at, draft, best)
    elif room_for_moves(at) > 1 or not any(record.travels.is_moving for record in at.state.jobs.values()):
        _exchange(at, draft, exchange(draft, loads, residents, terms))


def _against(at: Cycle, proposal: Proposal) -> str:
    """What speaks against a move; "" when nothing does. A place must have been better for a quantum."""
    resident, travels = proposal.resident, at.state.jobs[proposal.resident.need.job_id].travels
    travels.better_ns = travels.better_ns or at.now_ns
    bar = resident.bar
    if not bar and not is_worth_it(resident, proposal.gain_ns):
        bar = "it has too little to gain by that yet"
    if not bar and at.now_ns - travels.better_ns < at.settings.quantum_ns:
        bar = "it has been better for less than a quantum"
    return f"{proposal.why[0]}; but {bar}" if bar else ""


def _exchange(at: Cycle, draft: Draft, swap: Swap | None) -> None:
    """Both leave for the other's place; where one move at a time is allowed, an exchange is one."""
    for move in swap or ():
        _begin(at, draft, move, code="Exchanging")


def _begin(at: Cycle, draft: Draft, move: Proposal, for_job: int = 0, code: str = "Leaving") -> None:
    need = move.resident.need
    draft.leave(need.job_id, move.resident.place.nodes)
    draft.keep(need, move.place)
    begin_move(at, at.state.jobs[need.job_id], dict(move.place.parts), move.why, for_job, code)


def _terms(at: Cycle) -> Terms:
    return Terms(at.settings.balance_percent, at.settings.faster_percent)


def _residents(at: Cycle) -> dict[int, Resident]:
    """The jobs that could be moved one day: on nodes that are up, their GPUs known."""
    kinds = sorted({node.node.gpu_type for node in at.state.nodes.values()})
    rates = _rates(at) if len(kinds) > 1 else {}
    gains, named = typical_gains(rates.values()), _by_name(rates)
    found = {}
    for record in in_order(at, *states.SLICED):
        if not is_there(at, record):
            continue
        gpu_type = at.state.nodes[record.nodes[0]].node.gpu_type
        model = _model(record)
        measured = {**rates.get(model, {}), **record.travels.rates}
        found[record.job.job_id] = Resident(
            need_now(at, record),
            Place(tuple(NodeGpus(*part) for part in record.places.items())),
            gpu_type,
            record.travels.cost_ns or at.settings.restart_cost_ns,
            horizon_ns(at, record),
            bar_of(at, record),
            measured,
            guess_rates(measured, gpu_type, kinds, gains, named.get(model[1:], {})),
        )
    return found


def is_there(at: Cycle, record: JobRecord) -> bool:
    """True when its GPUs are known, on nodes that are up."""
    homes = [at.state.nodes.get(name) for name in record.nodes]
    return record.is_bound and not any(home is None or home.is_down for home in homes)


def _rates(at: Cycle) -> Rates:
    """What jobs alike were measured at: of one user, name and shape, as of one array or one search."""
    found: dict[tuple[str, str, int, int], dict[str, float]] = {}
    for record in sorted(at.state.jobs.values(), key=lambda record: record.order):
        if record.travels.rates:
            found.setdefault(_model(record), {}).update(record.travels.rates)
    return found


def _by_name(rates: Rates) -> dict[tuple[str, int, int], dict[str, float]]:
    """What jobs of a name and shape were measured at, whoever's they are: others' figures are but a guess."""
    found: dict[tuple[str, int, int], dict[str, float]] = {}
    for (_, name, gpus, nodes), measured in rates.items():
        found.setdefault((name, gpus, nodes), {}).update(measured)
    return found


def _model(record: JobRecord) -> tuple[str, str, int, int]:
    return (record.job.user, record.job.name, record.options.gpus, record.options.nodes)


def _ran_ns(at: Cycle, record: JobRecord) -> int:
    """How long it has run since its last start or move."""
    moved_ns = record.travels.moved_ns[-1] if record.travels.moved_ns else 0
    return max(0, at.now_ns - max(record.job.start_s * SECOND_NS, moved_ns))


def horizon_ns(at: Cycle, record: JobRecord) -> int:
    """How long it may be expected to run on: as long as it has run, and not past its time limit."""
    job, ran_ns = record.job, _ran_ns(at, record)
    if not job.time_limit_s:
        return ran_ns
    left_ns = (job.start_s + job.time_limit_s) * SECOND_NS - at.now_ns
    return max(0, min(ran_ns, left_ns))


def bar_of(at: Cycle, record: JobRecord) -> str:
    """Why a job must not be moved now; "" when it may."""
    job, travels, settings = record.job, record.travels, at.settings
    bound = why_bound(at, record)
    if bound:
        return bound
    is_parked = record.is_opportunistic and record.state == states.SUSPENDED
    if is_parked and at.now_ns - record.since_ns >= PATIENCE_NS:
        return "it is opportunistic and was parked long: it saves itself in a turn, when there is one for it"
    pack = at.state.pairs.of(job.job_id)
    if pack is not None and pack.is_trial:
        return f"whether it may share its GPU with job {pack.mate(job.job_id)} is being tried"
    if _ran_ns(at, record) < settings.min_run_ns:
        return f"it has run for less than {settings.min_run_ns // SECOND_NS} s since it was started or moved"
    if len(travels.lately(at.now_ns)) >= settings.moves_per_hour:
        return f"it was moved {settings.moves_per_hour} times within the last hour"
    return ""
