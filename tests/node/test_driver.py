"""A job without a client whose memory goes with a played driver, while gandivad is killed."""

import itertools

import pytest

from gandiva_slurm.node import procs
from tests.fake_driver import CHECKPOINTED, FakeDriver
from tests.node.harness import HERE, a_planned_job, tree

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]
BLIND = [*LOOP, "none"]
CYCLE = ["Lock", "Checkpoint", "Restore", "Unlock"]


@pytest.fixture
def fake(tmp_path, monkeypatch):
    made = FakeDriver(tmp_path / "fake")
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


def test_memory_goes_before_others_come_and_is_back_after_a_kill(make_node, fake):
    node = make_node(gpus=1, quantum_s=60, client_wait_ns=300_000_000, driver_checkpoint=True)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    step = node.start_job(1, BLIND)
    node.wait(lambda: (node.out / "steps.1.0").exists())
    (pid,) = [pid for pid in tree(step.pid) if "none" in procs.read_text(pid, "cmdline")]
    fake.use(pid, 1 << 30)
    node.start_job(2, LOOP)
    node.wait(lambda: node.states()[2] == "SUSPENDED")
    node.give_turn(2)
    names = [event["event"] for event in node.events() if event.get("job") == 1 or event["event"] == "grant"]
    assert names.index("driver_out") < names.index("freeze") < names.index("parked")
    node.kill9()
    assert fake.state(pid) == CHECKPOINTED
    node.start()
    node.set_quantum(0.5)
    back = node.wait(lambda: node.events("driver_back", 1))[-1]
    assert not back["is_out"] and not back["why"]
    node.wait(lambda: node.resident(1).suspends >= 3)
    assert fake.calls()[:8] == list(itertools.islice(itertools.cycle(CYCLE), 8))
    assert [event["why"] for event in node.events("driver_out", 1)][:2] == ["", ""]
