"""Slurm's own troubles and full disks: nothing is lost, nothing held twice, and it is said what is wrong."""

import json
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.engine import invariants
from gandiva_slurm.mini import boot
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.slurm import control
from tests.cluster.fleet import Fleet, changed_ns, mended, own_cluster, said, wait_for
from tests.cluster.sharing import LIGHT, counted
from tests.records import Held, read_lines
from tests.slow import slow

#: Room on the disks that are to run full: enough for every state these tests make.
DISK = "32m"
DISKS = {"gandivactld": "uid=slurm,gid=slurm,mode=700", "gandivad/n1": "mode=755"}
#: A job whose start slurmctld has forgotten begins again after that.
FORGOTTEN_S = 120


class OnSmallDisks(Fleet):
    """The daemons' states lie on disks that only their hosts' own mounts show."""

    def events(self, node: str = "n1") -> list[dict[str, Any]]:
        """The node's event log, as far as the disk had room for it."""
        spool = self.mini.at.spool.relative_to("/")
        pid = self.mini.pids[self.mini.site.nodes[node].host]
        return read_lines(Path(f"/proc/{pid}/root") / spool / f"gandivad/{node}/events.jsonl")

    def node_states(self) -> dict[str, dict[str, Any]]:
        """What `gandiva nodes` shows, by node."""
        return {row["node"]: row for row in self.ask("nodes")["nodes"]}

    def holders(self, node: str) -> Collection[Any]:
        """By what the node reports, once it does: its log may lack a release, for which the disk was full."""
        row = self.node_states()[node]
        return [gpu for gpu in row["holders"] if gpu["job_id"] or row["state"] in ("silent", "down")]

    def check_books(self) -> None:
        """By the ledger: a full disk leaves gaps in the nodes' logs, not there."""
        code = "from gandiva_slurm.cli.client import query; "
        code += "import json; print(json.dumps(query(None, 'holds', {'start_s': 0}, 60)))"
        told = self.mini.exec(["python", "-c", code]).stdout
        held: dict[str, list[Held]] = {}
        for row in json.loads(told):
            who = (row["job_id"], row["restart"], row["user"], tuple(row["gpus"]))
            held.setdefault(row["node"], []).append(Held(*who, row["t0_ns"], row["t1_ns"]))
        assert held
        found = [line for holds in held.values() for line in invariants.no_gpu_held_twice(holds)]
        assert not found, found


def host_of(cluster: MiniCluster, name: str) -> str:
    """The host of the daemon whose state lies there."""
    _, _, node = name.partition("/")
    return (cluster.site.nodes[node] if node else cluster.site.controller).host


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of one GPU; the state of gandivactld and of n1's gandivad lies on small disks."""
    with own_cluster("troubles", "v100:1x1,k80:1x1", 0.5, spec={"daemons": False}) as made:
        for name, options in DISKS.items():
            place = made.at.spool / name
            on_small = ["mount", "-t", "tmpfs", "-o", f"size={DISK},{options}", "none", str(place)]
            made.exec(["mkdir", "-p", str(place)])
            made.exec(on_small, host=host_of(made, name))
        boot.start_gandiva(made, lambda text: None)
        yield made


@pytest.fixture
def fleet(cluster: MiniCluster) -> Iterator[OnSmallDisks]:
    """As elsewhere, with books that bear a full disk."""
    with mended(OnSmallDisks(cluster)) as made:
        yield made


def shared(fleet: Fleet) -> tuple[int, int]:
    """Two jobs of two users that take turns on n1."""
    jobs = []
    for user in ("user1", "user2"):
        fleet.home(user, "light.py").write_text(LIGHT)
        for name in ("turns.count", "turns.stop"):
            fleet.home(user, name).unlink(missing_ok=True)
        script = "exec python light.py turns.count turns.stop"
        jobs.append(fleet.submit(user, script, "--gandiva-gpu-types=v100"))
    fleet.wait_suspends(jobs, 2)
    return jobs[0], jobs[1]


def both_go_on(fleet: Fleet) -> None:
    """Both jobs take turns still."""
    was = {user: counted(fleet, user, "turns") for user in ("user1", "user2")}
    for user, steps in was.items():
        more = steps + 20
        wait_for(lambda user=user, more=more: counted(fleet, user, "turns") > more, f"{user} to go on")


def runs_at_once(fleet: Fleet, user: str = "user3") -> int:
    """A new job starts and ends."""
    job = fleet.submit(user, "true", "--gandiva-gpu-types=v100")
    fleet.wait_ended(job, "COMPLETED", deadline_s=60)
    return job


#: SQLite writes into the pages its write-ahead log has already, also on a full disk: it starts without any.
NO_LOGS = """
import pathlib, sqlite3, sys
for file in pathlib.Path(sys.argv[1]).glob("*.sqlite"):
    (is_busy, *_), = sqlite3.connect(file, timeout=20).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert not is_busy, file
"""


def fill(fleet: Fleet, name: str) -> Path:
    """Leave no byte on the disk under a daemon's state; returns the file to remove."""
    place, host = fleet.mini.at.spool / name, host_of(fleet.mini, name)
    ballast = place / "ballast"
    fleet.mini.exec(["rm", "-f", str(ballast)], host=host)
    fleet.mini.exec(["python", "-c", NO_LOGS, str(place)], host=host)
    fleet.mini.exec(["dd", "if=/dev/zero", f"of={ballast}", "bs=4k"], check=False, host=host)
    return ballast


@contextmanager
def full_disk(fleet: Fleet, name: str) -> Iterator[None]:
    """The disk under a daemon's state is full."""
    ballast = fill(fleet, name)
    try:
        yield
    finally:
        fleet.mini.exec(["rm", "-f", str(ballast)], host=host_of(fleet.mini, name))


def log_of(fleet: Fleet, daemon: str) -> str:
    return Path(fleet.mini.log(daemon)).read_text(errors="replace")


def faults(fleet: Fleet) -> str:
    """What `gandiva check` says."""
    return fleet.mini.exec(["gandiva", "check"], check=False).stdout


@slow("26 s; shares that cannot be read stay as they were: unit/test_slurm_commands")
def test_accounting_away_for_a_while(fleet: Fleet) -> None:
    """slurmdbd and MariaDB killed: jobs are sliced and started all the same, and accounted afterwards."""
    first, second = shared(fleet)
    fleet.mini.kill("slurmdbd")
    fleet.mini.kill("mariadbd")
    both_go_on(fleet)
    third = runs_at_once(fleet)
    assert {row["job_id"] for row in fleet.ask("queue")["jobs"]} >= {first, second}
    fleet.mini.exec(["scontrol", "requeue", str(first)], user="user1")
    wait_for(lambda: any(e["event"] == "grant" and e["restart"] == 1 and e.get("job") == first
                         for e in fleet.events()), "the requeued job to hold its GPU again", 60)
    fleet.mini.start_daemon("mariadbd")
    fleet.mini.start_daemon("slurmdbd")
    both_go_on(fleet)

    def accounted() -> bool:
        told = fleet.mini.exec(["sacct", "-nPX", "-j", str(third), "-o", "state"], check=False).stdout
        return "COMPLETED" in told

    wait_for(accounted, "slurmdbd to know of the job that ran meanwhile", 60)


@pytest.mark.timeout(900)
@slow("up to 5 min: what Slurm forgot begins 2 min later; test_failures kills slurmctld in mid-run")
def test_slurmctld_killed_in_the_midst_of_starts(fleet: OnSmallDisks) -> None:
    """Jobs released, being released and waiting when slurmctld dies are started when it is back.

    It saves its state every few seconds. Of a start that it forgot slurmd says "Duplicate jobid" when it is
    made again, and Slurm drains that node (22.05.8): the administrator, told by name, resumes it.
    """
    users = ("user1", "user2", "user3")
    jobs = [fleet.submit(user, "sleep 1", "--begin=now+15") for user in users]
    asked = ["sacct", "-nX", "-o", "jobid", "-j", ",".join(map(str, jobs))]
    wait_for(lambda: len(fleet.mini.exec(asked).stdout.split()) == len(jobs), "slurmdbd to know them")
    wait_for(lambda: all(numbered(fleet, job) for job in jobs), "their numbers, and to have them saved")

    def one_moves() -> bool:
        rows = {row["job_id"]: row["state"] for row in fleet.ask("queue", "-t", "all")["jobs"]}
        return any(rows.get(job, "HELD") != "HELD" for job in jobs)

    wait_for(one_moves, "the first to be started")
    fleet.mini.kill("slurmctld")
    wait_for(lambda: "slurmctld" in faults(fleet), "gandiva check to say so")
    fleet.mini.start_daemon("slurmctld")

    def all_ended() -> bool:
        for row in fleet.node_states().values():
            if row["state"] == "drain" and row["reason"].startswith("Duplicate jobid"):
                resume = ["scontrol", "update", f"NodeName={row['node']}", "State=RESUME"]
                fleet.mini.exec(resume, check=False)  # refused where it was resumed since it was seen
        return all(fleet.slurm_state(job) == "COMPLETED" for job in jobs)

    def told() -> str:
        shown = fleet.mini.exec(["scontrol", "-o", "show", "job"], check=False).stdout
        whys = [fleet.mini.exec(["gandiva", "why", str(job)], check=False).stdout for job in jobs]
        tail = log_of(fleet, "gandivactld").splitlines()[-40:]
        parts = ("all of them to have run:", shown, str(fleet.node_states()), *whys, *tail)
        return "\n".join(parts)

    wait_for(all_ended, told, 2 * FORGOTTEN_S + 60)


def numbered(fleet: Fleet, job: int) -> bool:
    """True when Slurm takes changes of a job, which it refuses while slurmdbd is asked for its number."""
    told = fleet.mini.exec(["scontrol", "update", f"JobId={job}", "Comment=a"], check=False)
    return control.NUMBERING not in told.stdout + told.stderr


@pytest.mark.timeout(300)
@slow("40 s; what is made of Slurm's answer is in unit/test_slurm_commands")
def test_a_job_of_which_slurm_takes_no_change_any_more(fleet: OnSmallDisks) -> None:
    """slurmctld is killed while it asks for a job's number, and does not ask again (22.05.8).

    Others start meanwhile, and `why` says what is to be done.
    """
    for daemon in ("gandivactld", "slurmdbd"):
        fleet.mini.kill(daemon, signal.SIGSTOP)
    try:
        stuck = fleet.submit("user1", "sleep 1")
        wait_for(lambda: not numbered(fleet, stuck), "slurmctld to ask for the job's number")
        saved = fleet.mini.at.spool / "slurmctld" / "job_state"
        before_ns = wait_for(lambda: changed_ns(saved), "slurmctld's state")
        next_job = fleet.submit("user2", "sleep 1")
        wait_for(lambda: changed_ns(saved) > before_ns, "slurmctld to save its state")
        fleet.mini.kill("slurmctld")
    finally:
        fleet.mini.kill("slurmdbd", signal.SIGCONT)
        fleet.mini.start_daemon("slurmctld")
        fleet.mini.kill("gandivactld", signal.SIGCONT)
    assert not numbered(fleet, stuck)
    fleet.wait_ended(next_job, "COMPLETED", 60)
    why = ("why", str(stuck))
    wait_for(lambda: control.FOR_GOOD in said(fleet.mini, *why), "`why` to say what must be done", 60)
    fleet.wait_ended(fleet.submit("user2", "sleep 1"), "COMPLETED", 30)
    fleet.mini.exec(["scancel", str(stuck)])
    fleet.wait_ended(stuck, "CANCELLED")


def test_a_full_disk_under_the_journal(fleet: Fleet) -> None:
    """gandivactld goes on, says so, and loses no GPU time; started on a full disk it ends with a sentence."""
    first, second = shared(fleet)

    def held() -> float:
        rows = {row["job_id"]: row["gpu_held_s"] for row in fleet.accounts()}
        return rows[first] + rows[second]

    before = held()
    with full_disk(fleet, "gandivactld"):
        wait_for(lambda: "free or mend its state_dir" in faults(fleet), "gandiva check to name the disk")
        both_go_on(fleet)
        third = runs_at_once(fleet)
        fleet.mini.kill("gandivactld")
        fill(fleet, "gandivactld")
        fleet.mini.start_daemon("gandivactld", wait=False)
        wait_for(lambda: fleet.mini.daemon_pid("gandivactld") is None, "gandivactld to end on a full disk")
        told = log_of(fleet, "gandivactld").splitlines()
        assert any("gandivactld: error: controller.state_dir" in line for line in told[-5:]), told[-5:]
        both_go_on(fleet)
        began_ns = fleet.events()[-1]["mono_ns"]
    fleet.mini.start_daemon("gandivactld")
    wait_for(lambda: fleet.events()[-1]["mono_ns"] > began_ns, "slices")
    wait_for(lambda: "state_dir" not in faults(fleet), "gandiva check to be content")
    booked_s = sum(e["held_ms"] for e in fleet.events() if e["event"] == "release"
                   and e["job"] in (first, second)) / 1000
    wait_for(lambda: held() >= booked_s, f"all {booked_s:.1f} s on the node to be in the ledger", 30)
    assert held() > before
    rows = {row["job_id"] for row in fleet.accounts()}
    assert {first, second, third} <= rows
    both_go_on(fleet)


def test_a_full_disk_under_a_nodes_state(fleet: Fleet) -> None:
    """gandivad slices on, says so, and writes its state again: killed afterwards it takes its jobs over."""
    first, second = shared(fleet)
    with full_disk(fleet, "gandivad/n1"):
        wait_for(lambda: "No space left on device" in log_of(fleet, "gandivad:n1"), "gandivad to say so")
        both_go_on(fleet)
        runs_at_once(fleet)
    both_go_on(fleet)
    fleet.wait_suspends(first, 2)
    fleet.mini.kill("gandivad:n1")
    fleet.mini.start_daemon("gandivad:n1")
    both_go_on(fleet)
    fleet.wait_suspends(second, 2)
    assert fleet.slurm_state(first) == fleet.slurm_state(second) == "RUNNING"


def test_a_node_cut_off_and_back(fleet: OnSmallDisks) -> None:
    """Its daemons hang: Slurm runs the job elsewhere; when they are back the old incarnation is stopped."""
    fleet.home("user1", "light.py").write_text(LIGHT)
    script = "exec python light.py cut-$SLURM_RESTART_COUNT.count cut.stop"
    job = fleet.submit("user1", script, "--gandiva-gpu-types=v100,k80")
    fleet.wait_running(job)
    node = fleet.mini.exec(["squeue", "-h", "-j", str(job), "-o", "%N"]).stdout.strip()
    other = "n2" if node == "n1" else "n1"
    wait_for(lambda: fleet.count("rank", job, node), "its rank to say hello")
    for daemon in (f"slurmd:{node}", f"gandivad:{node}"):
        fleet.mini.kill(daemon, signal.SIGSTOP)
    try:
        wait_for(lambda: fleet.node_states()[node]["state"] != "up", "gandiva nodes to show it", 60)
        wait_for(lambda: fleet.count("rank", job, other), f"it to run on {other}", 120)
    finally:
        for daemon in (f"slurmd:{node}", f"gandivad:{node}"):
            fleet.mini.kill(daemon, signal.SIGCONT)
    wait_for(lambda: fleet.count("fence", job, node) or fleet.count("ended", job, node),
             "what is left of it there to be stopped", 60)
    wait_for(lambda: len(fleet.strays()) <= 2,
             lambda: f"only its new incarnation to live: {fleet.strays()}", 30)
    assert fleet.slurm_state(job) == "RUNNING"
    wait_for(lambda: fleet.node_states()[node]["state"] == "up", "the node to be back", 60)
    fleet.mini.exec(["scancel", str(job)])
    fleet.wait_ended(job, "CANCELLED")
    wait_for(lambda: not fleet.strays(), lambda: f"nothing to be left: {fleet.strays()}")
    fleet.jobs.clear()
