"""Every suite in containers: real Slurm of that release, our flags, sliced jobs, and nothing left behind."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini import conffiles, demo_watch, layout, probe
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.docker import image_of, project_of, suite_of
from gandiva_slurm.mini.engine import PROJECT_LABEL, Engine
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.spec import SUITES, USERS, MiniSpec, parse_nodes
from gandiva_slurm.model.errors import GandivaError, UsageError
from tests import patience
from tests.cluster.fleet import Fleet, wait_for
from tests.cluster.sharing import LIGHT

#: The cluster is to be up in 20 s on a quiet machine; this one may be busy.
UP_BOUND_S = 60.0
WAIT_S = 60.0


def eventually(holds: Callable[[], bool], what: str) -> None:
    probe.wait_until(holds, what, WAIT_S)


def left_of(at: Layout) -> list[str]:
    """What the engine and this machine still have of a cluster."""
    engine, only = Engine.find(), ["--filter", f"label={PROJECT_LABEL}={project_of(at)}"]
    found = [line for words in (("ps", "-aq"), ("network", "ls", "-q"), ("volume", "ls", "-q"))
             for line in engine.call(*words, *only).split()]
    if at.root.exists():
        found.append(str(at.root))
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            found += [entry] if str(at.root).encode() in words else []
    return found


def gandiva(*words: str, name: str, **how) -> subprocess.CompletedProcess[str]:
    """The command line, as a user types it."""
    return subprocess.run([str(layout.bin_dir() / "gandiva"), *words], text=True, capture_output=True,
                          env=os.environ | {"GANDIVA_MINI": name}, timeout=300, **how)


@pytest.fixture
def own_name(backend: str) -> Iterator[str]:
    """A cluster name of the test's own; taken down whatever happens."""
    name = f"cli-{os.getpid()}"
    yield name
    clusters.down(name)


def test_command_line_up_exec_down_leave_only_the_image(backend: str, own_name: str) -> None:
    suite, at = backend.partition(":")[2], Layout.of(own_name)
    began = time.monotonic()
    up = gandiva("mini", "up", "--backend", "docker", "--suite", suite, "--no-daemons", "--nodes", "k80:1x1",
                 name=own_name)
    assert up.returncode == 0, up.stderr
    assert time.monotonic() - began < UP_BOUND_S * patience.slowness()
    script = ("sh", "-c", "cat; id -un; exit 9")
    done = gandiva("mini", "exec", "--user", "user3", "--", *script, name=own_name, input="in ")
    assert (done.returncode, done.stdout) == (9, "in user3\n")
    again = gandiva("mini", "up", name=own_name)
    assert again.returncode == 1 and "already up" in again.stderr and "Traceback" not in again.stderr
    assert left_of(at) != []
    down = gandiva("mini", "down", name=own_name)
    assert down.returncode == 0, down.stderr
    assert left_of(at) == []
    assert Engine.find().has_image(image_of(suite))
    gone = gandiva("mini", "exec", "--", "true", name=own_name)
    assert gone.returncode == 1 and "next: gandiva mini up" in gone.stderr


def test_it_is_the_suite_s_slurm_with_a_machine_for_each_node(mini: MiniCluster) -> None:
    assert f" {SUITES[suite_of(mini.spec)]}." in mini.exec(["sinfo", "-V"]).stdout
    lines = mini.exec(["sinfo", "-h", "-N", "-o", "%P %N %G"]).stdout.split("\n")
    assert {"plain* p1 (null)", "gandiva n1 gpu:v100:8", "gandiva n2 gpu:v100:8",
            "gandiva n3 gpu:k80:4"} <= set(lines)
    addresses = {host: mini.exec(["hostname", "-i"], host=host).stdout.strip() for host in mini.pids}
    assert len(set(addresses.values())) == len(addresses) == 6
    assert addresses["n1"] == mini.site.nodes["n1"].ip
    daemons = mini.exec(["ps", "-eo", "user:12,comm"]).stdout
    assert {"slurm        slurmctld", "slurm        gandivactld"} <= set(daemons.splitlines())


def test_slurm_is_read_through_pyslurm_where_one_fits(mini: MiniCluster) -> None:
    def through() -> list[str]:
        return re.findall(r"Slurm \S+, through (\w+)", mini.log("gandivactld").read_text())

    eventually(lambda: bool(through()), "gandivactld to choose its back end")
    assert through()[-1] == ("pyslurm" if suite_of(mini.spec) == "forky" else "its")
    assert demo_watch.pyslurm_version(mini) == ("25.11.2" if suite_of(mini.spec) == "forky" else None)


def test_users_run_ordinary_jobs_on_the_node_without_gpus(mini: MiniCluster) -> None:
    told = mini.exec(["sacctmgr", "-nP", "show", "assoc", "account=research", "format=user,fairshare"]).stdout
    assert {f"{name}|1" for name in USERS} <= set(told.split())
    mini.exec(["sbatch", "--wait", "-o", "plain-out", "--wrap", "id -un; hostname"], user="user2")
    assert mini.path("/home/user2/plain-out").read_text() == "user2\np1\n"
    eventually(lambda: "COMPLETED" in mini.exec(["sacct", "-nX", "-u", "user2", "-o", "state"]).stdout,
               "the job in the accounting")


def test_flags_are_known_checked_and_recorded(mini: MiniCluster) -> None:
    assert "--gandiva-tickets" in mini.exec(["sbatch", "--help"], user="user1").stdout
    bad = mini.exec(["sbatch", "--gandiva-tickets=0", "--wrap", "true"], user="user1", check=False)
    assert bad.returncode != 0
    assert bad.stderr.startswith('sbatch: error: gandiva: --gandiva-tickets: got "0", takes a whole number')
    elsewhere = mini.exec(["sbatch", "--gandiva", "-p", "plain", "--wrap", "true"], user="user1", check=False)
    assert elsewhere.returncode != 0 and "partition plain is not Gandiva's" in elsewhere.stderr
    many = mini.exec(["sbatch", "-p", "gandiva", "--gres=gpu:3", "--wrap", "true"], user="user1", check=False)
    assert many.returncode != 0 and "3 GPUs asked, the largest node" in many.stderr
    words = ["sbatch", "--parsable", "--gandiva-tickets=7", "--gres=gpu:2", "-o", "flags-out", "--wait",
             "--wrap", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $GANDIVA_NODE"]
    job = mini.exec(words, user="user1").stdout.strip()
    node, devices, said = mini.path("/home/user1/flags-out").read_text().split()
    assert node == said and devices == "0,1"
    shown = mini.exec(["scontrol", "show", "job", job]).stdout
    assert '"tickets":7' in shown and '"gpus":2' in shown


def test_check_has_nothing_to_say_against_it(mini: MiniCluster) -> None:
    done = mini.exec(["gandiva", "check"], check=False)
    assert done.returncode == 0 and "0 errors" in done.stdout + done.stderr


def test_two_jobs_of_two_users_take_turns_on_one_gpu(mini: MiniCluster) -> None:
    fleet = Fleet(mini)
    mini.path("/home/light.py").write_text(LIGHT)
    script = "exec python /home/light.py ~/beats ~/light.stop"
    try:
        jobs = [fleet.submit(user, script, "--gandiva-gpu-types=k80") for user in ("user1", "user2")]
        fleet.wait_suspends(jobs, 3, node="n3")
        for user in ("user1", "user2"):
            fleet.stop(user, "light")
        assert {fleet.wait_ended(job) for job in jobs} <= {"COMPLETED", "GONE"}
        wait_for(lambda: not fleet.holders("n3"), "n3 to note that they gave their GPU back")
        held = sorted((event["mono_ns"], event["event"]) for event in fleet.events("n3")
                      if event["event"] in ("grant", "release"))
        assert [word for _, word in held] == ["grant", "release"] * (len(held) // 2)
    finally:
        fleet.finish()


def test_daemons_can_be_killed_and_started_again(mini: MiniCluster) -> None:
    first = mini.daemon_pid("slurmctld")
    mini.kill("slurmctld")
    assert mini.daemon_pid("slurmctld") is None
    mini.start_daemon("slurmctld")
    assert mini.daemon_pid("slurmctld") not in (None, first)
    mini.kill("slurmd:n1", signal.SIGTERM)
    mini.start_daemon("slurmd:n1")
    mini.exec(["srun", "-p", "plain", "true"], user="user1")
    with pytest.raises(UsageError, match="no daemon 'slurmd:n9'"):
        mini.kill("slurmd:n9")


def test_a_node_is_cut_off_and_comes_back(mini: MiniCluster) -> None:
    reach = ["timeout", "2", "bash", "-c", f"true </dev/tcp/n2/{layout.FIRST_GANDIVAD_PORT}"]
    eventually(lambda: mini.exec(reach, check=False).returncode == 0, "n2 to be reached")
    mini.cut("n2")
    try:
        assert mini.exec(reach, check=False).returncode != 0
    finally:
        mini.mend("n2")
    eventually(lambda: mini.exec(reach, check=False).returncode == 0, "n2 to be reached again")


def test_failed_up_names_the_guilty_log_and_leaves_nothing(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(spec: MiniSpec, at: Layout) -> None:
        (at.etc / "job_submit.lua").write_text("oops(")

    monkeypatch.setattr(conffiles, "_write_lua", spoil)
    spec = MiniSpec(f"failed-{os.getpid()}", parse_nodes("k80:1x1"), daemons=False, backend=backend)
    with pytest.raises(GandivaError, match=r"(?s)slurmctld.* ended.*\blua"):
        MiniCluster.up(spec)
    assert left_of(Layout.of(spec.name)) == []
