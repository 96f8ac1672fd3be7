"""What a node cannot do that it should: found on the node, told with its report, said by `gandiva check`."""

import asyncio
import os
import types

import pytest

from gandiva_slurm.cli import check
from gandiva_slurm.controller import views
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING
from gandiva_slurm.node import bpf, faults
from gandiva_slurm.node.devices import Device, Devices
from gandiva_slurm.node.isolation import Isolation
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.ranks import RankSet
from gandiva_slurm.node.report import make_report
from gandiva_slurm.wire.messages import NodeReport, decode_report, encode
from tests.node_bench import Bench


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path, 2)
    object.__setattr__(made.node.settings, "hierarchy", tmp_path)
    return made


def resident(bench, job_id=7, **fields):
    key = JobKey(job_id, 0)
    processes = JobProcesses(key, os.getuid(), "n1", set(), set())
    job = Resident(key, "user1", (0,), 1, 0, processes, 0, state=RUNNING, **fields)
    bench.node.residents[key] = job
    return job


def told(bench):
    """What a controller hears of it, over the wire."""
    return dict(decode_report(encode(make_report(bench.node))).faults)


def test_a_node_that_can_do_all_tells_of_nothing(bench):
    assert told(bench) == {}


def test_gpus_that_cannot_be_closed_are_told_until_they_can(bench, tmp_path, monkeypatch):
    """The kernel's word, and no job's number: it goes to anyone who may ask about nodes."""

    def refuse(group, devices):
        raise PermissionError(1, "Operation not permitted")

    devices = bench.node.devices = Devices("auto", tmp_path, "n1")
    monkeypatch.setattr(Devices, "_cards", lambda self: (Device(195, 0), Device(195, 1)))
    monkeypatch.setattr(Devices, "_enter", lambda self, group, pids: group.mkdir(parents=True) is None)
    monkeypatch.setattr(bpf, "close", refuse)
    devices.confine(resident(bench, 4711), [])
    assert told(bench) == {faults.DEVICES: "Operation not permitted"}
    monkeypatch.setattr(bpf, "close", lambda group, devices: -1)
    devices.confine(resident(bench, 8), [])
    assert told(bench) == {}


def test_a_site_that_asks_for_no_closed_gpus_is_told_of_none(bench, tmp_path):
    bench.node.devices = Devices("none", tmp_path, "n1")
    bench.node.devices.confine(resident(bench), [])
    assert told(bench) == {}


def test_jobs_in_no_group_are_counted_and_trusted_ones_are_not(bench):
    for number, is_trusted in ((1, False), (2, False), (3, True)):
        resident(bench, number, is_trusted=is_trusted).sets = [RankSet(1, "", {0: types.SimpleNamespace()})]
    assert told_freeze(bench) == "2 of 2 jobs here are in no control group that can be frozen"
    bench.node.residents[JobKey(1, 0)].processes.own = "/sys/fs/cgroup/gandiva/n1/job_1_0"
    assert told_freeze(bench) == "1 of 2 jobs here are in no control group that can be frozen"


def told_freeze(bench):
    return dict(faults.faults_of(bench.node)).get(faults.FREEZE, "")


def test_a_node_without_control_groups_tells_before_its_first_job(bench):
    object.__setattr__(bench.node.settings, "hierarchy", None)
    assert told(bench) == {faults.FREEZE: "no file system of control groups is mounted here"}


class Slurm:
    """A slurmctld that answers, does not, or cannot be asked."""

    def __init__(self, *answers):
        self.answers = [*answers]

    async def ping(self):
        return self.answers.pop(0)


def isolation(bench, silence_s, *answers):
    object.__setattr__(bench.node.settings, "isolation_ns", round(silence_s * 1e9))
    return Isolation(bench.node, None, None, Slurm(*answers), look_s=0.001)


@pytest.mark.parametrize(("is_up", "is_told"), [(None, True), (False, False), (True, False)])
def test_a_slurmctld_that_is_away_is_no_fault_of_the_node(bench, is_up, is_told):
    asyncio.run(isolation(bench, 60, is_up)._ping())
    assert told(bench) == ({faults.SLURMCTLD: "scontrol ping has no answer"} if is_told else {})


def test_it_is_over_when_slurmctld_can_be_asked_again(bench):
    look = isolation(bench, 60, None, True)
    asyncio.run(look._ping())
    asyncio.run(look._ping())
    assert told(bench) == {}


@pytest.mark.parametrize(("silence_s", "is_asked"), [(60, True), (0, False)])
def test_it_is_tried_before_it_is_needed_where_the_site_asks_for_isolation(bench, silence_s, is_asked):
    look = isolation(bench, silence_s, None)

    async def look_once():
        task = asyncio.create_task(look.ask_for_ever(None))
        await look._has_asked.wait()
        task.cancel()

    asyncio.run(look_once())
    assert bool(told(bench)) == is_asked


def report(*found):
    return NodeReport("n1", "boot", 0, 0, 0, 2, (), (), (), faults=found)


@pytest.mark.parametrize("bad", [[["devices"]], [["devices", 3]], ["devices"], {"devices": "x"}, 7])
def test_faults_that_are_none_are_refused_in_a_sentence(bad):
    text = encode(report()).replace(b'"faults":[]', b'"faults":' + repr(bad).replace("'", '"').encode())
    with pytest.raises(PeerError, match="faults"):
        decode_report(text)


def test_a_node_of_an_older_release_tells_of_none():
    assert decode_report(encode(report()).replace(b',"faults":[]', b"")).faults == ()


@pytest.mark.parametrize(
    ("what", "line"),
    [
        (faults.DEVICES, "it cannot close others' GPUs to a job: why; give it CAP_BPF"),
        (faults.FREEZE, "it cannot freeze parked jobs whole, and stops their processes by signals: why; "),
        (faults.SLURMCTLD, "it cannot ask slurmctld, so that `isolation` never acts on it: why; see that"),
        ("of tomorrow", "something is wrong there: why; see gandivad's log"),
    ],
)
def test_check_names_the_node_and_what_to_do(monkeypatch, what, line):
    row = {"node": "n3", "state": "up", "reason": "", "faults": [{"what": what, "why": "why"}]}
    asked = {"ping": {"slurm_error": "", "state_error": ""}, "nodes": [row]}
    monkeypatch.setattr(check, "query", lambda config, ask, args: asked[ask])
    (finding,) = check._daemons(None, {})
    assert finding.level == "warning" and finding.text.startswith(f"gandivad on n3: {line}")


def test_the_controller_passes_on_what_the_node_has_told(monkeypatch):
    """A node that lies has its sentence shown, and nothing more."""
    node = types.SimpleNamespace(gpu_type="v100", slots=4, state=frozenset({"IDLE"}), reason="")
    record = types.SimpleNamespace(node=node, gpus=2, is_down=False, is_open=True)
    engine = types.SimpleNamespace(state=types.SimpleNamespace(packs=[]))
    world = types.SimpleNamespace(links={}, reports={"n1": report(("freeze", "why"))}, engine=engine)
    world.cycle = types.SimpleNamespace(state=types.SimpleNamespace(nodes={}))
    assert views._node_row(world, "n1", record)["faults"] == [{"what": "freeze", "why": "why"}]
