"""Packs, whatever comes: every GPU-second is charged once, nobody else shares a GPU, tickets buy time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.engine import invariants
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.slicing.local import Gang, LocalStride
from gandiva_slurm.slicing.stride import STRIDE1
from tests.builders import Slicer, a_gang

GPUS = 3
gangs = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sets(st.integers(0, GPUS - 1), min_size=1, max_size=2),
        st.integers(1, 9),
        st.integers(0, 7),
    ),
    min_size=1,
    max_size=7,
)


def residents(rows: list[tuple[str, set[int], int, int]]) -> list[Gang]:
    """Gangs that name any other at all: only those that name each other and have the same GPUs are packed."""
    return [
        replace(a_gang(number, user, tuple(sorted(gpus)), tickets), mate=mate)
        for number, (user, gpus, tickets, mate) in enumerate(rows)
    ]


@settings(max_examples=150)
@given(gangs, st.data())
def test_charges_sum_to_gpu_time_whatever_holds(
    rows: list[tuple[str, set[int], int, int]], data: st.DataObject
) -> None:
    local = LocalStride(GPUS, 1000)
    local.set_gangs(residents(rows))
    gpu_time = 0
    for _ in range(data.draw(st.integers(1, 12))):
        keys = [gang.key for gang in local.gangs]
        runnable = data.draw(st.sets(st.sampled_from(keys)))
        chosen = local.choose(sorted(runnable), (), ())
        assert invariants.round_is_sound(local.gangs, GPUS, chosen) == []
        assert set(chosen) <= runnable
        held = data.draw(st.integers(1, 3001))
        gpu_time += held * len({gpu for gang in local.gangs if gang.key in chosen for gpu in gang.gpus})
        for key in chosen:
            local.charge(key, held, 0, local.mate_of(key) in chosen)
    turns = local._books.values()
    users = [acc for book in turns for acc in book._users.accounts.values()]
    jobs = [acc for book in turns for his in book._jobs.values() for acc in his.accounts.values()]
    for account in (*users, *jobs):
        account.debt = 0
    for accounts in (users, jobs):
        assert sum(acc.value * acc.tickets + acc.carry for acc in accounts) == gpu_time * STRIDE1


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 5)), min_size=3, max_size=6))
def test_tickets_buy_time_with_packs_too(rows: list[tuple[str, int]]) -> None:
    """All on one GPU, the first two packed: what users are charged is as their tickets are."""
    everybody = [a_gang(number, user, (0,), tickets) for number, (user, tickets) in enumerate(rows, 1)]
    everybody[0] = replace(everybody[0], mate=2)
    everybody[1] = replace(everybody[1], mate=1)
    node = Slicer(1, yields=True)
    node.local.set_gangs(everybody)
    node.run(600)
    tickets: Counter[str] = Counter()
    for user, own in rows:
        tickets[user] += own
    for user, share in node.shares().items():
        assert abs(share - tickets[user] / tickets.total()) < 0.02, (user, share, tickets)
    for gang in everybody:
        due = gang.tickets / tickets.total()
        got = node.by_job[JobKey(gang.key.job_id, 0).job_id] / sum(node.by_job.values())
        assert abs(got - due) < 0.02, (gang, got, due)
