"""The demonstration's parts that need no cluster: how busy, what is left, the guard, the screen."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gandiva_slurm.mini import demo_busy, demo_guard, demo_left, demo_live, demo_screen, probe
from gandiva_slurm.mini.demo_busy import Usage
from gandiva_slurm.mini.demo_jobs import DemoJob
from gandiva_slurm.mini.demo_plan import DEMO
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.model.errors import GandivaError

S = 1_000_000_000

# --- how busy -----------------------------------------------------------------------------------------


def test_work_is_all_but_idle_and_waiting() -> None:
    text = "cpu  100 20 30 800 40 1 2 7 50 5\ncpu0 1 2 3\n"
    whole_s, used_s = demo_busy.machine_seconds(text)
    assert whole_s * demo_busy.TICKS_PER_S == 1000 and used_s * demo_busy.TICKS_PER_S == 160


@pytest.mark.parametrize(
    ("ours_s", "outside", "is_busy"), [(75, 0.05, False), (69, 0.11, True), (90, 0, False)]
)
def test_busy_is_what_others_used(ours_s: float, outside: float, is_busy: bool) -> None:
    usage = Usage(100, 80, ours_s)
    assert usage.outside == pytest.approx(outside) and usage.is_busy == is_busy


def test_usage_of_two_clusters_adds_up() -> None:
    assert Usage(9, 8, 7) - Usage(1, 2, 3) + Usage(2, 2, 2) == Usage(10, 8, 6)
    assert Usage().outside == 0


def test_the_time_of_ended_children_is_ours() -> None:
    before = demo_busy.usage()
    spin = "import time; e = time.process_time() + 0.3\nwhile time.process_time() < e: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)
    used = demo_busy.usage() - before
    assert used.ours_s >= 0.28 and used.used_s >= 0.25
    assert used.whole_s >= used.used_s - 1e-6, "ticks of all processors, added up as floats"


def test_the_time_of_a_process_is_read() -> None:
    assert demo_busy.process_seconds(os.getpid()) > 0
    assert demo_busy.process_seconds(1 << 22) == 0


# --- left behind --------------------------------------------------------------------------------------


def marks(root: Path, *namespaces: str) -> demo_left.Marks:
    held = {name: os.open("/proc/self/stat", os.O_RDONLY) for name in namespaces}
    return demo_left.Marks(Layout(root), held, is_docker=False)


def test_nothing_is_left_of_what_never_was(tmp_path: Path) -> None:
    assert demo_left.left_behind(marks(tmp_path / "gone", "net:[1]")) == []


def test_files_processes_and_sockets_that_are_left_are_told(tmp_path: Path) -> None:
    root = tmp_path / "here"
    root.mkdir()
    ours = os.readlink("/proc/self/ns/net")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "s"))
        found = demo_left.left_behind(marks(root, ours), 0)
    assert f"the directory {root}" in found and f"the socket {root}/s" in found
    assert f"process {os.getpid()} in {ours}" in found


def test_a_namespace_that_is_held_open_is_left(tmp_path: Path) -> None:
    with open("/proc/self/ns/cgroup") as held:
        kept = os.readlink(f"/proc/self/fd/{held.fileno()}")
        found = demo_left.left_behind(marks(tmp_path / "gone", kept), 0)
        assert found == [f"process {os.getpid()} in {kept}"]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces and mounts")


def unshared(flag: str, kind: str, script: str = "exec cat") -> "tuple[subprocess.Popen[bytes], str]":
    """A process in a namespace of its own until its input is closed, and that namespace's name."""
    apart = subprocess.Popen(
        ["unshare", flag, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    ours = os.readlink(f"/proc/self/ns/{kind}")
    probe.wait_until(lambda: os.readlink(f"/proc/{apart.pid}/ns/{kind}") != ours, "unshare", 10.0)
    return apart, os.readlink(f"/proc/{apart.pid}/ns/{kind}")


@needs_root
def test_a_copy_of_a_mount_in_another_clusters_namespace_is_that_ones(tmp_path: Path) -> None:
    """As Docker's mounts of networks are copied to a cluster that comes up beside a demonstration."""
    apart, name = unshared("-u", "uts")
    place, done = tmp_path / "kept", tmp_path / "done"
    place.touch()
    mount = f"mount --bind /proc/{apart.pid}/ns/uts {place} && touch {done} && exec cat"
    other, _ = unshared("-m", "mnt", mount)
    probe.wait_until(done.exists, "the mount", 10.0)
    looked = demo_left.Marks(Layout(tmp_path / "gone"), demo_left.held([apart.pid]), is_docker=False)
    assert list(looked.namespaces) == [name]
    apart.communicate()
    table = Path(f"/proc/{other.pid}/mountinfo").read_text()
    assert f" {name} {place} " in table
    assert [line for line in demo_left._look(looked) if "mount" in line] == []
    other.communicate()


@needs_root
def test_what_is_looked_for_is_held_open_meanwhile_and_let_go() -> None:
    apart, name = unshared("-u", "uts")
    held = demo_left.held([apart.pid, apart.pid])
    assert list(held) == [name]
    looked = demo_left.Marks(Layout(Path("/nowhere/gone")), held, is_docker=False)
    assert demo_left._look(looked).__next__() == f"process {apart.pid} in {name}"
    apart.communicate()
    assert os.readlink(f"/proc/self/fd/{held[name]}") == name
    assert demo_left.left_behind(looked) == []
    with pytest.raises(OSError):
        os.fstat(held[name])


# --- one at a time, and a clean end -------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(demo_guard.Layout, "of", lambda name: Layout(tmp_path / name))
    monkeypatch.setattr(
        demo_guard.clusters, "down", lambda name: [f.unlink() for f in (tmp_path / name).iterdir()]
    )
    return tmp_path


@pytest.mark.parametrize("left", [demo_guard.MARK, "up.pid"])
def test_what_a_killed_demonstration_left_is_cleared_away(base: Path, left: str) -> None:
    said: list[str] = []
    (base / "d-slicing").mkdir()
    (base / "d-slicing" / left).write_text(f"{os.getpid()} 1")
    demo_guard.clear_away("d", said.append)
    assert not list((base / "d-slicing").iterdir()) and "clearing away" in said[0]


def test_a_cluster_that_somebody_uses_is_refused(base: Path) -> None:
    (base / "d").mkdir()
    with pytest.raises(GandivaError, match="GANDIVA_MINI=d gandiva mini down"):
        demo_guard.clear_away("d", print)
    ticks = probe.start_ticks(os.getpid())
    (base / "d" / "up.pid").write_text(f"{os.getpid()} {ticks}")
    with pytest.raises(GandivaError):
        demo_guard.clear_away("d", print)


def test_a_second_demonstration_is_refused() -> None:
    name = f"test-{os.getpid()}"
    with demo_guard._only_one(name):
        second = demo_guard._only_one(name)
        with pytest.raises(GandivaError, match="runs already"):
            second.__enter__()
    with demo_guard._only_one(name):
        pass


GUARDED = """\
import os, subprocess, sys, time
from gandiva_slurm.mini import demo_guard
def work():
    {work}
    return 7
demo_guard.clear_away = lambda name, say: None
demo_guard.clusters.down = lambda name: print("down", name, flush=True)
sys.exit(demo_guard.guarded("test-{pid}", work, lambda text: print(text, flush=True)))
"""


@contextlib.contextmanager
def guarded(work: str) -> Iterator["subprocess.Popen[str]"]:
    """A guard whose work is these statements."""
    code = GUARDED.format(work=textwrap.indent(work, "    ").strip(), pid=os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_the_work_s_exit_code_is_the_guard_s() -> None:
    with guarded("print('works', flush=True)") as process:
        assert process.communicate(timeout=60)[0] == "works\n" and process.returncode == 7


#: A stubborn child, and its number.
STUBBORN = "c = subprocess.Popen(['sh', '-c', 'trap : TERM INT; sleep 600 & wait; sleep 600'])\n"
STUBBORN += "print(c.pid, flush=True)\ntime.sleep(600)"


def is_gone(pid: int) -> bool:
    return probe.start_ticks(pid) is None


@pytest.mark.parametrize("sig", sorted(demo_guard.ENDS))
def test_a_signal_ends_the_work_with_all_it_started_and_takes_the_clusters_down(sig: signal.Signals) -> None:
    with guarded(STUBBORN) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(sig)
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + sig
    name = f"test-{os.getpid()}"
    assert f"down {name}\n" in told and f"down {name}-slicing" in told and sig.name in told
    probe.wait_until(lambda: is_gone(child), "the child's end", 30)


def test_work_that_is_killed_is_cleared_away_too() -> None:
    with guarded("print('works', flush=True); os.kill(os.getpid(), 9)") as process:
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL and "down test" in told


def test_the_work_dies_with_its_guard() -> None:
    with guarded("print(os.getpid(), flush=True); time.sleep(600)") as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
        probe.wait_until(lambda: is_gone(worker), "the work's end", 30)


# --- the live picture ---------------------------------------------------------------------------------

JOBS = {2: DemoJob("left", "user1", 2, "mlp", 1), 3: DemoJob("right", "user2", 2, "mlp", 2)}


class FakeCluster:
    """One node whose event log and users' homes lie in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.spec = type("Spec", (), {"nodes": [type("Node", (), {"name": "n1"})]})

    def path(self, *parts: str) -> Path:
        return self.root / Path(*parts).relative_to("/") if parts[0][0] == "/" else self.root.joinpath(*parts)


@pytest.fixture
def watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> demo_live.Watcher:
    monkeypatch.setattr(demo_live.time, "time_ns", lambda: 20 * S)
    cluster: Any = FakeCluster(tmp_path)
    (tmp_path / "spool/gandivad/n1").mkdir(parents=True)
    return demo_live.Watcher(cluster, 4, dict(JOBS), since_ns=0)


def log(watcher: demo_live.Watcher, text: str) -> None:
    with watcher.cluster.path("spool", "gandivad", "n1", "events.jsonl").open("a") as file:
        file.write(text)


def line(event: str, job: int, at_s: float, gpus: list[int]) -> str:
    return json.dumps({"event": event, "job": job, "t_ns": round(at_s * S), "gpus": gpus}) + "\n"


def test_holders_and_shares_are_read_from_the_node_s_log(watcher: demo_live.Watcher) -> None:
    log(watcher, line("grant", 2, 0, [0, 1]) + line("release", 2, 10, [0, 1]) + line("parked", 2, 10, [0, 1]))
    whole = line("grant", 3, 10, [0, 1])
    log(watcher, whole[:20])
    assert watcher.picture({"user1": 1, "user2": 1}).holders == {}
    log(watcher, whole[20:])
    picture = watcher.picture({"user1": 1, "user2": 1})
    assert picture.holders == {0: "right", 1: "right"}
    assert picture.shares == {"user1": (0.5, 0.5), "user2": (0.5, 0.5)}
    assert [(row.state, row.parks) for row in picture.jobs] == [("parked", 1), ("loads PyTorch", 0)]
    assert watcher.began_ns(3) == 10 * S and watcher.began_ns(2) is None


def test_steps_are_counted_and_an_ended_job_is_not_waited_for(watcher: demo_live.Watcher) -> None:
    assert not watcher.have_steps(dict.fromkeys(JOBS, 1))
    home = watcher.cluster.path("/home/user1")
    home.mkdir(parents=True)
    (home / "left.0.loss").write_text("0x1p+0\n0x1p+1\n0x1")
    log(watcher, line("ended", 3, 5, [0, 1]))
    watcher.look()
    assert watcher.have_steps({2: 2, 3: 9}) and not watcher.have_steps({2: 3, 3: 0})
    assert watcher.picture({}).jobs[1].state == "ended"


# --- the screen ---------------------------------------------------------------------------------------

PICTURE = demo_live.Picture(
    [
        demo_live.Row("left", "user1", 2, "trains", 120, 3),
        demo_live.Row("right", "user2", 1, "parked", 80, 4),
    ],
    {0: "left", 1: "left"},
    {"user1": (0.6, 0.5), "user2": (0.4, 0.5)},
)


def shown(is_terminal: bool) -> tuple[demo_screen.Screen, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=120)
    return demo_screen.screen_for(console, DEMO.phases()), out


def test_without_a_terminal_there_are_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now_s": 100.0}
    monkeypatch.setattr(demo_screen.time, "monotonic", lambda: clock["now_s"])
    screen, out = shown(False)
    with screen:
        screen.begin("three users contend", 30)
        for clock["now_s"] in (101.0, 105.0, 106.0, 109.0, 111.0):
            screen.show(PICTURE)
    lines = out.getvalue().splitlines()
    assert lines[0] == "== three users contend" and len(lines) == 3
    want = "  GPUs 0:left 1:left 2:- 3:- | GPU time user1 60 %, user2 40 % | about"
    assert lines[1].startswith(want) and lines[1].endswith("s left")


def test_on_a_terminal_one_screen_shows_jobs_holders_shares_and_the_time_left() -> None:
    screen, out = shown(True)
    assert isinstance(screen, demo_screen.LiveScreen)
    with screen:
        screen.begin("three users contend", 30)
        screen.show(PICTURE)
        screen.console.print(screen.renderable())
    text = out.getvalue()
    for want in ("GPU 0", "left", "right", "parked", "120", "60.0 %", "50.0 % due", "three users contend"):
        assert want in text, want
    assert "\x1b[?25h" in text, "the cursor is shown again"


def test_the_time_left_grows_with_how_slow_the_machine_was(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now_s": 0.0}
    monkeypatch.setattr(demo_screen.time, "monotonic", lambda: clock["now_s"])
    left = demo_screen.Left({"a": 10.0, "b": 20.0, "c": 5.0})
    left.begin("a")
    clock["now_s"] = 4.0
    assert left.seconds() == pytest.approx(31)
    clock["now_s"] = 30.0
    left.begin("b")
    assert left.slowness() == pytest.approx(3) and left.seconds() == pytest.approx(75)
    left.begin("b", 40.0)
    clock["now_s"] = 500.0
    assert left.seconds() == pytest.approx(15 * left.slowness() / 3, rel=1)


def test_the_picture_is_an_svg(tmp_path: Path) -> None:
    demo_screen.save_picture(tmp_path / "p.svg", PICTURE, "three users contend", 12.0)
    text = (tmp_path / "p.svg").read_text()
    assert text.startswith("<svg") and "left" in text and "about" in text
    assert "font-face" not in text and "url(http" not in text, "it fetches nothing"


def test_what_to_try_next_names_the_cluster_that_is_up() -> None:
    lines = demo_screen.next_steps("d", True)
    assert sum("GANDIVA_MINI=d" in line for line in lines) == 4 and "GANDIVA_MINI=d" in lines[-1]
    assert "KEEP=1" in demo_screen.next_steps("d", False)[0]
