"""Signs of life for systemd: who serves says so, who is stuck gives none; and the units that ask for them."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm import watchdog
from gandiva_slurm.controller.loop import Controller
from gandiva_slurm.controller.status import Status

UNITS = Path(__file__).parents[2] / "slurm_conf/systemd"
BOTH = ["gandivactld", "gandivad"]


def unit(name: str) -> dict[str, list[str]]:
    """Return `Section.Key` and what the unit says of it, line by line."""
    found, section = defaultdict(list), ""
    for line in (UNITS / f"{name}.service").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[f"{section}.{key}"].append(value)
    return found


@pytest.fixture(params=["path", "abstract"])
def systemd(request, tmp_path, monkeypatch) -> Iterator[socket.socket]:
    """The socket at which systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        is_path = request.param == "path"
        name = str(tmp_path / "notify") if is_path else f"@gandiva-test-{os.getpid()}"
        link.bind(name if is_path else "\0" + name[1:])
        link.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield link


async def said(link: socket.socket) -> str:
    async with asyncio.timeout(60):
        return (await asyncio.get_running_loop().sock_recv(link, 100)).decode()


async def test_a_daemon_says_that_it_serves_and_then_that_it_lives(systemd, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    is_well = [True, False, False, True]
    task = asyncio.create_task(watchdog.feed(lambda: is_well.pop(0) if is_well else False))
    assert [await said(systemd) for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
    assert is_well == []
    task.cancel()
    with pytest.raises(BlockingIOError):
        systemd.recv(100)


async def test_without_a_watchdog_it_says_that_it_serves(systemd, monkeypatch):
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    task = asyncio.create_task(watchdog.feed())
    assert await said(systemd) == "READY=1"
    assert not task.done()
    task.cancel()


def test_without_systemd_nothing_is_said(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    watchdog.notify("READY=1")


def test_the_watchdog_of_another_process_is_none(monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    assert watchdog.period_s() == 2
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog.period_s() == 2
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog.period_s() == 0


def test_a_controller_whose_cycle_is_stuck_is_not_well():
    controller = Controller.__new__(Controller)
    controller.status, controller._resting, controller._seen_cycle = Status(0.0), asyncio.Event(), -1
    assert controller.has_moved() and not controller.has_moved()
    controller.status.cycle += 1
    assert controller.has_moved() and not controller.has_moved()
    controller._resting.set()
    assert controller.has_moved() and controller.has_moved()


@pytest.mark.parametrize("name", BOTH)
def test_a_unit_is_started_again_whatever_happens_and_not_stopped_with_munge(name):
    found = unit(name)
    assert not [key for key in found if key.startswith(("Unit.Requires", "Unit.BindsTo", "Unit.PartOf"))]
    assert "munge.service" in found["Unit.Wants"][0].split() and "munge.service" in found["Unit.After"][0]
    assert found["Unit.StartLimitIntervalSec"] == ["0"]
    assert found["Service.Restart"] == ["always"] and found["Service.Type"] == ["notify"]
    assert int(found["Service.WatchdogSec"][0]) >= 30
    assert int(found["Service.LimitNOFILE"][0]) >= 4096


@pytest.mark.parametrize("name", BOTH)
def test_a_unit_gives_no_more_than_is_needed(name):
    found = unit(name)
    for key in ("NoNewPrivileges", "ProtectKernelModules", "ProtectKernelTunables", "RestrictSUIDSGID"):
        assert found[f"Service.{key}"] == ["yes"], key
    assert found["Service.ProtectSystem"] == ["strict"]
    assert found["Service.CapabilityBoundingSet"] == [{"gandivactld": ""}.get(name, NEEDED)]


#: What the node floor shows to be enough: tests/node/test_capabilities.py.
NEEDED = "CAP_KILL CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_SYS_NICE CAP_BPF CAP_NET_ADMIN"


def test_gandivads_unit_keeps_what_it_works_with():
    found = unit("gandivad")
    for key in (
        "ProtectControlGroups",
        "PrivateDevices",
        "ProtectClock",
        "ProtectProc",
        "PrivateTmp",
        "User",
    ):
        assert f"Service.{key}" not in found, key
    assert found["Service.KillMode"] == ["process"], "the guard stays"
    assert "Service.ExecStopPost" not in found, "thawing is the guard's"
    shown = (UNITS.parents[1] / "docs/setup.md").read_text()
    assert all(f"`{name}`" in shown for name in NEEDED.split())


def test_gandivads_unit_makes_its_control_groups_where_there_are_hierarchies(tmp_path):
    """With the capabilities it has, it could make none at the root of one."""
    (before,) = unit("gandivad")["Service.ExecStartPre"]
    for name in ("unified", "freezer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "devices").mkdir()
    command = before.removeprefix("+").replace("/sys/fs/cgroup", str(tmp_path)).replace("$$", "$")
    for _ in range(2):
        subprocess.run(shlex.split(command), check=True)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("**/gandiva")) == [
        "freezer/gandiva",
        "unified/gandiva",
    ]
