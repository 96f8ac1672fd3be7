"""How many tickets each user has now: by name, or by the account tree, and less for who used much before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.policy.port import JobView, OfUser, PolicySettings
from gandiva_slurm.policy.shares.associations import SCALE, Leaf, leaf_tickets

#: Past use halves a user's tickets so many times at most: less for a while is not nothing.
_MOST_HALVINGS = 4


class TicketBook:
    """Tickets of the users of live jobs; with a half-life, also what each of them used."""

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        #: by user: the part of the cluster it held, a mean in which the past fades by the half-life
        self._used: dict[str, float] = {}
        #: by user: what its tickets were multiplied by when they were last asked for
        self._factors: dict[str, float] = {}
        #: who was present last, by which tree, and the tickets they had by that alone
        self._base: tuple[tuple[object, Sequence[Association]], dict[str, int]] | None = None

    def note(self, elapsed_ns: int, gpus: Mapping[str, float], size: int) -> None:
        """Add a stretch of time in which users held so many of `size` GPUs."""
        if not self._settings.half_life_ns or not elapsed_ns:
            return
        kept: float = 0.5 ** (elapsed_ns / self._settings.half_life_ns)
        self._used = {
            user: self._used.get(user, 0.0) * kept + gpus.get(user, 0.0) / size * (1 - kept)
            for user in sorted(self._used.keys() | gpus.keys())
        }

    def of(self, jobs: Iterable[JobView], tree: Sequence[Association] = ()) -> dict[str, int]:
        """Return the tickets of the users of these jobs; `tree`: newer than the settings'."""
        settings, present = self._settings, {(job.account, job.user) for job in jobs}
        key = (present, tree or settings.associations)
        if self._base is None or self._base[0] != key:
            leaves = [Leaf(account, user) for account, user in present]
            self._base = (key, users_tickets(settings.tickets, key[1], leaves))
        base = self._base[1]
        if not settings.half_life_ns:
            return dict(base)
        whole = sum(base.values())
        factors = {user: _factor(self._used.get(user, 0.0) * whole / own) for user, own in base.items()}
        self._factors = factors
        return {user: max(1, round(own * SCALE * factors[user])) for user, own in base.items()}

    def of_users(self) -> dict[str, OfUser]:
        """Return what past use does to the users of live jobs; {}: it does not matter."""
        return {user: OfUser(factor) for user, factor in self._factors.items()}

    def told(self, user: str) -> Iterator[str]:
        """Say that a user has less for what it used before, for `gandiva why`."""
        factor = self._factors.get(user, 1.0)
        if factor < 1:
            used, hours = self._used.get(user, 0.0), self._settings.half_life_ns / 3600e9
            yield (
                f"{user} held {100 * used:.0f} % of the GPUs of late (half-life {hours:.3g} h) "
                f"and has {100 * factor:.0f} % of its tickets for that now"
            )


def users_tickets(
    tickets: Mapping[str, int], tree: Sequence[Association], present: Collection[Leaf]
) -> dict[str, int]:
    """Return the tickets of these users, whatever they used: by the tree in millionths, else as they are set.

    Who has jobs in several accounts has what he has in each of them, as on a cluster.
    """
    if not tree:
        return {leaf.user: max(1, tickets.get(leaf.user, 1)) for leaf in sorted(present)}
    result: dict[str, int] = {}
    for leaf, parts in leaf_tickets(tree, present).items():
        result[leaf.user] = result.get(leaf.user, 0) + parts
    return result


def _factor(used: float) -> float:
    """Halve tickets for each whole share that a user used: Slurm's fair-share factor."""
    factor: float = 0.5 ** min(used, _MOST_HALVINGS)
    return factor
