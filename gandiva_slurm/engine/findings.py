"""What the engine remembers of pairs on one GPU (`pairs` has the rules), and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gandiva_slurm.engine.plain import build, plain
from gandiva_slurm.model.reason import Reason, because
from gandiva_slurm.policy.packing import PairBook


class PairKey(NamedTuple):
    """Two models, in order, on a GPU type: what was learnt of them serves all their jobs."""

    first: str
    second: str
    gpu_type: str


@dataclass(frozen=True)
class Finding:
    """What each of two keeps of its speed beside the other, how far off that may be, and when it was seen."""

    first: float
    second: float
    noise: float
    seen_ns: int

    @property
    def gain(self) -> float:
        """Their normalised rates together: 1 is what taking turns gives."""
        return self.first + self.second


@dataclass(frozen=True)
class Pack:
    """Two jobs that share a GPU. `gain` is what decided that; of a trial it is not known yet."""

    node: str
    gpu: int
    first: int
    second: int
    since_ns: int
    is_trial: bool = True
    gain: float = 0.0
    #: how long it is tried at the least, and what was known when that was last looked at
    least_s: int = 0
    evidence: tuple[str, ...] = ()
    #: how often either had run out of GPU memory before they were packed
    ooms: int = 0

    @property
    def jobs(self) -> tuple[int, int]:
        """Both of them."""
        return (self.first, self.second)

    def mate(self, job_id: int) -> int:
        """The other one."""
        return self.second if job_id == self.first else self.first

    def reason(self, job_id: int) -> Reason:
        """Why one of them shares its GPU."""
        mate = self.mate(job_id)
        if self.is_trial:
            return because("PackTrial", *self.evidence, mate=mate, least_s=self.least_s)
        return because("Packed", *self.evidence, mate=mate, gain=self.gain)


@dataclass(frozen=True)
class NotTried:
    """Why two residents of a GPU are not even tried together, as they were told, and the figures of now."""

    why: str
    evidence: tuple[str, ...]


@dataclass
class Pairs:
    """All packs of now, and what was found out; it is asked like a table of rates (policy.port.Rates)."""

    packs: list[Pack] = field(default_factory=list)
    found: dict[PairKey, Finding] = field(default_factory=dict)
    book: PairBook = field(default_factory=PairBook)
    #: by the ids of both, the older job's first
    not_tried: dict[tuple[int, int], NotTried] = field(default_factory=dict)

    def of(self, job_id: int) -> Pack | None:
        """The pack of a job."""
        return next((pack for pack in self.packs if job_id == pack.first or job_id == pack.second), None)

    def mates(self) -> dict[int, int]:
        """Who is packed with whom."""
        return {job_id: pack.mate(job_id) for pack in self.packs for job_id in pack.jobs}

    def reworded(self, job_id: int, reason: Reason) -> Reason:
        """What a node says of a packed job, in the words of who decided it."""
        pack = self.of(job_id) if reason.code == "Packed" else None
        return reason if pack is None else pack.reason(job_id)

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        """All speeds are parts of that alone; only jobs that were measured alone are ever asked for."""
        return 1.0

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        """What two models are sure to keep of their speed: less than measured, by the noise."""
        key, is_turned = key_of(model, other, gpu_type)
        found = self.found.get(key)
        if found is None:
            return None
        sure = max(0.0, 1.0 - found.noise / found.gain) if found.gain else 0.0
        both = (found.first * sure, found.second * sure)
        return both[::-1] if is_turned else both

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        found = [[*key, plain(finding)] for key, finding in sorted(self.found.items())]
        not_tried = [[*pair, plain(said)] for pair, said in sorted(self.not_tried.items())]
        packs = [plain(pack) for pack in self.packs]
        return {"packs": packs, "found": found, "book": self.book.to_json(), "not_tried": not_tried}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pairs:
        """Read what `to_json` wrote; nothing when there is nothing."""
        if not data:
            return cls()
        return cls(
            [build(Pack, raw) for raw in data["packs"]],
            {PairKey(*key): build(Finding, raw) for *key, raw in data["found"]},
            PairBook.from_json(data["book"]),
            {(one, two): build(NotTried, raw) for one, two, raw in data.get("not_tried", ())},
        )


def key_of(one: str, other: str, gpu_type: str) -> tuple[PairKey, bool]:
    """The key of two models, and whether they stand in it the other way round."""
    return PairKey(min(one, other), max(one, other), gpu_type), one > other
