"""What the engine heard and answered is recorded, bounded, and told again with the same answers."""

import json
import os
import sqlite3
import subprocess
import sys
import zlib
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gandiva_slurm.accounting.database import open_database
from gandiva_slurm.cli.main import cli
from gandiva_slurm.controller import recorder as recorders
from gandiva_slurm.controller.journal import MIGRATIONS, Journal
from gandiva_slurm.controller.recorder import Recorder
from gandiva_slurm.controller.segments import read_segments
from gandiva_slurm.controller.settings import leader_of
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.replay import engine_of, frame_of, settings_of
from gandiva_slurm.engine.state import codec
from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.model.bounds import Bounds, Reservation
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.model.event import BoundsSeen, CycleTick, JobSeen, NodeSeen
from tests.builders import SECOND_NS, a_job, a_node
from tests.fake_world import FakeWorld, an_engine, as_configured
from tests.replaying import replay_journal
from tests.slow import slow

TICK = CycleTick()
LED = as_configured(EngineSettings())
SOME_BOUNDS = Bounds((("gandiva", 3600),), (Reservation("r", ("n1",), 1, 2),))
T0_NS = 2_000_000 * SECOND_NS


class Life:
    """A controller's life but for everything else: an engine, a recorder, a journal."""

    def __init__(self, path, hours=24.0, mib=256):
        self.part = SimpleNamespace(replay_hours=hours, replay_mib=mib)
        self.path, self.now_ns = path, T0_NS
        self.begin()

    def begin(self):
        self.journal = Journal.open(self.path)
        state = self.journal.engine_state()
        self.engine = an_engine() if state is None else Engine.from_json(EngineSettings(), state, LED)
        self.recorder = Recorder(lambda: SimpleNamespace(controller=self.part))

    def restart(self):
        self.journal.close()
        self.begin()

    def cycle(self, *events, seconds=1, is_kept=True):
        self.now_ns += round(seconds * SECOND_NS)
        actions = self.recorder.handle(self.engine, [*events, TICK], self.now_ns)
        if is_kept:
            self.journal.write(codec.dumps(self.engine.to_json()), actions, self.now_ns, self.recorder.batch)
        return actions

    def rows(self, query):
        db = sqlite3.connect(self.path)
        try:
            return db.execute(query).fetchall()
        finally:
            db.close()

    def replay(self):
        return replay_journal(self.path)


@pytest.fixture
def life(tmp_path):
    made = Life(tmp_path / "journal.sqlite")
    yield made
    made.journal.close()


def run_some(life, first=1):
    life.cycle(NodeSeen(a_node("n1", 4)))
    for job_id in range(first, first + 6):
        life.cycle(JobSeen(a_job(job_id, gpus=4)))
    for _ in range(5):
        life.cycle(seconds=20)
    life.cycle(JobSeen(a_job(first + 6, gpus=4)))
    return life


def test_a_life_is_decided_again(life):
    tally = run_some(life).replay()
    assert (tally.segments, tally.cycles, tally.different, tally.first) == (1, 13, 0, None)
    assert tally.events == 21 and tally.equal >= 6


def test_a_restart_begins_a_segment_with_the_state_that_was_left(life):
    run_some(life).restart()
    run_some(life, 11)
    assert [why for (why,) in life.rows("SELECT why FROM frames")] == ["anew", "start"]
    assert life.replay().first is None
    life.journal.close()
    db = sqlite3.connect(life.path)
    last = "(SELECT max(cycle) FROM cycles WHERE frame = 1)"
    db.execute(f"DELETE FROM cycles WHERE cycle = {last}")
    db.commit()
    db.close()
    life.begin()
    first = life.replay().first
    assert first is not None and first.cycle == 0 and first.what.startswith("the state: jobs[")


def test_bounds_and_settings_go_with_the_frame(life):
    life.cycle(NodeSeen(a_node("n1", 4)), BoundsSeen(SOME_BOUNDS))
    life.engine.settings = EngineSettings(start_deadline_ns=5 * SECOND_NS)
    run_some(life)
    assert [why for (why,) in life.rows("SELECT why FROM frames")] == ["anew", "next"]
    assert life.replay().first is None
    again = engine_of(frame_of(life.engine), settings_of(life.engine), leader_of)
    assert again.state == life.engine.state and again.settings == life.engine.settings


def test_ticks_that_decide_nothing_are_times_alone(life):
    life.cycle(NodeSeen(a_node("n1", 4)))
    count, size = life.rows("SELECT count(*), sum(length(body)) FROM cycles")[0]
    for _ in range(recorders.MOST_TICKS - 1):
        life.cycle()
    assert life.rows("SELECT count(*) FROM cycles") == [(count,)]
    life.cycle()
    count_after, size_after = life.rows("SELECT count(*), sum(length(body)) FROM cycles")[0]
    assert count_after == count + 1 and size_after - size < 12 * recorders.MOST_TICKS
    for _ in range(10):
        life.cycle()
    life.cycle(JobSeen(a_job(99, gpus=4)))
    tally = life.replay()
    assert tally.cycles == 1 + recorders.MOST_TICKS + 11 and tally.first is None


def test_ticks_before_a_new_frame_belong_to_the_old_segment(life):
    run_some(life)
    life.cycle()
    life.cycle()
    life.cycle(seconds=recorders.LONGEST_NS // SECOND_NS)
    assert [why for (why,) in life.rows("SELECT why FROM frames")] == ["anew", "next"]
    assert [len([*segment.cycles]) for segment in read_segments(life.path)] == [15, 1]
    assert life.replay().first is None


def test_a_cycle_that_was_not_written_begins_anew(life):
    run_some(life)
    life.cycle(JobSeen(a_job(50)), is_kept=False)
    life.cycle(JobSeen(a_job(51)))
    assert [why for (why,) in life.rows("SELECT why FROM frames")] == ["anew", "gap"]
    assert life.replay().first is None


def test_an_engine_that_fails_is_begun_anew(life):
    run_some(life)
    with pytest.raises(KeyError):
        life.recorder.handle(life.engine, [object()], life.now_ns)
    life.engine = Engine.from_json(EngineSettings(), life.journal.engine_state(), LED)
    run_some(life, 11)
    assert [why for (why,) in life.rows("SELECT why FROM frames")] == ["anew", "start"]
    assert life.replay().first is None


def test_old_segments_are_deleted_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(recorders, "LONGEST_NS", 600 * SECOND_NS)
    life = Life(tmp_path / "journal.sqlite", hours=1)
    for n in range(120):
        life.cycle(JobSeen(a_job(n + 1)), seconds=120)
    frames = life.rows("SELECT frame, at_ns FROM frames")
    assert 6 <= len(frames) <= 8 and life.now_ns - frames[0][1] <= 4800 * SECOND_NS
    assert life.rows("SELECT count(*) FROM cycles WHERE frame NOT IN (SELECT frame FROM frames)") == [(0,)]
    assert life.replay().first is None
    life.journal.close()


@slow("12 s; test_old_segments_are_deleted_whole has what the bound does")
def test_the_file_has_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(recorders, "MOST_EVENTS", 200)
    life = Life(tmp_path / "journal.sqlite", mib=1)
    noise = [a_node(f"n{n}", 4, reason=f"{n * 7919 % 104729:x}" * 40) for n in range(600)]
    for n in range(400):
        life.cycle(*(NodeSeen(node) for node in noise[n : n + 150]))
    (frames, engines), (bodies,) = (
        life.rows("SELECT count(*), sum(length(engine)) FROM frames")[0],
        life.rows("SELECT sum(length(body)) FROM cycles")[0],
    )
    assert frames > 2 and engines + bodies < 1.3 * 2**20
    assert life.replay().first is None
    life.journal.close()


def test_nothing_is_kept_when_nothing_is_to_be_recorded(life):
    run_some(life)
    life.part.replay_hours = 0
    life.cycle(JobSeen(a_job(77)))
    assert life.rows("SELECT count(*) FROM frames") == life.rows("SELECT count(*) FROM cycles") == [(0,)]
    life.part.replay_hours = 1
    life.cycle(JobSeen(a_job(78)))
    assert life.replay().first is None and life.replay().cycles == 1


def tamper(life, cycle, change):
    """Change what one cycle has: `change` gets [ticks, [now_ns, events, actions]]."""
    db = sqlite3.connect(life.path)
    (body,) = db.execute("SELECT body FROM cycles WHERE cycle = ?", (cycle,)).fetchone()
    data = json.loads(zlib.decompress(body))
    change(data)
    body = zlib.compress(json.dumps(data).encode())
    db.execute("UPDATE cycles SET body = ? WHERE cycle = ?", (body, cycle))
    db.commit()
    db.close()


def invoke(*args):
    return CliRunner().invoke(cli, ["replay", *map(str, args)], standalone_mode=False)


def test_an_action_that_was_changed_is_found_and_said(life):
    run_some(life)

    def move(data):
        data[1][2][0][3] = [["n2", [0]]]

    tamper(life, 2, move)
    done = invoke(life.path)
    assert done.return_value == 1
    assert "1 segments, 13 cycles" in done.output and "1 different" in done.output
    assert "cycle 2 of its segment, action 1 of the cycle" in done.output
    assert "expected: Start of job 1.0 on n2(0)" in done.output
    assert "got:      Start of job 1.0 on n1(0,1,2,3)" in done.output
    assert "not compared: 11 cycles" in done.output


def test_an_event_that_was_taken_out_is_found(life):
    run_some(life)
    tamper(life, 3, lambda data: data[1][1].pop(0))
    tally = life.replay()
    assert tally.first is not None and (tally.first.cycle, tally.first.got) == (3, "nothing")
    assert tally.first.want.startswith("Note of job 2.0")


def test_an_event_the_engine_chokes_on_is_a_difference(life):
    run_some(life)
    tamper(life, 3, lambda data: data[1][1].__setitem__(0, ["NodeSeen", None]))
    done = invoke(life.path)
    assert isinstance(done.exception, UsageError) and "cannot be read" in str(done.exception)


def test_json_has_the_same(life, tmp_path):
    run_some(life)
    done = invoke(life.path, "--json", "-")
    assert done.return_value == 0 and '"first": null' in done.output and '"cycles": 13' in done.output


def test_state_dir_is_taken_for_its_journal(life, tmp_path):
    run_some(life)
    assert invoke(tmp_path).return_value == 0


def test_a_file_of_another_schema_is_refused(life, tmp_path):
    old = tmp_path / "old.sqlite"
    open_database(old, MIGRATIONS[:1]).close()
    with pytest.raises(UsageError, match=r"a journal of schema 1, .* recorded once"):
        replay_journal(old)
    new = tmp_path / "new.sqlite"
    open_database(new, (*MIGRATIONS, "CREATE TABLE later (x)")).close()
    with pytest.raises(UsageError, match=r"schema 3, .*use the release that wrote it"):
        replay_journal(new)
    run_some(life)
    db = sqlite3.connect(life.path)
    db.execute("UPDATE frames SET form = 9, release = '7.0'")
    db.commit()
    db.close()
    with pytest.raises(UsageError, match=r"recorded by gandiva 7\.0 in form 9"):
        life.replay()


def test_a_policy_that_was_exchanged_and_is_back_begins_a_segment(life):
    """Two reloads between two cycles: its name is the same, what it knew is gone."""
    run_some(life)
    life.engine.lead(as_configured(EngineSettings(), move_ns=SECOND_NS))
    life.engine.lead(LED)
    run_some(life, 11)
    assert [why for (why,) in life.rows("SELECT why FROM frames")] == ["anew", "gap"]
    assert life.replay().first is None


def test_segments_of_an_older_release_are_passed_over(life):
    """A journal keeps them for a day after an upgrade; what came since is replayed."""
    run_some(life)
    db = sqlite3.connect(life.path)
    db.execute("UPDATE frames SET form = 2, release = '0.0'")
    db.commit()
    db.close()
    life.restart()
    run_some(life)
    done = invoke(life.path)
    assert done.return_value == 0, done.output
    assert "1 segments, " in done.output
    assert "passed over: 1 segments of another release's form" in done.output


def test_a_frame_of_another_engine_is_refused(life):
    run_some(life)
    db = sqlite3.connect(life.path)
    (engine,) = db.execute("SELECT engine FROM frames").fetchone()
    other = zlib.compress(zlib.decompress(engine).replace(b'"schema":2', b'"schema":9'))
    db.execute("UPDATE frames SET engine = ?, release = '7.0'", (other,))
    db.commit()
    with pytest.raises(UsageError, match=r"gandiva 7\.0 cannot be read: .*schema 9.*with the release"):
        life.replay()
    db.execute("UPDATE frames SET engine = ?, settings = json_set(settings, '$.later', 1)", (engine,))
    db.commit()
    db.close()
    with pytest.raises(UsageError, match=r"settings later are not known"):
        life.replay()


@pytest.mark.parametrize("seed", ["0", "1"])
def test_another_process_decides_the_same(tmp_path, seed):
    """Nothing may hang on the order of sets, which differs from process to process."""
    led_by = leader_of({"policy": "gandiva_fair", "quantum_ns": 10**9, "restart_ns": 10**9})
    world = FakeWorld({"n1": 2, "n2": 4, "n3": 4}, make_policy=led_by.make, told_of_policy=led_by.told)
    journal = Journal.open(tmp_path / "journal.sqlite")
    recorder = Recorder(lambda: SimpleNamespace(controller=SimpleNamespace(replay_hours=1, replay_mib=9)))

    def handle(engine, events, now_ns):
        actions = recorder.handle(engine, events, now_ns)
        journal.write(codec.dumps(engine.to_json()), actions, now_ns, recorder.batch)
        return actions

    world.handle = handle
    for n in range(18):
        world.submit(f"user{n % 3 + 1}", (1, 2, 4)[n % 3])
        world.submit(f"user{n % 2 + 1}", 4, span=2)
        world.cycle()
    world.lose_node("n2")
    world.run(90)
    world.restore_node("n2")
    for job_id in world.running()[:3]:
        world.finish(job_id)
    world.run(20)
    journal.close()
    code = "from gandiva_slurm.cli.main import main; main()"
    argv = [sys.executable, "-c", code, "replay", str(tmp_path)]
    told = subprocess.run(argv, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "1 segments, 128 cycles" in told.stdout and " 0 different" in told.stdout


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 2000])
def test_what_is_no_journal_is_refused(tmp_path, content):
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"no such file|is it a journal of gandivactld\?"):
        replay_journal(path)


def test_a_journal_of_the_first_schema_goes_on(tmp_path):
    path = tmp_path / "journal.sqlite"
    db = open_database(path, MIGRATIONS[:1])
    db.execute("INSERT INTO epochs (epoch_ns) VALUES (7)")
    engine = an_engine()
    engine.handle([NodeSeen(a_node("n1", 4)), TICK], T0_NS)
    db.execute("INSERT INTO state VALUES (1, 1, ?)", (codec.dumps(engine.to_json()),))
    db.close()
    life = Life(path)
    assert life.journal.begin_epoch(1) == 8 and life.engine.nodes.keys() == {"n1"}
    run_some(life)
    assert life.replay().first is None
    life.journal.close()
