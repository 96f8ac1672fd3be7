"""A board on which moves are proposed, one job a user, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gandiva_slurm.policy.balance import even_out
from gandiva_slurm.policy.clearing import Clearing, clear_for
from gandiva_slurm.policy.draft import Draft
from gandiva_slurm.policy.faster import speed_up
from gandiva_slurm.policy.moves import Loads, Proposal, Resident, Terms
from gandiva_slurm.policy.placement import Board, Need, NodeGpus, Place, Site
from gandiva_slurm.policy.shares import SCALE, Leaf
from gandiva_slurm.policy.swaps import Swap, exchange

HOUR_NS = 3600 * 10**9
USERS = tuple(f"user{n}" for n in range(9))


def a_leaf(n: int) -> Leaf:
    return Leaf("research", f"user{n}")


class Scene:
    """A board on which each job is of a user of its own, with 100 tickets unless told otherwise."""

    def __init__(self, *sites: Site) -> None:
        self.sites = {site.name: site for site in sites}
        self.residents: list[Resident] = []
        self.tickets: dict[Leaf, int] = {}

    def job(self, node: str, *gpus: int, tickets: int = 100, memory_mib: int = 0, **fields: object) -> int:
        """A job on these GPUs of a node."""
        job_id, is_spare = len(self.residents) + 1, bool(fields.pop("is_opportunistic", False))
        need = Need(job_id, a_leaf(job_id), len(gpus), 100, (0, job_id), memory_mib=memory_mib)
        need = replace(need, is_opportunistic=is_spare)
        self.sites[node].stays[job_id] = need.stay(gpus)
        self.tickets[need.leaf] = tickets * SCALE
        values = {"cost_ns": 60 * 10**9, "horizon_ns": HOUR_NS, **fields}
        kind = self.sites[node].gpu_type
        place = Place((NodeGpus(node, gpus),))
        self.residents.append(Resident(need, place, kind, **values))  # type: ignore[arg-type]
        return job_id

    def board(self) -> Board:
        return Board(self.sites.values(), self.tickets)

    def even(self) -> list[Proposal]:
        board = self.board()
        return even_out(Draft(board), Loads(board), self.residents, Terms())

    def faster(self) -> list[Proposal]:
        board = self.board()
        return speed_up(Draft(board), Loads(board), self.residents, Terms())

    def swap(self) -> Swap | None:
        board = self.board()
        return exchange(Draft(board), Loads(board), self.residents, Terms())

    def change(self, moves: Iterable[Proposal]) -> None:
        """All are where they were proposed to go."""
        for move in moves:
            old, ((node, gpus),) = move.resident, move.place.parts
            (home,) = old.place.nodes
            self.sites[node].stays[old.need.job_id] = self.sites[home].stays.pop(old.need.job_id)
            new = replace(old, place=move.place, gpu_type=self.sites[node].gpu_type)
            stay = self.sites[node].stays[old.need.job_id]
            self.sites[node].stays[old.need.job_id] = replace(stay, gpus=gpus)
            self.residents[self.residents.index(old)] = new

    def clear(self, need: Need) -> Clearing | None:
        board = self.board()
        here = {name: [each for each in self.residents if name in each.place.nodes] for name in self.sites}
        before = [dict(site.stays) for site in board.sites.values()]
        found = clear_for(Draft(board), Loads(board), need, here, Terms())
        assert [site.stays for site in board.sites.values()] == before, "nothing stays tried"
        return found


def a_site(name: str, gpus: int = 2, kind: str = "v100", slots: int = 4, **fields: object) -> Site:
    return Site(name, kind, gpus, slots, **fields)  # type: ignore[arg-type]


def moves(proposals: list[Proposal]) -> list[tuple[int, tuple[tuple[str, tuple[int, ...]], ...]]]:
    return [(each.resident.need.job_id, tuple(map(tuple, each.place.parts))) for each in proposals]
