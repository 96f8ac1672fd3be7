"""On a real Slurm: packed, moved, held, failed and cancelled jobs are the same in each view of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster, said, wait_for
from tests.cluster.moved import Crowd
from tests.cluster.sharing import LIGHT
from tests.cluster.test_moving import ENDLESS, LIGHT_TRAINING, MOVES
from tests.cluster.test_packing import VERDICT_S
from tests.cluster.test_told import WEEK, browsed, scraped
from tests.records import holds_of

QUANTUM_S = 0.5
#: Slurm's words for our states.
SLURMS = {"HELD": "PENDING"} | dict.fromkeys(("RUNNING", "SUSPENDING", "SUSPENDED", "RESUMING"), "RUNNING")


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes between which a training moves, one on which two jobs are packed."""
    packing = {"enabled": True}
    with own_cluster("views", "v100:2x1,k80:1x1", QUANTUM_S, moves=MOVES, packing=packing) as made:
        for user in ("user1", "user2"):
            made.path(f"/home/{user}/light.py").write_text(LIGHT)
        made.path(f"/home/user1/{LIGHT_TRAINING.name}").write_text(LIGHT_TRAINING.read_text())
        yield made


def test_all_views_of_packed_moved_held_and_failed_jobs_agree(fleet: Fleet) -> None:
    on_k80 = "--gandiva-gpu-types=k80"
    pair = [fleet.submit(user, "exec python light.py pair stop", on_k80) for user in ("user1", "user2")]
    crowd = Crowd(fleet, "moves", f"OUT=~ exec python {LIGHT_TRAINING.name} 10 {ENDLESS}")
    crowd.trains()
    fails = fleet.submit("user3", "exit 3", "--gandiva-gpu-types=v100")
    fleet.wait_ended(fails, "FAILED")
    crowd.make_room()
    crowd.wait_moved()
    held = fleet.submit("user3", "true", on_k80, "--hold")
    wait_for(lambda: row_of(fleet, held).get("state") == "HELD", "it to be held")
    wait_for(lambda: all(row_of(fleet, one)["reason"] == "Packed" for one in pair), "the pair", VERDICT_S)
    moved, cancelled = crowd.job, crowd.elsewhere
    others = [job for job in fleet.jobs if job not in (*pair, moved, held, fails, cancelled)]
    alive = [*pair, moved, held, *others]
    wait_for(lambda: row_of(fleet, moved)["node"] == crowd.target, "the moved one to be seen")
    wait_for(lambda: moved in residents(fleet, crowd.target), "its node to tell of the moved one")
    check_live(fleet, alive)
    check_pair_and_held(fleet, pair, held)
    for user in ("user1", "user2"):
        fleet.home(user, "stop").touch()
    crowd.file("stop").touch()
    fleet.home("user2", "moves.stop").touch()
    fleet.mini.exec(["scancel", str(held)])
    for job in (*pair, moved, *others):
        fleet.wait_ended(job, "COMPLETED")
    ends = dict.fromkeys((*pair, moved, *others), "COMPLETED")
    check_ended(fleet, ends | {fails: "FAILED", held: "CANCELLED", cancelled: "CANCELLED"}, moved)


def row_of(fleet: Fleet, job: int) -> dict[str, Any]:
    """Its row of the queue; {}: it has none yet."""
    rows = fleet.ask("queue", "-j", str(job))["jobs"]
    return dict(rows[0]) if rows else {}


def residents(fleet: Fleet, name: str) -> set[int]:
    """The jobs that live on a node, by `gandiva nodes`."""
    nodes = {node["node"]: node["residents"] for node in fleet.ask("nodes")["nodes"]}
    return {one["job_id"] for one in nodes[name]}


def check_live(fleet: Fleet, alive: list[int]) -> None:
    """Who lives where, by each view; turns change meanwhile, and so only what holds in all of them counts."""
    mini = fleet.mini
    rows = {row["job_id"]: row for row in fleet.ask("queue")["jobs"] if row["state"] != "ENDED"}
    assert sorted(rows) == sorted(alive)
    told = browsed(mini, "jobs", "nodes", *(f"jobs/{job}" for job in alive))
    shown = {row["job_id"]: row for row in told["jobs"]["jobs"] if row["state"] != "ENDED"}
    words = ["squeue", "-h", "-t", "all", "-o", "%A|%T|%N|%u"]
    slurm = dict(line.split("|", 1) for line in mini.exec(words).stdout.split())
    top = [line.split() for line in said(mini, "top", "--once").splitlines()]
    listed = {int(line[0]): line[1] for line in top if line and line[0].isdecimal()}
    homes: dict[int, set[str]] = {job: set() for job in alive}
    for view in (fleet.ask("nodes")["nodes"], told["nodes"]["nodes"]):
        for node in view:
            for one in node["residents"]:
                homes[one["job_id"]].add(node["node"])
    for job, row in rows.items():
        why = fleet.ask("why", str(job))
        assert (shown[job]["user"], shown[job]["node"]) == (row["user"], row["node"])
        assert why["job_id"] == job and told[f"jobs/{job}"]["job"]["user"] == row["user"] == listed[job]
        assert slurm[str(job)] == f"{SLURMS[row['state']]}|{row['node']}|{row['user']}"
        assert homes[job] == ({row["node"]} if row["node"] else set()), job
    figures = scraped(mini, "user3")
    assert figures["gandiva_jobs"] == len(alive) and figures["gandiva_node_jobs"] == len(alive) - 1
    assert figures["gandiva_gpus_wanted"] == sum(row["gpus"] for row in rows.values())


def check_pair_and_held(fleet: Fleet, pair: list[int], held: int) -> None:
    """Both of a pack name each other, and why a job is held is one sentence everywhere."""
    told = browsed(fleet.mini, "jobs", "nodes", f"jobs/{held}")
    for nodes in (fleet.ask("nodes")["nodes"], told["nodes"]["nodes"]):
        assert [pack["jobs"] for node in nodes for pack in node["packs"]] == [pair]
    for one, mate in (pair, pair[::-1]):
        assert f"with job {mate}" in row_of(fleet, one)["detail"]
        assert f"job {mate}" in str(fleet.ask("why", str(one)))
    assert scraped(fleet.mini, "user3")["gandiva_packs"] == 1
    row, why = row_of(fleet, held), fleet.ask("why", str(held))
    (shown,) = (one for one in told["jobs"]["jobs"] if one["job_id"] == held)
    assert shown["detail"] == row["detail"] == why["sentence"] == told[f"jobs/{held}"]["sentence"]
    assert shown["reason"] == row["reason"] == why["code"]
    assert row["reason"] in said(fleet.mini, "top", "--once")


def held_by_log(fleet: Fleet) -> dict[int, float]:
    """GPU seconds of each job by the nodes' own logs: of what two share each has half."""
    held_s: dict[int, float] = {}
    for hold in (hold for name in ("n1", "n2", "n3") for hold in holds_of(fleet.events(name))):
        part_s = len(hold.gpus) * (hold.t1_ns - hold.t0_ns) / (2e9 if hold.shared_with else 1e9)
        held_s[hold.job_id] = held_s.get(hold.job_id, 0.0) + part_s
    return held_s


def check_ended(fleet: Fleet, ends: dict[int, str], moved: int) -> None:
    """How each has ended, on how many runs, and what it held, by each that tells of it."""

    def sacct() -> dict[int, list[list[str]]]:
        numbers = ",".join(map(str, ends))
        words = ["sacct", "-D", "-X", "-n", "-P", "-j", numbers, "-o", "JobIDRaw,State,ExitCode,User"]
        runs: dict[int, list[list[str]]] = {}
        for line in fleet.mini.exec(words).stdout.splitlines():
            number, state, *more = line.split("|")
            runs.setdefault(int(number), []).append([state.split()[0], *more])
        return runs

    seen: dict[str, Any] = {}

    def rows() -> dict[int, Any]:
        found = {row["job_id"]: row for row in fleet.accounts() if row["end_s"]}
        held_s = held_by_log(fleet)
        slurm = sacct()
        seen.update(sacct=slurm, acct={job: row["gpu_held_s"] for job, row in found.items()}, held_s=held_s)
        if not found.keys() >= ends.keys() or any(slurm.get(job, [[""]])[-1][0] != ends[job] for job in ends):
            return {}
        # A pair's turns have several lines, each written a moment after what it tells.
        apart_s = {job: abs(found[job]["gpu_held_s"] - held_s.get(job, 0.0)) for job in ends}
        is_same = all(apart < (0.5 if found[job]["packed_with"] else 0.25) for job, apart in apart_s.items())
        return found if is_same else {}

    wait_for(rows, lambda: f"accounts to be what the nodes' logs have, and Slurm's {ends}: {seen}")

    def both() -> tuple[dict[int, Any], dict[int, Any]] | None:
        """What the page and the command tell: the last hold comes to both some time after a job's end."""
        page = {row["job_id"]: row for row in browsed(fleet.mini, "acct")["acct"]["jobs"]}
        command = {row["job_id"]: row for row in fleet.accounts()}
        same = [page[job]["gpu_held_s"] == command[job]["gpu_held_s"] for job in ends]
        return (page, command) if all(same) else None

    slurm, (shown, acct) = sacct(), wait_for(both, "the page's accounts to be the command's")
    for job, state in ends.items():
        row, last = acct[job], slurm[job][-1]
        assert [row["state"], row["exit_code"], row["user"]] == last and row["state"] == state
        assert row["restarts"] == len(slurm[job]) - 1 == (job == moved)
        assert shown[job]["state"] == state
    assert [state for state, *_ in slurm[moved]] == ["REQUEUED", "COMPLETED"]
    assert acct[moved]["migrations"] == 1
    packed = {job for job, row in acct.items() if row["gpu_packed_s"] > 0}
    assert len(packed) == 2 and all({*acct[job]["packed_with"]} == packed - {job} for job in packed)
    report = {row["user"]: row for row in fleet.ask("report", *WEEK)["rows"]}
    for user, row in report.items():
        own = [acct[job]["gpu_held_s"] for job in ends if acct[job]["user"] == user]
        assert row["gpu_held_s"] == pytest.approx(sum(own), abs=0.005)
