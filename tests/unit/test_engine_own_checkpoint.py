"""engine.moving: a job that saves itself without its ranks, by its own newest file or upon its own signal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.controller.books import moves_among
from gandiva_slurm.engine.lifecycle import moving, own_files, waiting
from gandiva_slurm.engine.lifecycle.moves_told import told_way
from gandiva_slurm.engine.lifecycle.moving import begin_move, moves_by, watch_moves, why_bound
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Requeue, Signal
from gandiva_slurm.model.measured import NO_FILE
from gandiva_slurm.wire import page
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

TARGET = {"n2": (1,)}
SPAN_TARGET = {"n3": (1,), "n4": (0,)}
SIGNAL, TO_BATCH = "signal:USR1@20", "signal:B:TERM@20"


def leaving(checkpoint: str, is_attached: bool = False) -> FakeWorld:
    """A world in which job 1 has just been told to leave."""
    world = FakeWorld({"n1": 2, "n2": 2})
    world.submit(checkpoint=checkpoint)
    if not is_attached:
        world.rigid.add(1)
    world.run(5)
    assert world.engine.jobs[1].nodes == ("n1",)
    at = Cycle(world.engine.state, world.settings, world.now_ns)
    begin_move(at, world.engine.jobs[1], TARGET, "n2 is empty")
    return world


def kinds(actions: list[object]) -> list[str]:
    """The signals and requeues among actions."""
    return [type(action).__name__ for action in actions if isinstance(action, Signal | Requeue)]


def codes(world: FakeWorld) -> list[str]:
    """The reasons in its story."""
    return [line.code for line in world.engine.jobs[1].story]


def test_one_that_goes_on_from_its_own_file_is_requeued_at_once() -> None:
    world = leaving("self")
    assert kinds(world.run(30)) == ["Requeue"]
    record = world.engine.jobs[1]
    assert (record.state, record.places, record.travels.is_moving) == (states.RUNNING, TARGET, False)
    assert "GoesBack" in codes(world) and record.travels.cost_ns > 0
    assert kinds(world.run(120)) == []


def leaving_span(checkpoint: str) -> FakeWorld:
    """A world in which job 1, of two nodes, has just been told to leave for two others."""
    world = FakeWorld({f"n{n}": 2 for n in range(1, 5)})
    world.submit(gpus=2, span=2, checkpoint=checkpoint)
    world.rigid.add(1)
    world.run(5)
    record = world.engine.jobs[1]
    assert moves_by(world.engine.state, record) == record.options.saves_by
    at = Cycle(world.engine.state, world.settings, world.now_ns)
    assert not why_bound(at, record)
    begin_move(at, record, SPAN_TARGET, "they are empty")
    return world


@pytest.mark.parametrize(
    ("age_s", "ran_s", "why"),
    [
        (None, 7200, ""),
        (40, 7200, ""),
        (399, 7200, ""),
        (600, 7200, "it would do 600 s of 7200 s again: its newest file in /out is 600 s old"),
        (99_999, 50, ""),
        (99_999, 90, "it would do 90 s of 90 s again: its newest file in /out is 99999 s old"),
        ("none", 50, ""),
        ("none", 7200, "it would do 7200 s of 7200 s again: there is no whole file in /out"),
    ],
)
def test_by_the_age_of_its_newest_file_it_is_moved_or_not(
    age_s: int | str | None, ran_s: int, why: str
) -> None:
    """A twentieth of what it has run, or a minute, may be done again; where nobody knows, it is moved."""
    world = FakeWorld({"n1": 2})
    world.submit(checkpoint="self:/out")
    world.rigid.add(1)
    world.run(5)
    state, record = world.engine.state, world.engine.jobs[1]
    told = {None: 0, "none": NO_FILE}
    saved_s = told[age_s] if age_s in told else world.now_ns // SECOND_NS - int(age_s or 0)
    at = ("n1", record.key)
    measured = replace(state.sightings[at].measured, saved_s=saved_s)
    state.sightings[at] = replace(state.sightings[at], measured=measured, held_ns=ran_s * SECOND_NS)
    assert moves_by(state, record) == "self"
    cycle = Cycle(state, world.settings, world.now_ns)
    assert why_bound(cycle, record) == why
    (line,) = own_files.told(state, record, world.now_ns)
    assert line == (why.partition("again: ")[2] or line) and "/out" in line
    begin_move(cycle, record, {"n1": (1,)}, "it is empty")
    watch_moves(cycle)
    gone = next(text.text for text in record.story if text.code == "GoesBack")
    assert ("file;" in gone) == (age_s in told)


def test_one_that_its_ranks_save_loses_nothing_however_old_its_own_file_is() -> None:
    world = FakeWorld({"n1": 1})
    world.submit(checkpoint="self:/out")
    world.saved_s[1] = NO_FILE
    world.run(5000, 10)
    at = Cycle(world.engine.state, world.settings, world.now_ns)
    assert own_files.too_dear(world.engine.state, world.engine.jobs[1], world.now_ns)
    assert why_bound(at, world.engine.jobs[1]) == ""


def test_the_words_for_no_file_are_one() -> None:
    assert NO_FILE == page.NO_FILE


def test_of_several_nodes_it_is_moved_by_its_own_file() -> None:
    """Nodes hear nothing of it: there is nothing to save."""
    world = leaving_span("self")
    record = world.engine.jobs[1]
    world.refuse_requeues = True
    assert kinds(world.cycle()) == ["Requeue"]
    plans = [place for name in record.nodes for place in world.engine.plan_jobs(name)]
    assert [place.is_leaving for place in plans] == [False, False]
    world.refuse_requeues = False
    assert kinds(world.run(30)) == ["Requeue"]
    assert (record.places, record.job.restart) == (SPAN_TARGET, 1)
    assert kinds(world.run(120)) == []


def test_one_that_saves_itself_upon_its_signal_and_lives_on_is_requeued_when_its_file_is_whole() -> None:
    """Slurm's own requeue would have come from the job; here nobody else asks for it."""
    world = leaving(f"{SIGNAL}:/out")
    old_s = world.now_ns // SECOND_NS - 5
    world.saved_s[1] = old_s
    assert kinds(world.run(6)) == ["Signal"], "the file is of before the signal"
    world.saved_s[1] = world.now_ns // SECOND_NS - 1
    assert kinds(world.run(30)) == ["Requeue"]
    record = world.engine.jobs[1]
    assert (record.state, record.places, record.job.restart) == (states.RUNNING, TARGET, 1)
    assert codes(world)[3:6] == ["Leaving", "Signalled", "Saved"]


def test_of_several_nodes_it_is_signalled_when_all_keep_its_turn() -> None:
    """One signal, which Slurm sends to all nodes; then it is placed anew as one."""
    world = leaving_span(SIGNAL)
    world.on_signal = world.requeue
    world.mute = {"n2"}
    assert kinds(world.run(5)) == []
    world.mute = set()
    assert kinds(world.run(30)) == ["Signal"]
    record = world.engine.jobs[1]
    assert (record.state, record.places, world.signals) == (states.RUNNING, SPAN_TARGET, [(1, "USR1")])
    assert kinds(world.run(120)) == []


@pytest.mark.parametrize("checkpoint", ("self", SIGNAL))
def test_an_elastic_one_is_moved_at_its_size(checkpoint: str) -> None:
    """By how many ranks its own checkpoint can be loaded nobody knows."""
    world = FakeWorld({"n1": 4, "n2": 4})
    world.submit(gpus=2, elastic="1-4", checkpoint=checkpoint)
    world.rigid.add(1)
    world.on_signal = world.requeue
    assert kinds(world.run(4000, 10)) == []
    record = world.engine.jobs[1]
    assert record.places == {"n1": (0, 1)}
    at = Cycle(world.engine.state, world.settings, world.now_ns)
    begin_move(at, record, {"n2": (1, 2)}, "n2 is empty")
    world.run(30)
    assert record.places == {"n2": (1, 2)}
    world.requeue(1)
    world.run(30)
    assert record.job.restart == 2 and len(*record.places.values()) == 2


@pytest.mark.parametrize("framework", ("", "lightning"))
def test_one_that_its_ranks_save_moves_by_their_frameworks_name(framework: str) -> None:
    world = FakeWorld({"n1": 2})
    world.submit(checkpoint="self")
    world.run(5)
    state, record = world.engine.state, world.engine.jobs[1]
    assert moves_by(state, record) == "attached"
    at = ("n1", record.key)
    measured = replace(state.sightings[at].measured, framework=framework)
    state.sightings[at] = replace(state.sightings[at], measured=measured)
    assert moves_by(state, record) == (framework or "attached")
    world.rigid.add(1)
    world.run(2)
    assert moves_by(state, record) == "self"


def test_one_that_requeues_itself_upon_its_signal_goes_on_on_its_target() -> None:
    world = leaving(SIGNAL)
    world.on_signal = world.requeue
    assert kinds(world.run(30)) == ["Signal"]
    record = world.engine.jobs[1]
    assert (record.state, record.places, world.signals) == (states.RUNNING, TARGET, [(1, "USR1")])
    assert codes(world)[3:7] == ["Leaving", "Signalled", "MovedOut", "Starting"]


@pytest.mark.parametrize(
    ("checkpoint", "does", "want"),
    [
        (SIGNAL, "requeues itself", [("signal", "1.0")]),
        (SIGNAL, "fails", [("signal", "1.0")]),
        (SIGNAL, "stays", []),
        ("self", "", [("self", "1.0")]),
    ],
)
def test_a_move_is_told_for_the_accounts_once(
    checkpoint: str, does: str, want: list[tuple[str, str]]
) -> None:
    world = leaving(checkpoint)
    world.remembers_failed = True
    ways = {"requeues itself": world.requeue, "fails": lambda job_id: world.finish(job_id, "FAILED")}
    world.on_signal = ways.get(does, world.on_signal)
    actions = world.run(60)
    assert [(by, str(key)) for key, by in moves_among(actions)] == want


def test_it_is_signalled_when_its_node_says_that_it_keeps_its_turn() -> None:
    world = leaving(SIGNAL)
    world.mute = {"n1"}
    assert kinds(world.run(5)) == []
    world.mute = set()
    assert kinds(world.run(3)) == ["Signal"]
    (place,) = world.engine.plan_jobs("n1")
    assert (place.is_leaving, place.own_save_s) == (True, 20)


def test_one_that_ends_non_zero_upon_its_signal_is_requeued() -> None:
    world = leaving(TO_BATCH)
    world.remembers_failed = True
    world.on_signal = lambda job_id: world.finish(job_id, "FAILED")
    assert kinds(world.run(30)) == ["Signal", "Requeue"]
    record = world.engine.jobs[1]
    assert (record.state, record.places, record.job.restart) == (states.RUNNING, TARGET, 1)


@pytest.mark.parametrize("lost", ({"n2"}, {"n1", "n2"}))
def test_one_that_ends_non_zero_upon_its_signal_while_nodes_are_down_is_requeued(lost: set[str]) -> None:
    """For moments, behind a start of slurmctld, all nodes are down: it has not ended for good."""
    world = leaving(TO_BATCH)
    world.remembers_failed = True

    def end(job_id: int) -> None:
        world.finish(job_id, "FAILED")
        world.down |= lost

    world.on_signal = end
    assert kinds(world.run(6)) == ["Signal", "Requeue"]
    world.down.clear()
    world.run(60)
    record = world.engine.jobs[1]
    assert (record.state, record.job.restart, world.signals) == (states.RUNNING, 1, [(1, "TERM")])


def test_one_that_ends_upon_its_signal_when_its_virtual_cluster_goes_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gandiva.yaml has it no more, for a moment or for good: the job has not ended for good."""
    world = leaving(TO_BATCH)
    world.remembers_failed = True

    def end(job_id: int) -> None:
        world.finish(job_id, "FAILED")
        for module in (moving, waiting):
            monkeypatch.setattr(module, "lacks_vc", lambda at, record: True)

    world.on_signal = end
    assert kinds(world.run(60)) == ["Signal", "Requeue"]
    record = world.engine.jobs[1]
    assert (record.state, record.reason.code) == (states.HELD, "NoSuchVc")
    monkeypatch.undo()
    world.run(60)
    assert (record.state, record.job.restart, world.signals) == (states.RUNNING, 1, [(1, "TERM")])


@pytest.mark.parametrize("lost", ({"n2"}, {"n1", "n2"}))
def test_one_that_saves_itself_while_nodes_are_down_is_signalled_once(lost: set[str]) -> None:
    world = leaving(SIGNAL)
    world.on_signal = lambda job_id: world.down.update(lost)
    assert kinds(world.run(6)) == ["Signal"]
    world.down.clear()
    world.requeue(1)
    world.run(60)
    record = world.engine.jobs[1]
    assert (record.state, record.places, world.signals) == (states.RUNNING, TARGET, [(1, "USR1")])
    assert "TargetLost" not in codes(world)


@pytest.mark.parametrize("state", ("COMPLETED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"))
def test_one_that_ends_otherwise_has_ended(state: str) -> None:
    world = leaving(SIGNAL)
    world.on_signal = lambda job_id: world.finish(job_id, state)
    assert kinds(world.run(60)) == ["Signal"]
    assert world.state_of(1) == states.ENDED


def test_one_that_failed_before_its_signal_has_ended() -> None:
    world = leaving(SIGNAL)
    world.finish(1, "FAILED")
    assert kinds(world.run(30)) == []
    assert world.state_of(1) == states.ENDED


def test_one_that_failed_and_that_slurm_forgets_has_ended() -> None:
    world = leaving(SIGNAL)
    world.on_signal = lambda job_id: world.finish(job_id, "FAILED")
    world.run(120)
    assert world.state_of(1) == states.ENDED


def test_it_has_no_longer_than_the_site_gives_a_move() -> None:
    """Not parked for an hour, as `signal:USR1@3600` asks, a job would keep its GPU from others."""
    world = leaving("signal:USR1@3600")
    world.run(3)
    (place,) = world.engine.plan_jobs("n1")
    most_s = world.engine.settings.move_deadline_ns // SECOND_NS
    assert place.own_save_s == most_s < 3600
    world.run(most_s + 30)
    record = world.engine.jobs[1]
    assert (record.state, len(world.signals)) == (states.RUNNING, 1)
    told = next(line.text for line in record.story if line.code == "MoveFailed")
    assert f"within {most_s} s of SIGUSR1" in told


@pytest.mark.parametrize("refuses", (False, True))
def test_one_that_does_nothing_stays_and_is_not_asked_again(refuses: bool) -> None:
    world = leaving(SIGNAL)
    world.refuse_signals = refuses
    world.run(40)
    record = world.engine.jobs[1]
    assert (record.state, record.places, len(world.signals)) == (states.RUNNING, {"n1": (0,)}, 1)
    line = next(line for line in record.story if line.code == "MoveFailed")
    why = "SIGUSR1 could not be sent" if refuses else "it neither requeued itself nor ended within 20 s of"
    assert why in line.text
    assert record.travels.wait_until_ns - world.now_ns > 1700 * SECOND_NS
    world.run(600)
    assert len(world.signals) == 1


@pytest.mark.parametrize("after_s", range(6))
def test_a_controller_that_dies_on_the_way_signals_once(after_s: int) -> None:
    world = leaving(SIGNAL)
    world.on_signal = world.requeue
    world.run(after_s)
    world.restart_controller(keep_journal=True)
    world.run(60)
    assert world.signals == [(1, "USR1")]
    assert world.engine.jobs[1].places == TARGET


def test_one_that_requeues_itself_twice_is_one_job() -> None:
    world = leaving(SIGNAL)
    world.on_signal = lambda job_id: [world.requeue(job_id), world.requeue(job_id)]
    world.run(60)
    record = world.engine.jobs[1]
    assert (record.state, record.job.restart, world.signals) == (states.RUNNING, 2, [(1, "USR1")])


def test_what_its_ranks_save_goes_before_its_own_checkpoint() -> None:
    world = leaving(SIGNAL, is_attached=True)
    assert kinds(world.run(30)) == ["Requeue"]
    assert world.signals == [] and "Saved" in codes(world)


def test_how_it_moves_in_a_word_and_a_sentence() -> None:
    words = {}
    for checkpoint in ("auto", "none", "self", "submitit:USR2@90", TO_BATCH):
        world = FakeWorld({"n1": 1})
        world.submit(checkpoint=checkpoint)
        world.rigid.add(1)
        world.run(5)
        record = world.engine.jobs[1]
        words[moves_by(world.engine.state, record)] = told_way(world.engine.settings, record)
        never = replace(record.options, migrate="never")
        record.job = replace(record.job, options=never)
        assert moves_by(world.engine.state, record) == ""
    assert words.keys() == {"", "self", "submitit", "signal"} and not words[""]
    assert words["signal"].endswith("upon SIGTERM to its batch shell it saves itself (signal), within 20 s")
    assert words["submitit"].endswith("upon SIGUSR2 to its steps it saves itself (submitit), within 90 s")
