"""Elastic jobs grow into idle GPUs of their node, give them back, and start small (ADR 0025, 0031).

Who does so is `policy/elastic.py`'s rule. Here it is asked, each cycle anew, about the GPUs of the nodes on
which elastic jobs live: what others live on is not to be had, however little of its time they use. A resize
is a move (`moving`) to the job's own node with another number of GPUs, with the bars and budgets of moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from gandiva_slurm.engine.follow import Cycle
from gandiva_slurm.engine.moving import begin_move
from gandiva_slurm.engine.owners import lenders
from gandiva_slurm.engine.placing import need_now, start
from gandiva_slurm.engine.planner import NO_ROOM, bar_of, horizon_ns, room_for_moves
from gandiva_slurm.engine.sizes import gpus_of, is_elastic, rigid
from gandiva_slurm.engine.state import SECOND_NS, JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.policy.elastic import Elastic
from gandiva_slurm.policy.moves import WORTH
from gandiva_slurm.policy.placement import Board, NodeGpus, Place, Site
from gandiva_slurm.policy.port import NODE, Cluster, JobView, View

#: Jobs that are tried to be started small in one cycle.
COMERS_TRIED = 4

Gpus = tuple[int, ...]


class Measured:
    """What the jobs were measured at, by size: the model of each is its number."""

    def __init__(self, jobs: Mapping[int, JobRecord]) -> None:
        self._jobs = jobs

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        """Mini-batches a second on so many GPUs of one node; None where it never ran on them."""
        return self._jobs[int(model)].travels.size_rates.get(f"{gpu_type}:{size}")

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        """Nothing is asked of pairs here."""
        return None


def start_small(at: Cycle, board: Board, waiting: Sequence[JobRecord]) -> list[JobRecord]:
    """Start elastic jobs that found no place on fewer GPUs, idle ones; return who still waits."""
    comers = [record for record in waiting if record.code == "NoFreeSlots" and not record.target]
    able = [r for r in comers if is_elastic(r) and not r.travels.rigid_size and not r.job.dependency]
    for record in able[:COMERS_TRIED]:
        need = need_now(at, record)
        sites = [site for site in board.sites.values() if site.is_open and site.may_take(need)]
        first = _numbers(sites)
        job = _view_of(record, need.types)
        taken = _taken(sites, first, ()) | _others(sites, first, need.group)
        view = View(at.now_ns, _cluster(sites), {job.job_id: job}, Measured({}), taken)
        gpus = Elastic(0).start_small(view, {}, [job]).get(job.job_id, ())
        if gpus:
            place = Place((_local(first, gpus),))
            small = replace(need, gpus=len(gpus))
            if board.has_room(small, place):
                board.put(small, place)
                start(at, record, place)
    return [record for record in waiting if record.state in states.WAITING]


def plan_resizes(at: Cycle, board: Board, waiting: Sequence[JobRecord]) -> None:
    """Begin to resize those who are to have more GPUs, or fewer."""
    if not at.settings.moves:
        return
    here = (record for record in at.state.jobs.values() if record.state in states.SLICED)
    bound = (record for record in here if record.is_bound and record.nodes[0] in board.sites)
    elastic = sorted(filter(is_elastic, bound), key=lambda record: record.order)
    for record in elastic:
        _watch_idle(at, record, board.sites[record.nodes[0]])
        record.travels.size_bar = _bar(at, record, board.sites[record.nodes[0]])
    able = {record.job.job_id: record for record in elastic if not record.travels.size_bar}
    claims = [record for record in waiting if record.code in NO_ROOM and not record.job.dependency]
    runs: dict[int, NodeGpus] = {}
    for vc in sorted({record.vc for record in able.values()}):
        mine = {job_id: record for job_id, record in able.items() if record.vc == vc}
        runs |= _runs(at, board, mine, [record for record in claims if record.vc == vc], vc)
    changed = [job_id for job_id, place in runs.items() if set(place.gpus) != set(_gpus(able[job_id]))]
    changed.sort(key=lambda job_id: len(runs[job_id].gpus) > len(_gpus(able[job_id])))
    for job_id in changed[: max(0, room_for_moves(at))]:
        own = [record for record in claims if record.vc == able[job_id].vc]
        _resize(at, board.sites[runs[job_id].node], able[job_id], runs[job_id].gpus, own)


def told(record: JobRecord) -> Iterator[str]:
    """Say what is known of an elastic job's size, for `gandiva why`."""
    if not is_elastic(record):
        return
    low, high = record.options.sizes
    yield f"elastic: {low} to {high} GPUs, submitted with {record.options.gpus}, now {gpus_of(record)}"
    travels = record.travels
    if travels.size_bar and record.is_placed:
        yield f"not resized: {travels.size_bar}"
    if len(travels.size_rates) > 1:
        rates = ", ".join(f"{size} {rate:.3g}/s" for size, rate in sorted(travels.size_rates.items()))
        yield f"measured alone, by GPU type and size: {rates}"


def _runs(
    at: Cycle, board: Board, able: Mapping[int, JobRecord], claims: Iterable[JobRecord], vc: str
) -> dict[int, NodeGpus]:
    """Ask the rule which of its virtual cluster's GPUs each job is to have, while others wait for some."""
    sites = [board.sites[name] for name in sorted({record.nodes[0] for record in able.values()})]
    first = _numbers(sites)
    here = {job_id: tuple(first[r.nodes[0]] + gpu for gpu in _gpus(r)) for job_id, r in able.items()}
    down = _taken(sites, first, able) | _others(sites, first, vc)
    beside = _beside(down, here)
    runs, views = {}, {}
    for job_id, record in able.items():
        quiet = sorted(here[job_id], key=lambda gpu: (gpu in beside[job_id], gpu))
        runs[job_id] = tuple(sorted(quiet[: record.options.gpus]))
        most = _most(at, board, record)
        views[job_id] = replace(_view_of(record), max_size=most, gpus=here[job_id])
    shared = {job_id for job_id, gpus in runs.items() if not beside[job_id].isdisjoint(gpus)}
    rule = Elastic(max(at.settings.quantum_ns, at.settings.min_run_ns))
    known = [(job_id, record.travels, first[record.nodes[0]]) for job_id, record in able.items()]
    rule.recall(
        {base + int(gpu): since for _, travels, base in known for gpu, since in travels.idle_ns.items()},
        {job_id: len(gpus) for job_id, gpus in here.items() if len(gpus) > able[job_id].options.gpus},
        {job_id: travels.given_back for job_id, travels, _ in known},
        {job_id: travels.resized_ns for job_id, travels, _ in known if travels.resized_ns},
    )
    waits = [_view_of(record, need_now(at, record).types) for record in claims]
    view = View(at.now_ns, _cluster(sites), views, Measured(able), down)
    rule.grow(view, runs, shared, waits)
    return {job_id: _local(first, gpus) for job_id, gpus in runs.items()}


def _resize(at: Cycle, site: Site, record: JobRecord, new: Gpus, claims: Iterable[JobRecord]) -> None:
    """Have it go on with these GPUs of its node, and say why."""
    old, travels = _gpus(record), record.travels
    if len(new) > len(old):
        since_ns = {gpu: travels.idle_ns.get(str(gpu), at.now_ns) for gpu in new if gpu not in old}
        idle_s = {gpu: (at.now_ns - idle_ns) // SECOND_NS for gpu, idle_ns in since_ns.items()}
        why = f"{len(new)} GPU(s) instead of {len(old)}: the others were idle for {min(idle_s.values())} s"
        proof = [f"GPU {gpu} of {site.name}: idle for {seconds} s" for gpu, seconds in idle_s.items()]
        code = "Growing"
    else:
        proof = [*_needed_by(site, record, set(old).difference(new), claims)]
        reason = "others need them" if proof else "more brought it nothing"
        why = f"{len(new)} GPU(s) instead of {len(old)}: {reason}"
        proof += [f"{size}: {rate:.3g}/s" for size, rate in sorted(travels.size_rates.items())]
        travels.given_back += 1
        code = "Shrinking"
    begin_move(at, record, {site.name: new}, (why, *proof), code=code)
    travels.resized_ns, travels.idle_ns = at.now_ns, {}


def _needed_by(site: Site, record: JobRecord, gone: Set[int], claims: Iterable[JobRecord]) -> Iterator[str]:
    """Who else lives on these GPUs, and who waits."""
    for stay in site.stays.values():
        if stay.job_id != record.job.job_id and not gone.isdisjoint(stay.gpus):
            yield f"job {stay.job_id} is on GPU {','.join(map(str, stay.gpus))} of {site.name}"
    for other in claims:
        yield f"job {other.job.job_id} waits: {other.text}"


def _watch_idle(at: Cycle, record: JobRecord, site: Site) -> None:
    """Note since when which GPUs of its node have had nobody."""
    taken = _taken([site], {site.name: 0}, ())
    idle = [str(gpu) for gpu in range(site.gpus) if gpu not in taken]
    record.travels.idle_ns = {gpu: record.travels.idle_ns.get(gpu, at.now_ns) for gpu in idle}


def _bar(at: Cycle, record: JobRecord, site: Site) -> str:
    """Why its size must not be changed now; "" when it may."""
    if not site.is_open or site.name in need_now(at, record).closed:
        return f"{site.name} takes no jobs now"
    if lenders(at.owners, record.vc, record.places):
        return "it is on GPUs of another virtual cluster"
    return bar_of(at, record) or rigid(at, record)


def _most(at: Cycle, board: Board, record: JobRecord) -> int:
    """The most GPUs its node could give it, CPUs and memory in proportion; what it has if that pays not."""
    has, high, site = len(_gpus(record)), record.options.sizes[1], board.sites[record.nodes[0]]
    cost_ns = record.travels.cost_ns or at.settings.restart_cost_ns
    if horizon_ns(at, record) * (high - has) <= WORTH * cost_ns * high:
        return has
    need = need_now(at, record)
    beside_mib = site.memory_taken() - need.memory_mib
    for size in range(high, has, -1):
        cpus, memory_mib = -(-need.cpus * size // has), -(-need.memory_mib * size // has)
        fits = site.is_large_enough(replace(need, gpus=size, cpus=cpus, memory_mib=memory_mib))
        if fits and (not site.memory_mib or beside_mib + memory_mib <= site.memory_mib):
            return size
    return has


def _gpus(record: JobRecord) -> Gpus:
    """The GPUs of a job of one node."""
    (gpus,) = record.places.values()
    return gpus


def _view_of(record: JobRecord, types: tuple[str, ...] = ()) -> JobView:
    """A job as the rule sees it; it may be resized in principle where it may be moved."""
    job, options = record.job, record.options
    low, high = options.sizes
    return JobView(
        job.job_id, job.user, options.gpus, job.submit_s * SECOND_NS,
        model=str(job.job_id), gpu_types=types, min_size=low, max_size=high, cell=NODE,
        can_migrate=options.migrate != "never" and job.batch and job.requeue,
    )  # fmt: skip


def _cluster(sites: Sequence[Site]) -> Cluster:
    return Cluster([(site.gpu_type, site.gpus) for site in sites])


def _numbers(sites: Sequence[Site]) -> dict[str, int]:
    """The number of each node's first GPU among those of all."""
    numbers, count = {}, 0
    for site in sites:
        numbers[site.name], count = count, count + site.gpus
    return numbers


def _local(first: Mapping[str, int], gpus: Gpus) -> NodeGpus:
    """GPUs by their numbers among all as those of their node."""
    node = max((name for name in first if first[name] <= gpus[0]), key=lambda name: first[name])
    return NodeGpus(node, tuple(gpu - first[node] for gpu in gpus))


def _taken(sites: Iterable[Site], first: Mapping[str, int], but: Iterable[int]) -> frozenset[int]:
    """The GPUs on which others than these jobs live, or are to; all, where it is not known on which."""
    apart = set(but)
    return frozenset(
        first[site.name] + gpu
        for site in sites
        for stay in site.stays.values()
        if stay.job_id not in apart
        for gpu in stay.gpus or range(site.gpus)
    )


def _others(sites: Iterable[Site], first: Mapping[str, int], group: str) -> frozenset[int]:
    """The GPUs that no job of this group may have: those of other virtual clusters."""
    owned = {site.name: site.gpus_for(group) for site in sites}
    return frozenset(
        first[site.name] + gpu for site in sites for gpu in range(site.gpus) if gpu not in owned[site.name]
    )


def _beside(others: frozenset[int], here: Mapping[int, Gpus]) -> dict[int, set[int]]:
    """Which of each job's GPUs somebody else lives on, too."""
    count: dict[int, int] = {}
    for gpus in here.values():
        for gpu in gpus:
            count[gpu] = count.get(gpu, 0) + 1
    return {job_id: {gpu for gpu in gpus if gpu in others or count[gpu] > 1} for job_id, gpus in here.items()}
