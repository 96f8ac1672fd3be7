"""Classes of gangs, whatever they are: guaranteed ones run as if there were no others."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.engine.invariants import guaranteed_go_first, round_is_sound
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.slicing.groups import SPARE
from gandiva_slurm.slicing.local import Gang, LocalStride
from tests.builders import SECOND_NS, TICKET, Slicer, a_gang

GPUS = 4
gang = st.tuples(
    st.sampled_from("abc"),
    st.sets(st.integers(0, GPUS - 1), min_size=1, max_size=3).map(lambda found: tuple(sorted(found))),
    st.integers(1, 9 * TICKET),
    st.booleans(),
)
gangs = st.lists(gang, min_size=1, max_size=9).map(
    lambda rows: [
        replace(a_gang(number, user, gpus, tickets), is_opportunistic=is_spare)
        for number, (user, gpus, tickets, is_spare) in enumerate(rows)
    ]
)


@settings(max_examples=150)
@given(gangs, st.data())
def test_no_guaranteed_gang_that_could_run_waits_for_an_opportunistic_one(
    residents: list[Gang], data: st.DataObject
) -> None:
    local = LocalStride(GPUS, SECOND_NS)
    local.set_gangs(residents)
    everybody = [gang.key for gang in residents]
    some = st.sets(st.sampled_from(everybody), max_size=3)
    for _ in range(data.draw(st.integers(1, 6))):
        pinned = local.choose(sorted(data.draw(some)), (), ())
        overdue, runnable = data.draw(some), data.draw(some | st.just(set(everybody)))
        chosen = local.choose(sorted(runnable), pinned, sorted(overdue), pinned)
        assert round_is_sound(residents, GPUS, chosen) == []
        assert guaranteed_go_first(residents, runnable, {*pinned, *overdue}, chosen) == []
        busy = {gpu for gang in residents if gang.key in chosen for gpu in gang.gpus}
        idle = [g for g in residents if g.key in runnable - set(chosen) and busy.isdisjoint(g.gpus)]
        assert idle == [], "what the guaranteed leave is not left idle"
        for key in chosen:
            local.charge(key, data.draw(st.integers(1, 3 * SECOND_NS)), 0)
        local.settle()


@settings(max_examples=60)
@given(gangs, st.integers(1, 30))
def test_the_rounds_of_guaranteed_gangs_are_those_they_would_have_alone(
    residents: list[Gang], rounds: int
) -> None:
    alone, together = Slicer(GPUS, yields=True), Slicer(GPUS, yields=True)
    alone.local.set_gangs([gang for gang in residents if not gang.is_opportunistic])
    together.local.set_gangs(residents)
    alone.run(rounds)
    together.run(rounds)
    spare = {gang.key for gang in residents if gang.is_opportunistic}
    assert [[key for key in chosen if key not in spare] for chosen in together.rounds] == [
        list(chosen) for chosen in alone.rounds
    ]
    assert together.local.passes() == alone.local.passes()
    again = LocalStride.from_json(together.local.to_json())
    assert again.passes(SPARE) == together.local.passes(SPARE)
    everybody = [JobKey(gang.key.job_id, 0) for gang in residents]
    assert again.choose(everybody, (), ()) == together.local.choose(everybody, (), ())
