"""policy.draft: what was tried and rolled back has never been."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from gandiva_slurm.policy.draft import Draft
from gandiva_slurm.policy.placement import Board, Need, Site
from gandiva_slurm.policy.shares import Leaf

USERS = ("user1", "user2", "user3")
STEPS = st.lists(
    st.tuples(st.sampled_from(("put", "lift", "keep", "leave", "mark", "rollback")), st.integers(0, 11)),
    max_size=30,
)


def a_need(job_id: int) -> Need:
    """Jobs of 1, 2 or 3 GPUs, some of two nodes, of three users."""
    leaf = Leaf("research", USERS[job_id % 3])
    nodes = 2 if job_id % 5 == 4 else 1
    return Need(job_id, leaf, 1 + job_id % 3, 100 + job_id, (0, job_id), memory_mib=100, nodes=nodes)


def a_board() -> Board:
    sites = [Site(f"n{n}", "v100", 4, 2, memory_mib=400) for n in range(3)]
    return Board(sites, {Leaf("research", user): 1000 for user in USERS})


def picture(board: Board) -> object:
    """All there is to see of a board, its loads too."""
    stays = {name: dict(site.stays) for name, site in board.sites.items()}
    loads = {name: board.loads(site) for name, site in board.sites.items()}
    gpus = {user: board.gpus_of(user) for user in USERS}
    best = [board.best(a_need(99 + n), board.sites.values()) for n in range(3)]
    return copy.deepcopy((stays, loads, gpus, best))


def nodes_of(board: Board, job_id: int) -> list[str]:
    return [name for name, site in board.sites.items() if job_id in site.stays]


def step(draft: Draft, what: str, job_id: int) -> None:
    """Try one thing, if it can be tried now."""
    board, need = draft.board, a_need(job_id)
    here = nodes_of(board, job_id)
    place = board.best(need, board.sites.values())
    is_kept = any(-job_id in site.stays for site in board.sites.values())
    if what == "put" and place is not None and not here:
        draft.put(need, place)
    elif what == "keep" and place is not None and not is_kept:
        draft.keep(need, place)
    elif what == "lift" and here:
        draft.lift(job_id, here)
    elif what == "leave" and here:
        draft.leave(job_id, here)


@given(before=st.lists(st.integers(1, 11), max_size=8), steps=STEPS)
def test_draft_and_rollback_is_identity(before: list[int], steps: list[tuple[str, int]]) -> None:
    board = a_board()
    for job_id in before:
        step(Draft(board), "put", job_id)
    draft, marks = Draft(board), []
    start = (draft.mark(), picture(board))
    for what, job_id in steps:
        if what == "mark":
            marks.append((draft.mark(), picture(board)))
        elif what == "rollback" and marks:
            mark, want = marks.pop()
            draft.rollback(mark)
            assert picture(board) == want
        else:
            step(draft, what, job_id + 1)
    draft.rollback(start[0])
    assert picture(board) == start[1]


def test_a_job_that_leaves_keeps_its_room_and_weighs_nothing_there() -> None:
    board, need = a_board(), a_need(3)
    place = board.best(need, board.sites.values())
    assert place is not None
    Draft(board).put(need, place)
    ((node, gpus),) = place.parts
    site = board.sites[node]
    assert board.loads(site)[gpus[0]] > 0
    Draft(board).leave(need.job_id, [node])
    assert board.loads(site) == [0] * site.gpus and site.stays[need.job_id].gpus == gpus
