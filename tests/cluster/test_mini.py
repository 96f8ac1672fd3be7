"""The mini cluster itself: quick up, real Slurm inside, nothing left after."""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini import conffiles, layout, probe
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.layout import CLONE, Layout
from gandiva_slurm.mini.spec import USERS, MiniSpec, parse_nodes
from gandiva_slurm.model.errors import GandivaError, UsageError
from tests import patience

pytestmark = pytest.mark.local
#: On a quiet machine it takes four.
UP_BOUND_S = 45.0
WAIT_S = 30.0


def eventually(holds: Callable[[], bool], what: str) -> None:
    probe.wait_until(holds, what, WAIT_S * patience.slowness())


class Inside:
    """A hold on a cluster's pid namespace: its number is not given again, so what still lives there shows."""

    def __init__(self, init_pid: int) -> None:
        self.handle = os.open(f"/proc/{init_pid}/ns/pid", os.O_RDONLY)
        self.number = os.fstat(self.handle).st_ino

    def alive(self) -> list[int]:
        """Processes in it, zombies aside."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/pid").st_ino == self.number:
                    found.append(int(entry))
        return [pid for pid in found if probe.start_ticks(pid) is not None]


def assert_nothing_left(at: Layout, inside: Inside | None = None) -> None:
    assert not at.root.exists()
    assert str(at.root) not in Path("/proc/mounts").read_text()
    assert inside is None or inside.alive() == []
    assert [entry for entry in os.listdir("/proc") if entry.isdigit() and mentions(entry, str(at.root))] == []


def mentions(pid: str, word: str) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False


def gandiva(*words: str, name: str, program: tuple[str, ...] = (), **how) -> subprocess.CompletedProcess[str]:
    """The command line, as a user types it."""
    program = program or (str(layout.bin_dir() / "gandiva"),)
    return subprocess.run([*program, *words], env=os.environ | {"GANDIVA_MINI": name}, text=True,
                          capture_output=True, timeout=300, **how)


@pytest.fixture
def own_name(slurm_here: None) -> Iterator[str]:
    """A cluster name for tests that go through the command line; taken down whatever happens."""
    name = f"cli-{os.getpid()}"
    yield name
    clusters.down(name)


def test_up_is_quick_and_down_leaves_nothing(slurm_here: None) -> None:
    watched = [Path("/etc/slurm"), Path("/var/spool"), Path("/var/log/slurm"), Path("/var/lib/mysql")]
    before = {path: sorted(os.listdir(path)) for path in watched if path.exists()}
    began = time.monotonic()
    cluster = MiniCluster.up(MiniSpec(f"up-{os.getpid()}", parse_nodes("v100:3x4"), daemons=False))
    up_s = time.monotonic() - began
    try:
        inside = Inside(cluster.init_pid)
        assert len(inside.alive()) > 6 and os.getpid() not in inside.alive()
        cluster.exec(["sbatch", "--wrap", "sleep 1000"], user="user1")
        # Other tests' control groups come and go meanwhile, which os.walk passes over.
        names = [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names]
        assert not [name for name in names if re.match("slurm_n[0-9]", name)]
    finally:
        cluster.down()
    assert up_s < UP_BOUND_S * patience.slowness()
    assert_nothing_left(cluster.at, inside)
    assert {path: sorted(os.listdir(path)) for path in before} == before
    assert "user1:" not in Path("/etc/passwd").read_text()


def test_all_nodes_are_idle_with_slots_and_ordinary_jobs_have_their_own(mini: MiniCluster) -> None:
    lines = mini.exec(["sinfo", "-h", "-N", "-o", "%P %N %G"]).stdout.split("\n")
    assert {"plain* p1 (null)", "gandiva n1 gpu:v100:16", "gandiva n2 gpu:v100:16",
            "gandiva n3 gpu:k80:16"} <= set(lines)


def test_users_have_equal_shares(mini: MiniCluster) -> None:
    told = mini.exec(["sacctmgr", "-nP", "show", "assoc", "account=research", "format=user,fairshare"]).stdout
    assert {f"{name}|1" for name in USERS} <= set(told.split())


def test_exec_passes_stdin_output_and_exit_code(mini: MiniCluster) -> None:
    done = mini.exec(["sh", "-c", "cat; echo told >&2; exit 7"], user="user1", check=False, input="typed")
    assert (done.returncode, done.stdout, done.stderr) == (7, "typed", "told\n")
    with pytest.raises(GandivaError, match="ended with 7"):
        mini.exec(["sh", "-c", "exit 7"])
    assert mini.exec(["no-such-command"], check=False).returncode == 127


def test_exec_is_the_user_at_home_with_a_clean_environment(mini: MiniCluster) -> None:
    script = 'id -un; id -u; pwd; echo "$HOME $USER $SLURM_CONF"; env | grep -c PYTEST'
    told = mini.exec(["sh", "-c", script], user="user2", check=False).stdout.split("\n")
    assert told[:5] == ["user2", "5002", "/home/user2", "/home/user2 user2 /etc/slurm/slurm.conf", "0"]
    assert mini.exec(["id", "-un"]).stdout == "root\n"


def test_exec_ends_what_runs_too_long(mini: MiniCluster) -> None:
    with pytest.raises(GandivaError, match=r"did not end within 0\.5 s"):
        mini.exec(["sleep", "4321"], timeout_s=0.5)
    eventually(lambda: mini.exec(["pgrep", "-fx", "sleep 4321"], check=False).returncode == 1, "sleep to end")


def test_exec_refuses_unknown_users(mini: MiniCluster) -> None:
    with pytest.raises(UsageError, match="user1, user2, user3"):
        mini.exec(["id"], user="nobody-here")


def test_users_read_python_and_clone_but_cannot_write_or_look_around(mini: MiniCluster) -> None:
    code = "import gandiva_slurm, sys; print(gandiva_slurm.__file__, sys.executable)"
    told = mini.exec(["python", "-c", code], user="user1").stdout.split()
    assert told == [str(CLONE / "gandiva_slurm/__init__.py"), str(layout.bin_dir() / "python")]
    for user in ("user1", "root"):
        done = mini.exec(["touch", str(CLONE / "stray")], user=user, check=False)
        assert done.returncode != 0 and "Read-only file system" in done.stderr
    for secret in ("ls /root", f"cat {mini.at.root}/munge.key", "cat /etc/shadow", "ls /run/mysqld"):
        assert mini.exec(["sh", "-c", secret], user="user1", check=False).returncode != 0, secret


def test_hosts_processes_and_network_are_not_seen(mini: MiniCluster) -> None:
    assert mini.exec(["hostname"]).stdout == "mini\n"
    assert mini.exec(["sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1"]).stdout.strip() == "lo"
    assert mini.exec(["cat", "/proc/1/comm"]).stdout.startswith("python")


def test_a_file_that_the_host_replaces_stays_the_clusters_own(mini: MiniCluster) -> None:
    """As useradd does with /etc/passwd; here /etc/hosts, by an equal file."""
    inside = mini.exec(["cat", "/etc/hosts"]).stdout
    host, copy = Path("/etc/hosts"), Path("/etc/hosts.gandiva-test")
    assert inside != host.read_text()
    shutil.copy2(host, copy)
    os.chown(copy, host.stat().st_uid, host.stat().st_gid)
    copy.replace(host)
    assert mini.exec(["cat", "/etc/hosts"]).stdout == inside


def test_plain_job_runs_as_its_user(mini: MiniCluster) -> None:
    mini.exec(["sbatch", "--wait", "-o", "out-%j", "--wrap", "id -un; hostname; echo $SLURM_JOB_PARTITION"],
              user="user2")
    out = list(mini.path("/home/user2").glob("out-*"))
    assert [path.read_text() for path in out] == ["user2\nmini\nplain\n"]
    assert os.stat(out[0]).st_uid == USERS["user2"]
    eventually(lambda: "COMPLETED" in mini.exec(["sacct", "-nX", "-u", "user2", "-o", "state"]).stdout,
               "the job in the accounting")


def test_more_than_a_nodes_slots_are_refused(mini: MiniCluster) -> None:
    done = mini.exec(["sbatch", "-p", "gandiva", "-N1", "--gres=gpu:v100:17", "--wrap", "true"], user="user1",
                     check=False)
    assert done.returncode != 0


def test_orphans_are_reaped(mini: MiniCluster) -> None:
    mini.exec(["sh", "-c", "(sh -c 'exit 0' & exec sh -c 'setsid -f true') & wait; srun -p plain true"],
              user="user1")
    states = ["sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | cut -c1 | grep -c Z"]
    eventually(lambda: mini.exec(states, check=False).stdout == "0\n", "no zombie inside")


def test_slurm_reads_the_snippet_for_administrators(mini: MiniCluster) -> None:
    snippet = (CLONE / "slurm_conf/slurm.conf.d/gandiva.conf").read_text()
    shown = mini.exec(["scontrol", "show", "config"]).stdout
    told = {key.strip(): value.strip() for key, _, value in (x.partition("=") for x in shown.split("\n"))}
    settings = [line.partition("=") for line in snippet.split("\n") if line and not line.startswith("#")]
    assert len(settings) >= 4
    for key, _, value in settings:
        assert value in told[key].split(","), key


def test_plugstack_line_differs_from_the_template_by_paths_only(mini: MiniCluster) -> None:
    made = (mini.at.etc / "plugstack.conf.d/gandiva.conf").read_text().splitlines()[-1].split()
    template = (CLONE / "slurm_conf/plugstack.conf.d/gandiva.conf").read_text().splitlines()[-1].split()
    assert (made[0], made[2]) == (template[0], template[2])
    assert made[1] == str(mini.at.root / "lib/gandiva.so") and Path(made[1]).exists()
    assert made[3] == f"hook={CLONE}/gandiva_slurm/client/hook" and made[4:] == template[4:]
    assert "--gandiva-tickets" in mini.exec(["sbatch", "--help"], user="user1").stdout


def test_daemons_can_be_killed_and_started_again(make_mini: Callable[..., MiniCluster]) -> None:
    cluster = make_mini(daemons=False)
    first = cluster.daemon_pid("slurmctld")
    assert first is not None
    cluster.kill("slurmctld")
    assert cluster.daemon_pid("slurmctld") is None
    cluster.start_daemon("slurmctld")
    assert cluster.daemon_pid("slurmctld") not in (None, first)
    cluster.exec(["srun", "-p", "plain", "true"], user="user1")
    cluster.kill("slurmd:n1", signal.SIGTERM)
    cluster.start_daemon("slurmd:n1")
    with pytest.raises(GandivaError, match="runs already"):
        cluster.start_daemon("slurmd:n1")
    with pytest.raises(UsageError, match="no daemon 'slurmd:n9'"):
        cluster.kill("slurmd:n9")


def test_clusters_live_side_by_side(mini: MiniCluster, make_mini: Callable[..., MiniCluster]) -> None:
    other = make_mini("k80:1x2", daemons=False)
    assert "n2" not in other.exec(["sinfo", "-h", "-N"]).stdout
    assert "n2" in mini.exec(["sinfo", "-h", "-N"]).stdout
    other.down()
    assert "idle" in mini.exec(["sinfo", "-h"]).stdout


def test_failed_up_names_the_guilty_log_and_leaves_nothing(
    slurm_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(spec: MiniSpec, at: Layout) -> None:
        (at.etc / "job_submit.lua").write_text("oops(")

    monkeypatch.setattr(conffiles, "_write_lua", spoil)
    spec = MiniSpec(f"failed-{os.getpid()}", daemons=False)
    with pytest.raises(GandivaError, match=r"(?s)slurmctld to be ready: it ended\n.*lua.*unexpected symbol"):
        MiniCluster.up(spec)
    assert_nothing_left(Layout.of(spec.name))


def test_command_line_up_outlives_itself_and_says_when_already_up(own_name: str) -> None:
    done = gandiva("mini", "up", "--no-daemons", "--nodes", "k80:1x1", name=own_name, cwd=CLONE)
    assert done.returncode == 0, done.stderr
    assert f"sharing {CLONE}" in done.stderr
    assert MiniCluster.attach(own_name).exec(["test", "-w", str(CLONE)], check=False).returncode == 0
    script = ("sh", "-c", "cat; exit 9")
    done = gandiva("mini", "exec", "--user", "user3", "--", *script, name=own_name, input="in")
    assert (done.returncode, done.stdout) == (9, "in")
    again = gandiva("mini", "up", name=own_name)
    assert again.returncode == 1 and "already up" in again.stderr and "Traceback" not in again.stderr
    down = gandiva("mini", "down", name=own_name)
    assert down.returncode == 0
    assert_nothing_left(Layout.of(own_name))
    gone = gandiva("mini", "exec", "--", "true", name=own_name)
    assert gone.returncode == 1 and "next: gandiva mini up" in gone.stderr


def test_down_cleans_up_after_an_up_that_was_killed(own_name: str) -> None:
    at = Layout.of(own_name)
    up = subprocess.Popen([str(layout.bin_dir() / "gandiva"), "mini", "up", "--no-daemons"],
                          env=os.environ | {"GANDIVA_MINI": own_name}, stderr=subprocess.DEVNULL)
    eventually(lambda: (at.pid / "mariadbd").exists(), "up to be half done")
    up.send_signal(signal.SIGSTOP)  # on a busy machine it would be done before the next one has begun
    busy = gandiva("mini", "up", name=own_name)
    assert busy.returncode == 1 and f"process {up.pid} is bringing" in busy.stderr
    inside = Inside(probe.children(int(at.outer_pid.read_text()))[0])
    up.kill()
    up.wait()
    assert gandiva("mini", "down", name=own_name).returncode == 0
    assert_nothing_left(at, inside)


def test_run_mounted_noexec_as_debian_does(own_name: str) -> None:
    program = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o noexec,nosuid,nodev none /run && "$0" mini up '
               '--no-daemons && "$0" mini exec --user user1 -- sbatch --wait --wrap true && "$0" mini down',
               str(layout.bin_dir() / "gandiva"))
    done = gandiva(name=own_name, program=program)
    assert done.returncode == 0, done.stderr


def test_without_root_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout.os, "geteuid", lambda: 65534)
    assert "needs root" in str(layout.missing())


def test_missing_packages_are_named_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout.os, "geteuid", lambda: 0)
    monkeypatch.setattr(layout.shutil, "which", lambda prog, path: None if prog == "slurmd" else "/bin/x")
    assert layout.missing() == "Debian packages missing: slurmd; run 'make setup' in the clone as root"


@pytest.fixture
def closed_clone() -> Iterator[Path]:
    """A copy of the clone as umask 077 makes it, with its own venv, in a closed directory below /root."""
    home = Path(tempfile.mkdtemp(dir="/root", prefix="gandiva-test-"))
    copy = home / "clone"
    for part in ("gandiva_slurm", "slurm_conf", "container", "spank"):
        shutil.copytree(CLONE / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(copy / ".venv")], check=True)
    packages = next((copy / ".venv/lib").glob("python*/site-packages"))
    theirs = [entry for entry in sys.path if entry.endswith("-packages")]
    (packages / "clone.pth").write_text("\n".join([str(copy), *theirs]) + "\n")
    subprocess.run(["chmod", "-R", "go=", str(copy)], check=True)
    yield copy
    shutil.rmtree(home)


def test_a_closed_clone_under_root_is_readable_inside(own_name: str, closed_clone: Path) -> None:
    python = str(closed_clone / ".venv/bin/python")
    program = (python, "-c", "from gandiva_slurm.cli.main import main; main()")
    closed_clone.chmod(0o755)
    done = gandiva("mini", "up", "--no-daemons", name=own_name, program=program, cwd=closed_clone)
    assert done.returncode == 0, done.stderr
    assert f"{closed_clone} is not shared, for user1, user2, user3 may not read all of it" in done.stderr
    cluster = MiniCluster.attach(own_name)
    job = f"{python} -c 'import gandiva_slurm as g, click; print(g.__file__)'"
    cluster.exec(["sbatch", "--wait", "-o", "/home/user1/o", "--wrap", job], user="user1")
    assert cluster.path("/home/user1/o").read_text() == f"{closed_clone}/gandiva_slurm/__init__.py\n"
    for command in ("ls /root", f"touch {closed_clone}/x", f"echo >> {closed_clone}/spank/Makefile"):
        assert cluster.exec(["sh", "-c", command], user="user1", check=False).returncode != 0, command
    assert stat.S_IMODE(os.stat(closed_clone / "gandiva_slurm/__init__.py").st_mode) == 0o600
    cluster.down()
    assert_nothing_left(cluster.at)
