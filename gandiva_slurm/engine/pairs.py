"""Packing, live: two jobs on one GPU at the same time, tried, measured, kept or undone (ADR 0023).

A job in memory cannot change its GPU, so only residents of one GPU are paired, and there somebody waits for a
turn whenever there are two. Both must have been measured alone. A trial lasts some quanta, one at a time on a
GPU; a pair that keeps more than `pack_floor` of its speeds together, noise aside, stays, and goes on being
measured; one that does not is not tried again for as long as what was found of its models counts. Both must
fit into the GPU's memory (`fitting`); a pair of which one runs out of it is undone and not tried again.
"""

from __future__ import annotations

from dataclasses import replace

from gandiva_slurm.engine.findings import Finding, NotTried, Pack, PairKey, key_of
from gandiva_slurm.engine.fitting import Home, Seat, memory, misfit, ooms, seats
from gandiva_slurm.engine.follow import Cycle
from gandiva_slurm.engine.settings import SECOND_NS, EngineSettings
from gandiva_slurm.engine.state import JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Note
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.model.reason import Reason, because
from gandiva_slurm.policy.duty import KEPT
from gandiva_slurm.policy.packing import Bench
from gandiva_slurm.policy.port import JobView

#: A trial is given up when so many times its length were not enough to measure both.
LONGEST_TRIAL = 10
#: A report of the time before a pack may still be on its way for so long.
LEAST_TRIAL_NS = 5 * SECOND_NS
#: Slurm's words for a job that may have ended for want of GPU memory.
BROKE = frozenset({"FAILED", "OUT_OF_MEMORY"})

Seats = dict[Home, list[Seat]]


def decide_packs(at: Cycle) -> None:
    """Once a cycle: end what cannot go on, judge what was measured, try what may gain."""
    pairs = at.state.pairs
    homes, all_seats = (_homes(at), seats(at)) if at.settings.packing else ({}, {})
    here = {record.job.job_id: home for home, records in homes.items() for record in records}
    for pack in [*pairs.packs]:
        if {here.get(job) for job in pack.jobs} != {_home(pack)}:
            _end(at, pack)
        else:
            _judge(at, pack, all_seats[_home(pack)])
    pairs.book.floor = at.settings.pack_floor
    pairs.book.learn(pairs)
    _forget(at)
    pairs.not_tried = {
        pair: said
        for pair, said in pairs.not_tried.items()
        if here.get(pair[0]) is not None and here.get(pair[0]) == here.get(pair[1])
    }
    mates, trials = pairs.mates(), {_home(pack): _key(at, pack) for pack in pairs.packs if pack.is_trial}
    for home, records in sorted(homes.items()):
        if home not in trials:
            free = [record for record in records if record.job.job_id not in mates]
            _pair_up(at, all_seats[home], free, trials)


def trial_ns(settings: EngineSettings) -> int:
    """How long a trial lasts at the least."""
    return max(LEAST_TRIAL_NS, settings.pack_trial_quanta * settings.quantum_ns)


def _homes(at: Cycle) -> dict[Home, list[JobRecord]]:
    """Who may be packed, by the GPU he lives on, in the order of jobs."""
    spanned = {name for r in at.state.jobs.values() if len(r.places) > 1 for name in r.places}
    homes: dict[Home, list[JobRecord]] = {}
    for record in sorted(at.state.jobs.values(), key=lambda record: record.order):
        (name, gpus), *more = record.places.items() or [("", ())]
        if more or len(gpus) != 1 or name in spanned or not _may_pack(at, record, name):
            continue
        homes.setdefault(Home(name, gpus[0]), []).append(record)
    return homes


def _may_pack(at: Cycle, record: JobRecord, node: str) -> bool:
    home, seen = at.state.nodes.get(node), at.state.sightings.get((node, record.key))
    is_there = home is not None and not home.is_down and home.has_daemon and seen is not None
    is_willing = record.options.pack != "never" and record.state in states.SLICED
    return is_there and is_willing and seen is not None and bool(seen.measured.rate_alone)


def _end(at: Cycle, pack: Pack) -> None:
    """A pack whose jobs are no longer both there is over; one that failed may have lacked memory."""
    pairs, records = at.state.pairs, [at.state.jobs.get(job_id) for job_id in pack.jobs]
    broke = [r for r in records if r is not None and r.state == states.ENDED and r.job.state in BROKE]
    if broke and pack.node in at.state.nodes:
        pairs.found[_key(at, pack)] = Finding(0.0, 0.0, 0.0, at.now_ns)
    pairs.packs.remove(pack)
    left = [r for r in records if r is not None and r.state in states.SLICED]
    for record in left if broke else ():
        ended = broke[0].job
        why = f"job {ended.job_id} ended beside it as {ended.state}, maybe for want of GPU memory"
        _say(at, record.job.job_id, _undone(at, pack, record.job.job_id, why))


def _judge(at: Cycle, pack: Pack, here: list[Seat]) -> None:
    """Keep a trial or end it; end a pack that does not gain any more, or lacks memory."""
    pairs, age_ns = at.state.pairs, at.now_ns - pack.since_ns
    if ooms(here, *pack.jobs) > pack.ooms:
        _undo(at, pack, here, "one of them asked for more GPU memory than was left")
        pairs.found[_key(at, pack)] = Finding(0.0, 0.0, 0.0, at.now_ns)
        return
    unfit = misfit(here, *pack.jobs)
    if unfit is not None:
        return _undo(at, pack, here, unfit.why)
    if age_ns < trial_ns(at.settings):
        return
    found = _measured(at, pack)
    if found is None:
        if pack.is_trial and age_ns >= LONGEST_TRIAL * trial_ns(at.settings):
            _undo(at, pack, here, f"not measured together within {age_ns // SECOND_NS} s")
            pairs.found[_key(at, pack)] = Finding(0.0, 0.0, 0.0, at.now_ns)
        return
    one, two = (at.state.jobs[job].model for job in pack.jobs)
    key, is_turned = key_of(one, two, _type(at, pack))
    pairs.found[key] = replace(found, first=found.second, second=found.first) if is_turned else found
    harmed = _harmed(at, pack, found)
    if harmed:
        _undo(at, pack, here, harmed)
        pairs.found[key] = Finding(0.0, 0.0, 0.0, at.now_ns)
        return
    floor = at.settings.pack_floor
    if pack.is_trial and found.gain - found.noise > floor:
        pairs.packs.remove(pack)
        _begin(at, replace(pack, is_trial=False, gain=found.gain), here)
    elif pack.is_trial or found.gain + found.noise < floor:
        told = f"together {found.gain:.2f} of the speed they have by turns, noise {found.noise:.2f}"
        _undo(at, pack, here, f"{told}; {floor:.2f} and more than the noise is asked")


def _harmed(at: Cycle, pack: Pack, found: Finding) -> str:
    """Say which guaranteed job an opportunistic one slows down too much; "" when none."""
    are_spare = [at.state.jobs[job_id].is_opportunistic for job_id in pack.jobs]
    parts = (found.first, found.second)
    for job_id, own, other, kept in zip(pack.jobs, are_spare, are_spare[::-1], parts, strict=True):
        if other and not own and kept + found.noise < KEPT:
            return f"job {job_id} is guaranteed and keeps {kept:.2f} of its speed; {KEPT:.2f} is asked"
    return ""


def _measured(at: Cycle, pack: Pack) -> Finding | None:
    """What both keep of their speed, None when too little was seen."""
    one, two = (_seen(at, pack, job_id) for job_id in pack.jobs)
    if not (one and two and one.rate_packed and two.rate_packed):
        return None
    mine, theirs = one.rate_packed / one.rate_alone, two.rate_packed / two.rate_alone
    noise = ((mine * one.rate_noise) ** 2 + (theirs * two.rate_noise) ** 2) ** 0.5
    return Finding(mine, theirs, float(noise), at.now_ns)


def _undo(at: Cycle, pack: Pack, here: list[Seat], why: str) -> None:
    at.state.pairs.packs.remove(pack)
    evidence = evidence_of(at, pack, here)
    for job_id in pack.jobs:
        _say(at, job_id, _undone(at, pack, job_id, why, *evidence))


def _undone(at: Cycle, pack: Pack, job_id: int, why: str, *evidence: str) -> Reason:
    return because("PackUndone", *evidence, mate=pack.mate(job_id), why=why)


def _forget(at: Cycle) -> None:
    """What was found long ago counts no more: trainings change; nor what models were that nobody trains."""
    pairs = at.state.pairs
    running = {_key(at, pack) for pack in pairs.packs}
    old_ns = at.now_ns - at.settings.pack_retry_ns
    pairs.found = {key: f for key, f in pairs.found.items() if key in running or f.seen_ns > old_ns}
    live = {record.model for record in at.state.jobs.values() if record.state != states.ENDED}
    pairs.book.forget(live, {_key(at, pack) for pack in pairs.packs if pack.is_trial})


def _pair_up(at: Cycle, here: list[Seat], free: list[JobRecord], trials: dict[Home, PairKey]) -> None:
    """Pair those of a GPU that have no mate, the oldest first; one trial at a time, of two models as well."""
    pairs = at.state.pairs
    if len(free) < 2:
        return
    home = _home_of(free[0])
    gpu_type = at.state.nodes[home.node].node.gpu_type
    while len(free) > 1 and home not in trials:
        host, tried = free.pop(0), set(trials.values())
        guests = [guest for guest in free if key_of(host.model, guest.model, gpu_type)[0] not in tried]
        guests = [guest for guest in guests if _fits(at, here, host, guest)]
        bench = Bench([(_view(host), gpu_type)], [_view(guest) for guest in guests], lambda job, kind: 1.0)
        for pair in pairs.book.match(bench, pairs):
            free = [record for record in free if record.job.job_id != pair.guest]
            pack = Pack(*home, pair.host, pair.guest, at.now_ns, pair.is_trial)
            found = pairs.found.get(_key(at, pack))
            _begin(at, replace(pack, gain=found.gain if found else 0.0, ooms=ooms(here, *pack.jobs)), here)
            if pack.is_trial:
                trials[home] = _key(at, pack)


def _fits(at: Cycle, here: list[Seat], host: JobRecord, guest: JobRecord) -> bool:
    """True when there is memory for both; else both are told why not, once."""
    pair, said = (host.job.job_id, guest.job.job_id), at.state.pairs.not_tried
    unfit = misfit(here, *pair)
    old = said.pop(pair, None)
    if unfit is None:
        return True
    said[pair] = NotTried(*unfit)
    for job_id, mate in (pair, pair[::-1]) if old is None or old.why != unfit.why else ():
        _say(at, job_id, because("PackNotTried", *unfit.evidence, mate=mate, why=unfit.why))
    return False


def _begin(at: Cycle, pack: Pack, here: list[Seat]) -> None:
    """Pack two, and say so."""
    pack = replace(pack, least_s=trial_ns(at.settings) // SECOND_NS, evidence=evidence_of(at, pack, here))
    at.state.pairs.packs.append(pack)
    for job_id in pack.jobs:
        _say(at, job_id, pack.reason(job_id))


def evidence_of(at: Cycle, pack: Pack, here: list[Seat]) -> tuple[str, ...]:
    """What is known of two that share a GPU: their speeds alone and together, and its memory."""
    told = [f"GPU {pack.gpu} of {pack.node}, {_type(at, pack) or 'no type'}"]
    for job_id in pack.jobs:
        seen = _seen(at, pack, job_id)
        if seen is not None:
            beside = f"{seen.rate_packed:.3g} packed" if seen.rate_packed else "packed not measured yet"
            told.append(f"job {job_id}: {seen.rate_alone:.3g} mini-batches a second alone, {beside}")
    return (*told, *memory(here, *pack.jobs))


def _say(at: Cycle, job_id: int, reason: Reason) -> None:
    record = at.state.jobs[job_id]
    if record.stay(reason, at.now_ns):
        action_id = f"note:{record.key}:{at.now_ns}"
        at.actions.append(Note(action_id, record.key, reason.code, reason.text, reason.evidence))


def _seen(at: Cycle, pack: Pack, job_id: int) -> Measured | None:
    sighting = at.state.sightings.get((pack.node, at.state.jobs[job_id].key))
    return None if sighting is None else sighting.measured


def _key(at: Cycle, pack: Pack) -> PairKey:
    one, two = (at.state.jobs[job_id].model for job_id in pack.jobs)
    return key_of(one, two, _type(at, pack))[0]


def _home(pack: Pack) -> Home:
    return Home(pack.node, pack.gpu)


def _home_of(record: JobRecord) -> Home:
    (home,) = record.places.items()
    return Home(home[0], home[1][0])


def _type(at: Cycle, pack: Pack) -> str:
    return at.state.nodes[pack.node].node.gpu_type


def _view(record: JobRecord) -> JobView:
    job = record.job
    return JobView(job.job_id, job.user, 1, job.submit_s * SECOND_NS, model=record.model)
