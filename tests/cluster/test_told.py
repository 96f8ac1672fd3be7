"""On a real Slurm: queue, nodes, acct, eff, report, metrics, web, files and the node's log say the same."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gandiva_slurm.cli.web.answers import PATHS
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.model.job import SLICED
from tests import patience
from tests.cluster.fleet import Fleet, forecast, own_cluster, said, wait_for

DCGM, GPUSTAT = "/run/gandiva-dcgm", "/run/gandiva-gpustat"
CONF = "/etc/slurm/gandiva.yaml"
WEEK = ("-S", "now-1hour")


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    node = {"dcgm_mapping_dir": DCGM, "gpustat_dir": GPUSTAT}
    with own_cluster("told", "v100:1x1", 1.0, node=node, packing={"enabled": False}) as made:
        yield made


def told_of_gpu(mini: MiniCluster, where: str) -> tuple[int, ...]:
    """The numbers in the file of GPU 0."""
    try:
        return tuple(map(int, (mini.path(where) / "0").read_text().split()))
    except FileNotFoundError:
        return ()


def scraped(mini: MiniCluster, user: str) -> dict[str, float]:
    """Each metric, summed over its labels, as a user without rights prints them."""
    told = said(mini, "metrics", "--once", user=user)
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(told):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


#: Serves for a moment as a user without rights, and shows what a browser of user1's is given.
SERVE = """
import http.client, json, os, socket, subprocess, sys, tempfile, time
folder = tempfile.mkdtemp()
conf, path = folder + "/gandiva.yaml", folder + "/web.sock"
with open(sys.argv[1]) as file, open(conf, "w") as copy:
    copy.write(file.read() + f"\\nweb: {{listen: {path}}}\\n")
served = subprocess.Popen(["gandiva", "-f", conf, "web"], stdin=subprocess.DEVNULL)
def get(what):
    link = http.client.HTTPConnection("x", timeout=20)
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.connect(path)
    link.request("GET", "/api/v1/" + what, headers={"X-Remote-User": "user1"})
    answer = link.getresponse()
    told = json.loads(answer.read())
    if answer.status == 503 and time.monotonic() < end:  # its daemon is busy
        time.sleep(0.2)
        return get(what)
    assert answer.status == 200, told
    return told
end = time.monotonic() + 120
while not os.path.exists(path) and served.poll() is None and time.monotonic() < end:
    time.sleep(0.05)
try:
    print(json.dumps({what: get(what) for what in sys.argv[2:]}))
finally:
    served.terminate()
    served.wait()
"""


def browsed(mini: MiniCluster, *paths: str) -> dict[str, Any]:
    """What `gandiva web` tells at each path, held to its description."""
    words = ["python3", "-c", SERVE, CONF, *paths]
    told: dict[str, Any] = json.loads(mini.exec(words, user="user3").stdout)
    shapes = {path: answer for path, _, answer, _ in PATHS}
    for path, one in told.items():
        shapes["jobs/{job_id}" if path.startswith("jobs/") else path].model_validate(one)
    return told


def held_s(fleet: Fleet, job: int) -> float:
    """GPU seconds held, by the node's own log."""
    lines = fleet.events()
    return sum(line["held_ms"] / 1e3 for line in lines if line["event"] == "release" and line["job"] == job)


def test_all_that_is_told_of_sliced_jobs_agrees(fleet: Fleet) -> None:
    mini, jobs = fleet.mini, {}
    for user in ("user1", "user2"):
        jobs[user] = fleet.train(user, "one")
        fleet.wait_running(jobs[user])
    seen: set[tuple[int, ...]] = set()
    for user, job in jobs.items():
        wait_for(lambda job=job: told_of_gpu(mini, DCGM) == (job,), f"{DCGM} to tell of job {job}")
        wait_for(lambda job=job: told_of_gpu(mini, GPUSTAT)[:1] == (job,), f"{GPUSTAT} to tell of {job}")
        wait_for(lambda job=job: fleet.count("parked", job) >= 3, f"job {job} to be parked three times")
        uid = int(mini.exec(["id", "-u", user]).stdout)
        seen.add((job, uid))
    shown: set[tuple[int, ...]] = set()
    wait_for(lambda: shown.add(told_of_gpu(mini, GPUSTAT)) or shown >= seen, lambda: f"{seen} in {shown}")
    assert shown <= seen | {()}
    figures, queue = scraped(mini, "user3"), fleet.ask("queue")["jobs"]
    assert figures["gandiva_jobs"] == len(queue) == 2
    check_forecast(fleet, jobs)
    assert figures["gandiva_gpus_wanted"] == sum(row["gpus"] for row in queue)
    assert (figures["gandiva_node_gpus"], figures["gandiva_node_jobs"]) == (1, 2)
    assert (figures["gandiva_up"], figures["gandiva_slurm_up"]) == (1, 1)
    told = browsed(mini, "health", "jobs", "nodes", "shares", f"jobs/{jobs['user1']}")
    assert [row["job_id"] for row in told["jobs"]["jobs"]] == [row["job_id"] for row in queue]
    (node,) = told["nodes"]["nodes"]
    assert {item["job_id"] for item in node["residents"]} == {*jobs.values()}
    assert told[f"jobs/{jobs['user1']}"]["job"]["user"] == "user1" and told["health"]["slurm_error"] == ""
    for user, job in jobs.items():
        fleet.stop(user, "one")
        fleet.wait_ended(job, "COMPLETED")
    wait_for(lambda: not list(mini.path(DCGM).iterdir()), "no GPU to be told as held")
    check_accounts(fleet, jobs)


def check_forecast(fleet: Fleet, jobs: dict[str, int]) -> None:
    """What is foretold: both have started, have their turns by turns, and end within their limits."""
    assert "no forecast: none was made yet" in said(fleet.mini, "when", str(jobs["user1"]))
    forecast(fleet)
    for user, job in jobs.items():
        told = fleet.ask("when", str(job))
        (row,) = told["jobs"]
        assert told["forecast"]["age_s"] < 60 * patience.slowness() and row["state"] in SLICED
        _, turn_s, _ = row["turn"]
        assert told["forecast"]["of_s"] <= turn_s <= told["forecast"]["of_s"] + 30
        # A forecast that had too little time on a busy machine says how far it came.
        end_s = row["end"][1] if row["end"][1] is not None or not told["forecast"]["reached_s"] else math.inf
        assert row["start"][1] < told["forecast"]["of_s"] < end_s
        shown = said(fleet.mini, "when", str(job), user=user)
        assert f"job {job} is " in shown and "next turn" in shown
    rows = {row["job_id"]: row for row in fleet.ask("queue")["jobs"]}
    for job in jobs.values():
        (row,) = fleet.ask("when", str(job))["jobs"]
        assert all(rows[job]["when"][name] == row[name] for name in ("turn", "start", "end"))
    turns = said(fleet.mini, "queue", "-h", "-o", "when").split()
    assert len(turns) == 2 and all(word.partition("+")[0] in ("turn", "end") for word in turns), turns
    wished = fleet.ask("when", str(job), "--if", "tickets=1000")
    assert wished["then"]["end"] and wished["forecast"]["runs"] >= 1
    refused = fleet.mini.exec(["gandiva", "when", str(job), "--if", "gpus=2"], check=False)
    assert refused.returncode == 1 and f"job {job} has begun" in refused.stderr


def check_accounts(fleet: Fleet, jobs: dict[str, int]) -> None:
    """What the jobs held, by each that tells of it."""

    def rows() -> dict[int, Any]:
        found = {row["job_id"]: row for row in fleet.accounts() if row["end_s"]}
        if not found.keys() >= {*jobs.values()}:
            return {}
        apart_s = [abs(found[job]["gpu_held_s"] - held_s(fleet, job)) for job in jobs.values()]
        # The last hold may be of some milliseconds.
        return found if max(apart_s) < 0.0005 else {}

    acct = wait_for(rows, lambda: f"acct {fleet.ask('acct', '-a')} to be what the node's log has")
    shown = browsed(fleet.mini, "acct", "shares")
    for row in shown["acct"]["jobs"]:
        assert row["gpu_held_s"] == acct[row["job_id"]]["gpu_held_s"]
    assert {row["user"] for row in shown["shares"]["users"]} >= {*jobs}
    report = {row["user"]: row for row in fleet.ask("report", *WEEK)["rows"]}
    for user, job in jobs.items():
        (eff,) = fleet.ask("eff", str(job))["jobs"]
        assert eff["gpu_held_s"] == acct[job]["gpu_held_s"]
        useful = acct[job]["gpu_run_s"] / acct[job]["gpu_held_s"]
        assert eff["steps"] > 0 and eff["useful"] == pytest.approx(useful, abs=0.02) and eff["idle"] is None
        for name in ("gpu_held_s", "gpu_parked_s"):
            assert report[user][name] == pytest.approx(acct[job][name], abs=0.001), name
        run_s = acct[job]["gpu_held_s"] - report[user]["gpu_parking_s"]
        assert run_s == pytest.approx(acct[job]["gpu_run_s"], abs=0.001)
        both_s = acct[job]["gpu_held_s"] + acct[job]["gpu_parked_s"]
        assert report[user]["gpu_exclusive_s"] == pytest.approx(both_s, abs=0.001)
    told = said(fleet.mini, "eff", str(jobs["user1"]), user="user1")
    assert told.startswith(f"job {jobs['user1']} ") and "advice" in told
    page = said(fleet.mini, "report", *WEEK, user="user1")
    assert "| user1 |" in page and "sharing put" in page
