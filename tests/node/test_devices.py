"""A job opens its own GPUs and no others: by itself, by what it starts, and in every step."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import cgroups
from gandiva_slurm.node.devices import Devices
from tests.node.harness import HERE, WITHOUT_GROUPS, NodeHarness, a_planned_job
from tests.node.test_capabilities import as_the_unit_has_it
from tests.skips import NO_ROOT, NO_V1_DEVICES

#: NVIDIA's major number. No driver is behind it here: what may be opened says that.
MAJOR, GPUS = 195, 4
OPENS, CLOSED = errno.ENXIO, errno.EPERM
WAYS = ("itself", "child", "double fork", "clean environment")
#: A node whose kernel has no control groups of version 2 mounted.
OF_VERSION_1 = ["unshare", "-m", "sh", "-c", 'umount -l /sys/fs/cgroup/unified; exec "$@"', "sh"]


@pytest.fixture
def files() -> Iterator[str]:
    """Device files that everybody may open, as /dev/nvidia0 is; how their names begin."""
    if os.geteuid() != 0:
        pytest.skip(NO_ROOT)
    with tempfile.TemporaryDirectory(prefix="gandiva-dev-") as directory:
        Path(directory).chmod(0o755)
        for gpu in range(GPUS):
            path = Path(directory, f"gpu{gpu}")
            os.mknod(path, 0o020666, os.makedev(MAJOR, gpu))
            path.chmod(0o666)
        yield f"{directory}/gpu"


def opened(node: NodeHarness, name: str, ways: tuple[str, ...] = WAYS) -> tuple[set[str], list[int]]:
    """What CUDA_VISIBLE_DEVICES was and which GPUs could be opened, the same in all these ways."""

    def lines() -> list[dict]:
        found = [json.loads(line) for line in (node.out / f"openings.{name}").read_text().splitlines()]
        return found if {line["way"] for line in found} == set(ways) else []

    found = node.wait(lines)
    assert {error for line in found for error in line["errors"]} <= {OPENS, CLOSED}, found
    could = {tuple(gpu for gpu, error in enumerate(line["errors"]) if error == OPENS) for line in found}
    assert len(could) == 1, found
    return {line["visible"] for line in found if line["visible"] is not None}, list(could.pop())


def script(name: str, files: str) -> list[str]:
    return [str(HERE / "scripts/openings.py"), name, files, str(GPUS)]


@pytest.mark.parametrize("around", [[], OF_VERSION_1, as_the_unit_has_it], ids=["v2", "v1", "unit"])
def test_a_job_opens_its_own_gpus_alone(make_node, files, around):
    if around is OF_VERSION_1 and not Path("/sys/fs/cgroup/devices/devices.deny").exists():
        pytest.skip(NO_V1_DEVICES)
    node = make_node(gpus=GPUS, gpu_files=files, around=around() if callable(around) else around)
    node.plan(a_planned_job(1, "user1", (1, 3)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, script("one", files))
    node.start_job(2, script("two", files))
    assert opened(node, "one") == ({"0,1"}, [1, 3])
    assert opened(node, "two") == ({"0"}, [0])
    node.start_job(1, script("step", files), step="0", slots="1")
    assert opened(node, "step")[1] == [1, 3]
    assert "not closed" not in node.log()


def test_a_job_of_all_gpus_is_confined_as_any_other(make_node, files):
    """No GPU is left to close to it: the kernel takes that program as well."""
    node = make_node(gpus=GPUS, gpu_files=files)
    node.plan(a_planned_job(1, "user1", tuple(range(GPUS))))
    node.start_job(1, script("all", files))
    assert opened(node, "all") == ({"0,1,2,3"}, [0, 1, 2, 3])
    assert "not closed" not in node.log()


def test_it_lasts_when_gandivad_is_killed_and_holds_for_later_steps(make_node, files):
    node = make_node(gpus=GPUS, gpu_files=files)
    node.plan(a_planned_job(1, "user1", (2,)))
    node.start_job(1, script("first", files))
    assert opened(node, "first")[1] == [2]
    node.kill9()
    node.start()
    node.start_job(1, script("second", files), step="0")
    assert opened(node, "second") == ({"0"}, [2])


def test_a_job_that_came_before_is_left_as_it_is(make_node, files):
    """Its programs know the GPUs by the numbers of the node."""
    node = make_node(gpus=GPUS)
    node.plan(a_planned_job(1, "user1", (2,)))
    node.start_job(1, script("first", files))
    assert opened(node, "first") == ({"2"}, [0, 1, 2, 3])
    node.stop()
    node.settings["gpu_files"] = files
    node.start()
    node.start_job(1, script("second", files), step="0")
    assert opened(node, "second") == ({"2"}, [0, 1, 2, 3])


def test_a_job_whose_tasks_were_not_bound_opens_no_others_either(make_node, files):
    node = make_node(gpus=GPUS, gpu_files=files)
    node.plan(a_planned_job(1, "user1", (2,)))
    node.start_job(1, [str(HERE / "scripts/openings_later.py"), *script("lost", files)], bind=False)
    node.wait(lambda: node.events("register", 1))
    (node.out / "go").touch()
    assert opened(node, "lost")[1] == [2]


def test_where_it_cannot_be_had_jobs_start_all_the_same_and_that_is_said(make_node, files):
    node = make_node(gpus=GPUS, gpu_files=files, around=WITHOUT_GROUPS)
    node.plan(a_planned_job(1, "user1", (2,)))
    node.start_job(1, script("one", files))
    assert opened(node, "one") == ({"2"}, [0, 1, 2, 3])
    assert node.log().count("the GPUs of others are not closed to jobs") == 1


OPEN_ALL = """
import os, sys
open(f"{sys.argv[1]}/cgroup.procs", "w").write(str(os.getpid()))
for gpu in range(int(sys.argv[3])):
    try:
        os.open(f"{sys.argv[2]}{gpu}", os.O_RDWR)
    except OSError as err:
        print(err.errno)
"""


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_a_group_of_slurms_that_stays_has_the_gpus_of_its_next_incarnation(files, version):
    """As a killed slurmstepd leaves it; the kernel would refuse what either incarnation's closing does."""
    root = cgroups.hierarchy("devices") if version == "v2" else Path("/sys/fs/cgroup/devices")
    if version == "v1" and not (root / "devices.deny").exists():
        pytest.skip(NO_V1_DEVICES)
    assert version == "v1" or (root / "cgroup.controllers").exists(), "no control groups of version 2"
    group, node = root / cgroups.OURS / f"test-{os.getpid()}" / "job_7", Devices(files, root, "test")
    (group / "step_batch").mkdir(parents=True)
    try:
        for gpu in (1, 3):
            job = SimpleNamespace(key=JobKey(7, 0), gpus=(gpu,), is_confined=None)
            job.processes = SimpleNamespace(cgroups={str(group)})
            node.confine(job, [])
            assert job.is_confined, node.fault
            command = [sys.executable, "-c", OPEN_ALL, str(group / "step_batch"), files, str(GPUS)]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            assert said == [str(OPENS if each == gpu else CLOSED) for each in range(GPUS)]
    finally:
        assert cgroups.remove(group.parent)
