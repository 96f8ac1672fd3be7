"""Which devices are a node's GPUs, and what is closed to whom."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from gandiva_slurm.model.errors import PeerBusy
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import bpf, cgroups, devices
from gandiva_slurm.node.bpf import Device
from gandiva_slurm.node.devices import Devices

#: As NVIDIA's driver tells of a GPU.
INFORMATION = """Model: \t\t NVIDIA A100-SXM4-40GB
IRQ:   \t\t 128
GPU UUID: \t GPU-00000000-0000-0000-0000-000000000000
Bus Location: \t {address}
Device Minor: \t {minor}
GPU Excluded:\t No
"""


def a_job(*gpus: int):
    return SimpleNamespace(
        key=JobKey(7, 0), gpus=gpus, is_confined=None, processes=SimpleNamespace(cgroups=set())
    )


@pytest.fixture
def closed(monkeypatch) -> list[Device]:
    """What was closed to the job; every process enters every group."""
    found: list[Device] = []
    monkeypatch.setattr(cgroups, "enter", lambda group, pid: True)
    monkeypatch.setattr(devices, "of_driver", lambda: tuple(Device(195, gpu) for gpu in range(4)))
    monkeypatch.setattr(devices, "_close", lambda group, others: found.extend(others) or -1)
    return found


def test_gpus_are_counted_in_pci_order_whatever_their_files_numbers_are(tmp_path):
    for address, minor in (("0000:86:00.0", 0), ("0000:3b:00.0", 3), ("0001:01:00.0", 1)):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(INFORMATION.format(address=address, minor=minor))
    assert devices.of_driver(tmp_path) == (Device(195, 3), Device(195, 0), Device(195, 1))


def test_a_gpu_without_a_number_leaves_none_known(tmp_path):
    (tmp_path / "0000:86:00.0").mkdir()
    (tmp_path / "0000:86:00.0" / "information").write_text("Model: \t\t Unknown\n")
    assert devices.of_driver(tmp_path) == ()


def test_without_a_driver_there_are_none(tmp_path):
    assert devices.of_driver(tmp_path / "gpus") == ()


def test_plain_files_are_no_gpus(tmp_path):
    (tmp_path / "gpu0").touch()
    assert devices.of_files(f"{tmp_path}/gpu") == ()
    assert devices.of_files(f"{tmp_path}/none") == ()


def test_all_but_its_own_are_closed_once(tmp_path, closed):
    job, node = a_job(1, 3), Devices("auto", tmp_path, "n1-x")
    node.confine(job, [100])
    node.confine(job, [101])
    assert (job.is_confined, closed) == (True, [Device(195, 0), Device(195, 2)])
    node.forget(job)
    assert not (tmp_path / "gandiva" / "n1-x").exists()


def test_a_task_that_cannot_be_confined_as_its_job_is_does_not_start(tmp_path, closed, monkeypatch):
    """Its number of a GPU would be another GPU's."""
    job, node = a_job(1), Devices("auto", tmp_path, "n1-x")
    node.confine(job, [100])
    monkeypatch.setattr(cgroups, "enter", lambda group, pid: False)
    with pytest.raises(PeerBusy):
        node.confine(job, [101])


def test_what_was_not_had_for_the_first_task_is_not_tried_for_others(tmp_path, closed, monkeypatch):
    job, node = a_job(1), Devices("auto", tmp_path, "n1-x")
    monkeypatch.setattr(devices, "of_driver", lambda: ())
    node.confine(job, [100])
    monkeypatch.undo()
    node.confine(job, [101])
    assert (job.is_confined, closed) == (False, [])


@pytest.mark.parametrize("fault", ["more GPUs than devices", "the kernel refuses", "no group"])
def test_where_it_cannot_be_had_that_is_said_once(tmp_path, closed, monkeypatch, caplog, fault):
    if fault == "the kernel refuses":

        def refuse(group, others):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(devices, "_close", refuse)
    node = Devices("auto", None if fault == "no group" else tmp_path, "n1-x")
    for _ in range(2):
        job = a_job(9 if fault == "more GPUs than devices" else 1)
        node.confine(job, [100])
        assert job.is_confined is False
    assert len(caplog.messages) == 1 and "docs/setup.md" in caplog.text


def test_none_leaves_slurms_own_ways_alone(tmp_path, closed):
    job = a_job(1)
    Devices("none", tmp_path, "n1-x").confine(job, [100])
    assert (job.is_confined, closed) == (False, [])


def test_slurms_own_group_is_taken_where_it_has_the_whole_job(tmp_path, closed):
    (tmp_path / "cgroup.controllers").touch()
    slurms = tmp_path / "system.slice/slurmstepd.scope/job_7"
    slurms.mkdir(parents=True)
    (slurms / "cgroup.freeze").touch()
    job = a_job(1)
    job.processes.cgroups = {str(slurms), "/sys/fs/cgroup/memory/slurm/uid_1/job_7"}
    Devices("auto", tmp_path, "n1-x").confine(job, [100])
    assert job.is_confined and not (tmp_path / "gandiva").exists()


def test_in_a_group_that_outlives_an_incarnation_the_next_has_its_own_gpus(tmp_path, closed, monkeypatch):
    """A slurmstepd that was killed leaves it. The steps of one incarnation are closed once."""
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "job_7").mkdir()
    (tmp_path / "job_7" / "cgroup.freeze").touch()
    opened, node = [], Devices("auto", tmp_path, "n1-x")
    monkeypatch.setattr(devices, "_reopen", lambda group, before, now: opened.extend(before.closed))
    for gpu in (1, 1, 2):
        job = a_job(gpu)
        job.processes.cgroups = {str(tmp_path / "job_7")}
        node.confine(job, [100])
        node.forget(job)
    first, last = ([Device(195, other) for other in range(4) if other != gpu] for gpu in (1, 2))
    assert (closed, opened) == ([*first, *last], first)


#: struct bpf_insn, and the operations that programs here have (linux/bpf.h).
INSTRUCTION = struct.Struct("=BBhi")
LOAD, AND, IF_EQUAL, IF_OTHER, MOVE, RETURN = 0x61, 0x54, 0x15, 0x55, 0xB7, 0x95
CHARACTER, BLOCK, ANY_ACCESS = 2, 1, 7 << 16


def run(code: bytes, kind: int, device: Device) -> tuple[int, set[int]]:
    """What a program answers of a device, and which of its instructions it came to."""
    steps = list(INSTRUCTION.iter_unpack(code))
    context = {0: kind | ANY_ACCESS, 4: device.major, 8: device.minor}
    registers, at, seen = dict.fromkeys(range(5), 0), 0, set()
    while steps[at][0] != RETURN:
        seen.add(at)
        operation, target, offset, constant = steps[at]
        if operation == LOAD:
            registers[target & 15] = context[offset]
        elif operation == AND:
            registers[target & 15] &= constant
        elif operation == MOVE:
            registers[target] = constant
        elif (registers[target] == constant) == (operation == IF_EQUAL):
            at += offset
        at += 1
    return registers[0], seen | {at}


@pytest.mark.parametrize("gpus", [(), (0,), (0, 2), (0, 1, 2, 3)], ids=str)
def test_a_program_refuses_those_alone_and_no_instruction_of_it_is_unreachable(gpus):
    """The kernel takes no program with an instruction that nothing leads to."""
    closed = [Device(195, gpu) for gpu in gpus]
    code, seen = bpf.program(closed), set()
    for device in [*(Device(195, gpu) for gpu in range(5)), Device(195, 254), Device(1, 0)]:
        for kind in (CHARACTER, BLOCK):
            allowed, came = run(code, kind, device)
            assert allowed == (not (kind == CHARACTER and device in closed)), (kind, device)
            seen |= came
    assert seen == set(range(len(code) // INSTRUCTION.size))
