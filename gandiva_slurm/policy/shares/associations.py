"""From Slurm's association tree to tickets, and from tickets to what each user is entitled to.

Tickets are integers in parts of a ticket (`SCALE` parts are one), whoever is present. A user alone in his
account has 100 tickets for each share he holds there. Users of several accounts are weighed by the tree: at
each level the present children split what their parent has by their shares (an absent sibling's part goes to
his siblings), and the whole is 100 tickets for each share of those present. So in a flat tree nobody's
tickets depend on others.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

from gandiva_slurm.model.snapshot import Association

#: Parts of one ticket: the unit of `PlannedJob.tickets` and of every split.
SCALE = 10**6
#: Tickets of one share. Slurm's default is one share, --gandiva-tickets defaults to the same number.
TICKETS_PER_SHARE = 100
ROOT = "root"

Name = TypeVar("Name", bound=Hashable)


class Leaf(NamedTuple):
    """A user in an account: where tickets end up."""

    account: str
    user: str


def leaf_tickets(associations: Sequence[Association], present: Collection[Leaf]) -> dict[Leaf, int]:
    """Return the parts of a ticket of each present leaf, at least 1 (who has no share runs on what is left).

    A leaf with no association (no accounting, or a user added since) has one share below the root.
    """
    tree = _Tree(associations)
    whole = TICKETS_PER_SHARE * SCALE * max(1, sum(tree.leaf_shares.get(leaf, 1) for leaf in set(present)))
    return {leaf: max(1, int(part * whole)) for leaf, part in _fractions(tree, present).items()}


def norm_shares(associations: Sequence[Association], present: Collection[Leaf] = ()) -> dict[Leaf, Fraction]:
    """Return each leaf's part of the whole cluster, by shares alone, present or not (sshare's NormShares)."""
    leaves = {Leaf(row.account, row.user) for row in associations if row.user} | set(present)
    return _fractions(_Tree(associations), leaves)


def job_weight(tickets: int, priority: int) -> int:
    """Return a job's weight among its user's own: --gandiva-tickets x (--gandiva-priority + 1).

    Priority 100 is about twice the default of 50, and 0 a fiftieth of it: never nothing.
    """
    return max(1, tickets) * (max(0, priority) + 1)


def split(parts: int, weights: Mapping[Name, int]) -> dict[Name, int]:
    """Divide `parts` by weight into integers of at least 1 that sum to it (to their number, if that is more).

    What rounding leaves goes one by one to the largest remainders, the first in order on a tie.
    """
    names = list(weights)
    total = sum(weights.values())
    spare = parts - len(names)
    if spare <= 0 or total <= 0:
        return dict.fromkeys(names, 1)
    exact = {name: divmod(spare * weights[name], total) for name in names}
    result = {name: 1 + whole for name, (whole, _) in exact.items()}
    left = spare - sum(whole for whole, _ in exact.values())
    for name in sorted(names, key=lambda name: -exact[name][1])[:left]:
        result[name] += 1
    return result


def entitled_shares(
    tickets: Mapping[str, int], demand_gpus: Mapping[str, int], capacity: int
) -> dict[str, Fraction]:
    """Return the GPUs each user is entitled to: by tickets, never above demand, the rest shared on.

    Water-filling, exact: who asks for less than his share gets what he asks, and the others share what he
    leaves.
    """
    result = {user: Fraction(0) for user in tickets}
    open_users = [user for user in sorted(tickets) if tickets[user] > 0 and demand_gpus.get(user, 0) > 0]
    left = Fraction(capacity)
    while open_users and left > 0:
        total = sum(tickets[user] for user in open_users)
        level = left / total
        capped = [user for user in open_users if demand_gpus[user] <= level * tickets[user]]
        if not capped:
            result.update({user: level * tickets[user] for user in open_users})
            break
        for user in capped:
            result[user] = Fraction(demand_gpus[user])
            left -= demand_gpus[user]
        open_users = [user for user in open_users if user not in capped]
    return result


def _fractions(tree: _Tree, leaves: Collection[Leaf]) -> dict[Leaf, Fraction]:
    """Return the part of the whole that each of these leaves has when only they share it."""
    ordered = sorted(leaves)
    children: dict[str, dict[str | Leaf, int]] = {}
    for leaf in ordered:
        children.setdefault(leaf.account, {})[leaf] = tree.leaf_shares.get(leaf, 1)
        for account in tree.above(leaf.account):
            children.setdefault(tree.parent(account), {})[account] = tree.account_shares.get(account, 1)
    parts = {account: _parts(shares) for account, shares in children.items()}
    wholes: dict[str, Fraction] = {}
    for account in {leaf.account: None for leaf in ordered}:
        wholes[account] = Fraction(1)
        for above in tree.above(account):
            wholes[account] *= parts[tree.parent(above)][above]
    return {leaf: wholes[leaf.account] * parts[leaf.account][leaf] for leaf in ordered}


def _parts(shares: Mapping[str | Leaf, int]) -> dict[str | Leaf, Fraction]:
    """Each child's part among its siblings; equal parts where none of them has a share."""
    total = sum(shares.values())
    if not total:
        return dict.fromkeys(shares, Fraction(1, len(shares)))
    return {child: Fraction(own, total) for child, own in shares.items()}


class _Tree:
    """The association rows by name."""

    def __init__(self, associations: Sequence[Association]) -> None:
        self.leaf_shares = {
            Leaf(row.account, row.user): max(0, row.shares) for row in associations if row.user
        }
        accounts = [row for row in associations if not row.user]
        self.account_shares = {row.account: max(0, row.shares) for row in accounts}
        self._parents = {row.account: row.parent or ROOT for row in accounts}

    def parent(self, account: str) -> str:
        """The account above; whatever is not known hangs from the root."""
        return self._parents.get(account, ROOT)

    def above(self, account: str) -> list[str]:
        """This account and those above it, the root left out; a circle (broken data) is cut."""
        chain: list[str] = []
        while account != ROOT and account not in chain:
            chain.append(account)
            account = self.parent(account)
        return chain
