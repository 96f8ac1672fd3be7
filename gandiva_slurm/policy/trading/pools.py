"""Who uses how many GPUs of which type, before anybody trades (Gandiva_fair, EuroSys 2020).

Each user owns a share of every type by tickets. He uses it best type first, never above his demand; what
he leaves goes to those who want it: for GPUs that they lack, or in place of slower ones, which then become
free in their turn. So nobody ends below his isolated share, that is the same box used without a choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from gandiva_slurm.policy.trading.speedups import Speeds

#: Rounds of handing on what others left. Two or three do; the bound is for chains that shrink for ever.
MOST_ROUNDS = 16
NONE = Fraction(0)


@dataclass(frozen=True, slots=True)
class Claimant:
    """A user who wants GPUs: at most `demand` of them, at his measured speeds."""

    name: str
    demand: int
    speeds: Speeds
    tickets: int = 1
    #: his speeds with a guess for types never measured: they steer what he tries of his own, and are no bid
    hopes: Speeds = field(default_factory=dict)

    def best_first(self, gpu_types: Sequence[str]) -> list[str]:
        """Return the types he can use: fastest first, those he knows nothing of last, in cluster order."""
        usable = [gpu_type for gpu_type in gpu_types if self.speeds.get(gpu_type) != 0]
        known = self.hopes or self.speeds
        return sorted(usable, key=lambda gpu_type: -known.get(gpu_type, NONE))

    def prefers(self, gpu_type: str, other: str) -> bool:
        """True when the first type was measured to be faster for him than the second."""
        return gpu_type in self.speeds and other in self.speeds and self.speeds[gpu_type] > self.speeds[other]


@dataclass(slots=True)
class Holdings:
    """GPUs in use, by user and type, and those that nobody uses; exact parts of a GPU over time."""

    counts: Mapping[str, int]
    claimants: Mapping[str, Claimant]
    held: dict[str, dict[str, Fraction]] = field(default_factory=dict)
    idle: dict[str, Fraction] = field(default_factory=dict)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Types in the cluster's order."""
        return tuple(self.counts)

    def used(self, name: str) -> Fraction:
        """GPUs that a user holds, of all types."""
        return sum(self.held[name].values(), NONE)

    def room(self, name: str) -> Fraction:
        """How many more GPUs a user could use."""
        return self.claimants[name].demand - self.used(name)

    def speed(self, name: str) -> Fraction:
        """What a user gets done: GPUs by the speed that each has for him."""
        speeds = self.claimants[name].speeds
        return sum((part * speeds.get(gpu_type, NONE) for gpu_type, part in self.held[name].items()), NONE)

    def take(self, name: str, gpu_type: str, part: Fraction) -> None:
        """Let a user take idle GPUs; slower ones that he has no more use for become idle, slowest first."""
        mine = self.held[name]
        excess = part - self.room(name)
        for other in reversed(self.claimants[name].best_first(self.gpu_types)):
            if excess > 0 and other != gpu_type:
                back = min(excess, mine[other])
                mine[other] -= back
                self.idle[other] += back
                excess -= back
        mine[gpu_type] += part
        self.idle[gpu_type] -= part


def isolated(claimants: Sequence[Claimant], counts: Mapping[str, int]) -> dict[str, dict[str, Fraction]]:
    """Return each user's GPUs by type if he had his tickets' part of every type alone, without a choice."""
    tickets = sum(claimant.tickets for claimant in claimants)
    result = {}
    for claimant in claimants:
        part = Fraction(claimant.tickets, tickets)
        whole = part * sum(counts.values())
        scale = min(Fraction(1), claimant.demand / whole) if whole else NONE
        result[claimant.name] = {gpu_type: part * count * scale for gpu_type, count in counts.items()}
    return result


def own_shares(claimants: Sequence[Claimant], counts: Mapping[str, int]) -> Holdings:
    """Return what each user uses of his own share, and of what the others leave. No trades yet."""
    holdings = Holdings(counts, {claimant.name: claimant for claimant in claimants})
    holdings.idle = {gpu_type: Fraction(count) for gpu_type, count in counts.items()}
    tickets = sum(claimant.tickets for claimant in claimants)
    for claimant in claimants:
        holdings.held[claimant.name] = dict.fromkeys(counts, NONE)
        for gpu_type in claimant.best_first(holdings.gpu_types):
            own = Fraction(counts[gpu_type] * claimant.tickets, tickets)
            holdings.take(claimant.name, gpu_type, min(own, holdings.room(claimant.name)))
    hand_on(holdings)
    return holdings


def hand_on(holdings: Holdings) -> None:
    """Give idle GPUs to those who want them, until nobody does."""
    for _ in range(MOST_ROUNDS):
        if not sum(_hand_on(holdings, gpu_type) for gpu_type in holdings.gpu_types):
            break


def _hand_on(holdings: Holdings, gpu_type: str) -> bool:
    """Give idle GPUs of a type to those who want them, by tickets up to what each wants. True if any went."""
    wants = {name: _wanted(holdings, name, gpu_type) for name in holdings.claimants}
    wants = {name: want for name, want in wants.items() if want > 0}
    if not wants or holdings.idle[gpu_type] <= 0:
        return False
    weights = {name: holdings.claimants[name].tickets for name in wants}
    for name, part in fill(holdings.idle[gpu_type], wants, weights).items():
        holdings.take(name, gpu_type, part)
    return True


def _wanted(holdings: Holdings, name: str, gpu_type: str) -> Fraction:
    """How many GPUs of this type a user would take: what he lacks, and in place of slower ones."""
    claimant = holdings.claimants[name]
    if claimant.speeds.get(gpu_type) == 0:
        return NONE
    slower = [part for other, part in holdings.held[name].items() if claimant.prefers(gpu_type, other)]
    return holdings.room(name) + sum(slower, NONE)


def fill(whole: Fraction, wants: Mapping[str, Fraction], weights: Mapping[str, int]) -> dict[str, Fraction]:
    """Divide by weight, nobody above what he wants: who wants less leaves the rest to the others."""
    result: dict[str, Fraction] = {}
    open_names = list(wants)
    while open_names:
        level = whole / sum(weights[name] for name in open_names)
        content = [name for name in open_names if wants[name] <= level * weights[name]]
        if not content:
            return result | {name: level * weights[name] for name in open_names}
        result.update((name, wants[name]) for name in content)
        whole -= sum((wants[name] for name in content), NONE)
        open_names = [name for name in open_names if name not in result]
    return result
