"""Properties of the stride over random gangs: what holds in every round, and the shares after some."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.engine.invariants import passes_never_fall, round_is_sound
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.policy.shares.associations import entitled_shares, split
from gandiva_slurm.slicing.local import Gang
from gandiva_slurm.slicing.stride import STRIDE1, Entrant, PassBook, Pool, UserPass, run_round
from tests.builders import SECOND_NS, TICKET, Slicer, a_gang

USERS = ("ada", "bob", "eve", "joe")


@st.composite
def nodes(draw: st.DrawFn) -> tuple[int, list[Gang]]:
    """A node's GPU count and its residents."""
    gpus = draw(st.integers(1, 8))
    gang = st.tuples(
        st.sampled_from(USERS),
        st.sets(st.integers(0, gpus - 1), min_size=1).map(lambda found: tuple(sorted(found))),
        st.integers(1, 400 * TICKET),
    )
    rows = draw(st.lists(gang, min_size=1, max_size=12))
    return gpus, [a_gang(n, user, held, tickets) for n, (user, held, tickets) in enumerate(rows)]


def slicer_of(gpus: int, gangs: list[Gang]) -> Slicer:
    node = Slicer(gpus)
    node.local.set_gangs(gangs)
    return node


@settings(max_examples=100)
@given(nodes(), st.integers(0, 20))
def test_every_round_is_sound_full_and_led_by_the_lowest_pass(
    node: tuple[int, list[Gang]], warm: int
) -> None:
    gpus, gangs = node
    local = slicer_of(gpus, gangs).run(warm).local
    users, jobs = local.passes()
    chosen = local.choose([gang.key for gang in gangs], (), ())
    assert round_is_sound(gangs, gpus, chosen) == []
    lowest_user = min(users.values())
    leaders = [gang for gang in gangs if users[gang.user] == lowest_user]
    firsts = {
        gang.key
        for gang in leaders
        if jobs[gang.key.job_id]
        == min(jobs[other.key.job_id] for other in leaders if other.user == gang.user)
    }
    assert firsts & set(chosen), "the job of the lowest pass runs in every round"
    busy = {gpu for gang in gangs if gang.key in chosen for gpu in gang.gpus}
    idle_but_waiting = [gang for gang in gangs if gang.key not in chosen and busy.isdisjoint(gang.gpus)]
    assert idle_but_waiting == [], "no GPU idles while a gang that fits waits"


@settings(max_examples=60)
@given(nodes(), st.data())
def test_pinned_and_overdue_are_kept_whatever_else(node: tuple[int, list[Gang]], data: st.DataObject) -> None:
    gpus, gangs = node
    local = slicer_of(gpus, gangs).run(data.draw(st.integers(0, 5))).local
    all_keys = [gang.key for gang in gangs]
    pinned = local.choose(data.draw(st.lists(st.sampled_from(all_keys))), (), ())
    pinned = pinned[: data.draw(st.integers(0, len(pinned)))]
    overdue = data.draw(st.lists(st.sampled_from(all_keys)))
    chosen = local.choose(data.draw(st.lists(st.sampled_from(all_keys))), pinned, overdue)
    assert set(pinned) <= set(chosen)
    assert round_is_sound(gangs, gpus, chosen) == []
    held = {gpu for gang in gangs if gang.key in pinned for gpu in gang.gpus}
    fitting = [gang for gang in gangs if gang.key in overdue and held.isdisjoint(gang.gpus)]
    assert not fitting or any(gang.key in chosen for gang in fitting)


@settings(max_examples=60)
@given(nodes(), st.lists(st.tuples(st.integers(0, 2**12), st.integers(0, 3 * SECOND_NS)), max_size=15))
def test_passes_never_fall_and_json_changes_nothing(
    node: tuple[int, list[Gang]], turns: list[tuple[int, int]]
) -> None:
    gpus, gangs = node
    local = slicer_of(gpus, gangs).local
    for subset, over in turns:
        before = local.passes()
        present = [gang for n, gang in enumerate(gangs) if subset >> n & 1]
        local.set_gangs(present)
        for key in local.choose([gang.key for gang in present], (), ()):
            local.charge(key, SECOND_NS + over, over)
        local.settle()
        after = local.passes()
        assert passes_never_fall(before[0], after[0]) == []
        again = type(local).from_json(local.to_json())
        everyone = [gang.key for gang in present]
        assert again.choose(everyone, (), ()) == local.choose(everyone, (), ())


@settings(max_examples=60)
@given(nodes())
def test_no_user_starves(node: tuple[int, list[Gang]]) -> None:
    """Of equal tickets, everybody runs within a bounded number of rounds, again and again."""
    gpus, gangs = node
    users = sorted({gang.user for gang in gangs})
    each = {user: sum(gang.user == user for gang in gangs) for user in users}
    equal = [a_gang(g.key.job_id, g.user, g.gpus, 100 * TICKET // each[g.user]) for g in gangs]
    slicer = slicer_of(gpus, equal)
    bound = 3 * gpus * len(users)
    for _ in range(3):
        slicer.forget().run(bound)
        assert sorted(slicer.by_user) == users


@settings(max_examples=25)
@given(st.permutations((1, 10, 100)), st.integers(2, 8), st.integers(0, 10**6))
def test_shares_are_the_users_not_the_jobs(counts: list[int], gpus: int, seed: int) -> None:
    """Users of 1, 10 and 100 one-GPU jobs: after 50 rounds all have what water-filling gives, within 5 %."""
    jobs = dict(zip(USERS, counts, strict=False))
    slicer = placed_slicer(jobs, gpus, seed).run(50)
    want = entitled_shares(dict.fromkeys(jobs, 100), jobs, gpus)
    for user in jobs:
        assert slicer.by_user[user] / SECOND_NS / 50 == pytest.approx(float(want[user]), rel=0.05)


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_shares_of_gangs_are_within_five_percent_after_fifty_rounds(seed: int) -> None:
    """Gangs of 1, 2 and 4 by count on 8 GPUs: 5 %, or one largest gang in the 50 rounds."""
    rng = random.Random(seed)
    sizes = {
        user: [rng.choice((1, 2, 4)) for _ in range(count)]
        for user, count in zip(USERS, (1, 10, 100), strict=False)
    }
    pool = CountedPool(8, sizes)
    got = pool.run(50)
    want = entitled_shares(dict.fromkeys(sizes, 1), {user: sum(mine) for user, mine in sizes.items()}, 8)
    for user in sizes:
        assert got[user] == pytest.approx(float(want[user]) * 50, rel=0.05, abs=4)


@settings(max_examples=25)
@given(st.integers(0, 60), st.integers(1, 100), st.integers(1, 8))
def test_shares_reconverge_within_ten_rounds_of_an_arrival(before: int, jobs: int, gpus: int) -> None:
    """Two users of many jobs, a third arrives with any number: ten rounds later all have their share."""
    sizes = {"ada": [1] * 20, "bob": [1] * 20}
    pool = CountedPool(gpus, sizes)
    pool.run(before)
    sizes["eve"] = [1] * jobs
    pool.admit(sizes)
    got = pool.run(10)
    want = entitled_shares(dict.fromkeys(sizes, 1), {user: len(mine) for user, mine in sizes.items()}, gpus)
    for user in sizes:
        assert got[user] == pytest.approx(float(want[user]) * 10, rel=0.05, abs=1.01)


def test_flat_list_with_tickets_split_over_jobs_misses_by_far() -> None:
    """The named negative: one list, each job a user with tickets/n, newcomers at the lowest pass.

    On 8 GPUs, 50 quanta after a user with 100 jobs came, he is far above his third, the others far below.
    """
    sizes = {("ada", n): 1 for n in range(8)} | {("bob", n): 1 for n in range(8)}
    tickets = dict.fromkeys(sizes, 1200 // 8)
    book: PassBook[tuple[str, int]] = PassBook()
    book.set_members(tickets)
    got = dict.fromkeys(USERS, 0)

    def run(rounds: int) -> None:
        for _ in range(rounds):
            accounts = book.accounts
            entrants = [Entrant(name, str(name), 1, tickets[name], (n,)) for n, name in enumerate(tickets)]
            users = {str(name): UserPass(accounts[name].value, tickets[name]) for name in tickets}
            for name in run_round(entrants, users, Pool(8), 1):
                accounts[name].charge(1, 0)
                got[name[0]] += 1

    run(50)
    tickets |= {("eve", n): 1200 // 100 for n in range(100)}
    book.set_members(tickets)
    got = dict.fromkeys(USERS, 0)
    run(50)
    third = 50 * 8 / 3
    assert got["eve"] > 1.1 * third
    assert got["ada"] < 0.9 * third


def placed_slicer(jobs: dict[str, int], gpus: int, seed: int) -> Slicer:
    """Jobs of one GPU on a node, even loads of tickets on its GPUs."""
    rng = random.Random(seed)
    owners = [user for user, count in jobs.items() for _ in range(count)]
    rng.shuffle(owners)
    tickets: dict[int, int] = {}
    for user in jobs:
        tickets |= split(100 * TICKET, {n: 1 for n, owner in enumerate(owners) if owner == user})
    loads = [0] * gpus
    gangs = []
    for n in sorted(tickets, key=lambda n: (-tickets[n], n)):
        gpu = min(range(gpus), key=lambda gpu: loads[gpu])
        loads[gpu] += tickets[n]
        gangs.append(a_gang(n, owners[n], (gpu,), tickets[n]))
    return slicer_of(gpus, sorted(gangs, key=lambda gang: gang.key))


class CountedPool:
    """Gangs by size on any GPUs of a pool: the stride as a simulator of big pools uses it."""

    def __init__(self, gpus: int, sizes: dict[str, list[int]]) -> None:
        self.gpus = gpus
        self.users: PassBook[str] = PassBook()
        self.jobs: dict[str, PassBook[int]] = {}
        self.admit(sizes)

    def admit(self, sizes: dict[str, list[int]]) -> None:
        self.sizes = {user: list(mine) for user, mine in sizes.items()}
        self.users.set_members(dict.fromkeys(sizes, 1))
        for user, mine in sizes.items():
            self.jobs.setdefault(user, PassBook()).set_members(dict.fromkeys(range(len(mine)), 1))

    def run(self, rounds: int) -> dict[str, int]:
        got = dict.fromkeys(self.sizes, 0)
        for _ in range(rounds):
            for user, n in self._round():
                size = self.sizes[user][n]
                got[user] += size
                self.users.accounts[user].charge(size, 0)
                self.jobs[user].accounts[n].charge(size, 0)
            self.users.settle(self.gpus)
        return got

    def _round(self) -> list[tuple[str, int]]:
        entrants = [
            Entrant((user, n), user, size, 1, (n,), self.jobs[user].accounts[n].value)
            for user, mine in self.sizes.items()
            for n, size in enumerate(mine)
        ]
        users = {
            name: UserPass(account.value, account.tickets) for name, account in self.users.accounts.items()
        }
        return run_round(entrants, users, Pool(self.gpus), 1)  # type: ignore[return-value]


def test_the_unit_of_pass_is_work_over_tickets() -> None:
    node = slicer_of(1, [a_gang(1, "ada", (0,), 4)]).run(1)
    users, jobs = node.local.passes()
    assert users["ada"] == jobs[1] == SECOND_NS * STRIDE1 // 4
    assert JobKey(1, 0) in node.rounds[0]
