"""What is said of a job's moves, in `gandiva why` and on its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gandiva_slurm.engine.lifecycle.moving import own_signal, why_fixed
from gandiva_slurm.engine.state.records import SECOND_NS, JobRecord
from gandiva_slurm.engine.state.settings import EngineSettings
from gandiva_slurm.model.reason import because

_COUNTS = {1: "one", 2: "two", 3: "three"}


def told_way(settings: EngineSettings, record: JobRecord) -> str:
    """Say how a job saves itself where its ranks do not, "" where it does not."""
    own, how = own_signal(settings, record), record.options.saves_by
    if how == "self":
        return "it can be moved: it goes on from its own newest file, and does again what it did since"
    if not how or own is None:
        return ""
    to = "its batch shell" if own.to_batch else "its steps"
    return f"it can be moved: upon SIG{own.name} to {to} it saves itself ({how}), within {own.grace_s} s"


def told(record: JobRecord, now_ns: int) -> Iterator[str]:
    """Say what is known of a job's moves, for `gandiva why`."""
    travels = record.travels
    if record.target:
        yield f"kept for it: {record.target_text}"
    lately = travels.lately(now_ns)
    if lately:
        cost = f", the last one cost {travels.cost_ns / SECOND_NS:.1f} s" if travels.cost_ns else ""
        yield f"moves in the last hour: {len(lately)}{cost}"
    if travels.wait_until_ns > now_ns:
        wait_s = (travels.wait_until_ns - now_ns) // SECOND_NS
        yield f"moves that failed in a row: {travels.failures}, none for {wait_s} s"
    if len(travels.rates) > 1:
        rates = ", ".join(f"{kind} {rate:.3g}/s" for kind, rate in sorted(travels.rates.items()))
        yield f"measured alone: {rates}"


def told_shared(jobs: Iterable[JobRecord], record: JobRecord, why: str) -> Iterator[str]:
    """Say of a job that cannot be moved, for `why`, with how many it shares its GPUs, and what would help."""
    shared: dict[str, set[int]] = {}
    others = set[int]()
    for other in jobs:
        for name in record.places.keys() & other.places.keys() if other is not record else ():
            both = set(record.places[name]).intersection(other.places[name])
            shared.setdefault(name, set()).update(both)
            others |= {other.job.job_id} if both else set()
    if others:
        count = _COUNTS.get(len(others), str(len(others)))
        gpus_of = {name: ",".join(map(str, sorted(gpus))) for name, gpus in sorted(shared.items()) if gpus}
        where = ", ".join(f"{name} GPU {gpus}" for name, gpus in gpus_of.items())
        facts = {"where": where, "others": f"{count} other{'s' * (len(others) > 1)}"}
        fixed = why_fixed(record)
        reason = because("SharesForGood", **facts, why=fixed or why)
        yield reason.text if fixed else f"{reason.text}; {reason.next}"
