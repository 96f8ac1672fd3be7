"""What the command line is told, and what it is not."""

import asyncio
import json
import sqlite3
import threading
import time
from unittest import mock

import pytest

from gandiva_slurm.controller import api as controller_api
from gandiva_slurm.controller.api import Api
from gandiva_slurm.controller.privacy import read_rules
from gandiva_slurm.model.snapshot import JobOptions
from gandiva_slurm.wire.messages import Hold
from tests.controller.test_controller_restart import restart
from tests.patience import slowness

USER, ROOT, SLURM = 1001, 0, 64030
#: questions that once ended in an internal error
HOSTILE = (b'{"ask": []}', b'{"ask": {}}', b"[" * 100_000)


@pytest.fixture
async def ask(world):
    await world.start()
    api = Api(world.controller, frozenset({ROOT, SLURM}), lambda: read_rules(world.slurm))

    async def _ask(name, uid=USER, /, **args):
        return json.loads(await api.answer(json.dumps({"ask": name, "args": args}).encode(), uid))

    return _ask


async def data(ask, name, uid=USER, /, **args):
    answer = await ask(name, uid, **args)
    assert answer["ok"], answer
    assert answer["version"] == 1
    return answer["data"]


async def running(world, user="user1", gpus=2) -> int:
    job_id = world.slurm.submit(user, gpus)
    await world.until(lambda: world.runs(job_id))
    home = world.fleet[world.slurm.jobs[job_id].nodes[0]]
    key = (job_id, 0)
    await world.until(lambda: key in home.planned())
    await world.until(lambda: job_id in {item.job_id for item in residents(world, home.name)})
    return job_id


def residents(world, name: str):
    """What the controller has from a node."""
    report = world.controller.reports.get(name)
    return report.residents if report else ()


def hold_now(world, job_id: int, seconds: float, gpus=(0, 1)) -> None:
    """An open hold on the job's node, as its reports tell from now on."""
    job, now_ns = world.slurm.jobs[job_id], time.time_ns()
    times = (now_ns - round(seconds * 1e9), now_ns, 0)
    world.fleet[job.nodes[0]].open = [Hold(0, job_id, 0, job.user, gpus, *times)]


async def test_queue_shows_running_and_waiting_jobs(world, ask):
    job_id = await running(world)
    for node in world.slurm.nodes.values():
        world.slurm.nodes[node.name] = type(node)(**{**vars(node), "state": frozenset({"IDLE", "DRAIN"})})
    waiting = world.slurm.submit("user2", 4)
    await world.until(lambda: world.state(waiting) == "HELD")
    held_s = time.monotonic()
    hold_now(world, job_id, 6)
    await world.cycles(3)
    rows = {row["job_id"]: row for row in await data(ask, "queue")}
    row = rows[job_id]
    assert (row["user"], row["state"], row["gpus"], row["node"]) == ("user1", "RUNNING", 2, "n1")
    assert (row["rate"], row["steps"], row["suspends"], row["ranks"], row["world"]) == (2.5, 10, 3, 1, 1)
    assert row["gpu_ids"] == [0, 1] and row["start_s"] and row["submit_s"]
    # 2 of 4 GPUs for 6 of the last 60 seconds, and for what has passed since
    assert 0.049 <= row["share"] <= (6 + time.monotonic() - held_s) / 120 + 0.001
    assert (rows[waiting]["reason"], rows[waiting]["node"], rows[waiting]["share"]) == ("NodesDown", "", None)
    assert [row["job_id"] for row in await data(ask, "queue", user="user2")] == [waiting]
    assert [row["job_id"] for row in await data(ask, "queue", states=["RUNNING"])] == [job_id]
    assert [row["job_id"] for row in await data(ask, "queue", job_ids=[waiting])] == [waiting]


async def test_top_shows_the_first_of_an_order_and_counts_all(world, ask, monkeypatch):
    monkeypatch.setattr(controller_api, "FIGURES_S", 0.0)
    runs = await running(world)
    waits = [world.slurm.submit(user, 8, name=name) for user, name in (("user2", "zeta"), ("user1", "eta"))]
    await world.until(lambda: all(world.state(job) == "HELD" for job in waits))
    whole = {row["job_id"]: row for row in await data(ask, "queue")}

    async def ids(**args):
        told = await data(ask, "top", **args)
        apart = {"share": None, "when": None}
        assert all(row | apart == whole[row["job_id"]] | apart for row in told["rows"])
        return [row["job_id"] for row in told["rows"]], told["counts"]

    everyone = {"RUNNING": 1, "HELD": 2}
    assert await ids(most=9) == ([runs, *waits], everyone)
    assert await ids(most=1) == ([runs], everyone) and await ids(most=-1) == ([], everyone)
    assert await ids(most=9, order="newest") == ([*reversed(waits), runs], everyone)
    assert await ids(most=9, order="gpus") == ([*waits, runs], everyone)
    assert await ids(most=9, users=["user1"]) == ([runs, waits[1]], {"RUNNING": 1, "HELD": 1})
    assert await ids(most=9, match="ETA") == (waits, {"HELD": 2})
    assert await ids(most=9, match="zeta") == (waits[:1], {"HELD": 1})


async def test_job_of_two_nodes_is_shown_as_one(world, ask):
    job_id = world.slurm.submit("user1", 4, nodes_asked=2)
    await world.until(lambda: world.runs(job_id))
    for name in ("n1", "n2"):
        home = world.fleet[name]
        await world.until(lambda home=home: (job_id, 0) in home.planned())
        home.hold(job_id, 2.0, gpus=(0, 1))
        await world.until(lambda home=home: home.plan.ack_seq == 1)
    (part,) = world.fleet["n2"].plan.jobs
    assert (part.gpus, part.span) == ((0, 1), (("n1", (0, 1)), ("n2", (0, 1))))
    await world.until(lambda: residents(world, "n1") and residents(world, "n2"))
    (row,) = await data(ask, "queue")
    assert (row["gpus"], row["node"], row["nodes"], row["type"]) == (4, "n[1-2]", 2, "v100")
    assert row["places"] == [{"node": "n1", "gpus": [0, 1]}, {"node": "n2", "gpus": [0, 1]}]
    assert (row["gpu_ids"], row["ranks"]) == ([0, 1, 0, 1], 2)
    # 8 GPU-seconds of the last minute's 480
    assert row["share"] == pytest.approx(8 / 480, rel=0.1)
    (row,) = await data(ask, "acct", start_s=0)
    assert (row["gpu_held_s"], row["node"], row["nodes"], row["gpus"]) == (pytest.approx(8.0), "n[1-2]", 2, 4)
    evidence = (await data(ask, "why", job_id=job_id))["evidence"]
    after = [evidence[evidence.index(f"node {name}, GPUs 0,1") + 1] for name in ("n1", "n2")]
    assert [line for line in evidence if "1 of 1 ranks" in line] == after
    nodes = await data(ask, "nodes")
    assert [[item["job_id"] for item in row["residents"]] for row in nodes] == [[job_id], [job_id]]


async def test_silent_node_of_two_is_named(world, ask):
    job_id = world.slurm.submit("user1", 4, nodes_asked=2)
    await world.until(lambda: world.runs(job_id))
    world.fleet["n2"].is_down = True
    await world.until(lambda: world.controller.nodes["n2"].is_silent)
    evidence = (await data(ask, "why", job_id=job_id))["evidence"]
    (told,) = [line for line in evidence if line.startswith("gandivad on ")]
    assert told.startswith("gandivad on n2 does not answer: ")


async def test_acct_and_share_tell_gpu_time(world, ask):
    job_id = await running(world)
    home = world.fleet[world.slurm.jobs[job_id].nodes[0]]
    home.hold(job_id, 2.0, gpus=(0, 1))
    await world.until(lambda: home.plan.ack_seq == 1)
    (row,) = await data(ask, "acct", start_s=0)
    assert row["gpu_held_s"] == pytest.approx(4.0)
    assert (row["state"], row["suspends"], row["type"], row["exit_code"]) == ("RUNNING", 3, "v100", "0:0")
    assert row["start_latency_s"] is not None
    share = await data(ask, "share", start_s=0)
    (user,) = share["users"]
    assert (user["user"], user["gpu_s"], user["effectv_share"]) == ("user1", pytest.approx(4.0), 1.0)
    assert share["window"][0] == 0
    assert await data(ask, "acct", start_s=0, users=["user9"]) == []
    assert (await data(ask, "share", start_s=0, users=["user9"]))["users"] == []


async def test_why_gives_reason_evidence_next_and_story(world, ask):
    job_id = await running(world)
    answer = await data(ask, "why", job_id=job_id, story=True)
    assert (answer["state"], answer["code"]) == ("RUNNING", "Running")
    assert any("1 of 1 ranks" in line for line in answer["evidence"])
    assert answer["next"]
    moves = [(line["from"], line["to"]) for line in answer["story"] if line["from"] != line["to"]]
    assert moves[:2] == [("HELD", "STARTING"), ("STARTING", "RUNNING")]
    assert (await data(ask, "why", job_id=job_id))["story"] == []


async def test_why_says_what_flags_come_to(world, ask):
    asked = JobOptions(gpus=1, vc="vision", cell="socket")
    job_id = world.slurm.submit("user1", 1, options=asked)
    await world.until(lambda: world.runs(job_id))
    evidence = (await data(ask, "why", job_id=job_id))["evidence"]
    assert [line.partition(":")[0] for line in evidence if line.startswith("--gandiva")] == [
        "--gandiva-vc=vision",
        "--gandiva-cell=socket",
    ]
    flat = "; of v100 gandiva.yaml tells none (cells): there any of a node do"
    assert f"--gandiva-cell=socket: its GPUs are to share a socket{flat}" in evidence
    assert "--gandiva-vc=vision: recorded; no virtual clusters are configured" in evidence


async def test_why_of_an_unknown_job_says_where_to_look(ask):
    answer = await ask("why", job_id=4711)
    assert answer == {
        "version": 1,
        "ok": False,
        "error": "Gandiva has no job 4711 now; `gandiva acct -j 4711` looks back",
        "exit": 1,
    }


async def test_nodes_show_holders_and_silence(world, ask):
    job_id = await running(world)
    hold_now(world, job_id, 1)
    other = {"n1": "n2", "n2": "n1"}[world.slurm.jobs[job_id].nodes[0]]
    world.fleet[other].is_down = True
    await world.until(lambda: world.controller.nodes[other].is_silent)
    await world.cycles(3)
    rows = {row["node"]: row for row in await data(ask, "nodes")}
    home = rows[world.slurm.jobs[job_id].nodes[0]]
    assert (home["state"], home["gpus"], home["slots"], home["type"]) == ("up", 4, 16, "v100")
    assert [item["job_id"] for item in home["holders"]] == [job_id, job_id, None, None]
    holder = {"gpu": 0, "job_id": job_id, "user": "user1", "state": "RUNNING", "packed_with": None}
    assert home["holders"][0] == holder
    assert home["residents"][0]["user"] == "user1" and home["generation"] > 0
    assert rows[other]["state"] == "silent" and "cannot be reached" in rows[other]["reason"]


async def test_holds_are_for_operators(world, ask):
    job_id = await running(world)
    hold_now(world, job_id, 1)
    await world.cycles(3)
    refused = await ask("holds", USER)
    assert not refused["ok"] and "root and SlurmUser only" in refused["error"]
    for uid in (ROOT, SLURM):
        (row,) = await data(ask, "holds", uid, start_s=0)
        assert (row["job_id"], row["open"], row["gpus"]) == (job_id, True, [0, 1])


async def test_ping_tells_cycle_and_staleness(world, ask):
    await world.cycles(2)
    answer = await data(ask, "ping")
    assert answer["cluster"] == "mini" and answer["cycle"] >= 2 and answer["errors"] == 0
    world.slurm.is_down = True
    await world.until(lambda: world.controller.status.slurm_error)
    assert "Unable to contact" in (await data(ask, "ping"))["slurm_error"]


@pytest.mark.parametrize(
    ("name", "args", "want"),
    [
        ("quux", {}, "unknown question 'quux'; known: queue, acct"),
        ("acct", {"start_s": "yesterday"}, "start_s: expected unix seconds"),
        ("acct", {"start_s": True}, "start_s: expected unix seconds"),
        ("acct", {"start_s": 20, "end_s": 10}, "ends (10) before it starts (20)"),
        ("acct", {"users": "user1"}, "users: expected a list of texts"),
        ("acct", {"job_ids": [True]}, "job_ids: expected whole numbers"),
        ("queue", {"user": 7}, "user: expected a text"),
        ("top", {"most": 1, "order": "x"}, "no order 'x'; known: state, user, gpus, newest"),
        ("top", {"most": "many"}, "most: expected whole numbers"),
        ("top", {}, "most: expected whole numbers"),
        ("top", {"most": 1, "match": 7}, "match: expected a text"),
        ("why", {"job_id": "x"}, "job_id: expected whole numbers"),
        ("why", {}, "job_id: expected whole numbers"),
    ],
)
async def test_question_typed_wrong_is_a_usage_error(ask, name, args, want):
    answer = await ask(name, **args)
    assert (answer["ok"], answer["exit"]) == (False, 2)
    assert want in answer["error"]


async def test_a_window_may_end_long_after_the_ledger_s_last_nanosecond(world, ask):
    job_id = await running(world)
    await world.cycles(3)
    rows = await data(ask, "acct", end_s=32_503_680_000)
    assert [row["job_id"] for row in rows] == [job_id]
    assert (await data(ask, "share", end_s=9e10))["users"] != []


async def test_owners_and_operators_change_a_priority_and_nobody_else(world, ask):
    """It is in the journal when the answer comes, and the job keeps it when it is requeued."""
    job_id = await running(world)
    owner = world.slurm.jobs[job_id].uid
    other = world.slurm.submit("user2", 1)
    await world.until(lambda: other in world.controller.engine.jobs)
    for jobs in ([job_id], [job_id, other]):
        refused = await ask("update", world.slurm.jobs[other].uid, job_ids=jobs, priority=100)
        assert (refused["ok"], refused["exit"]) == (False, 1) and "is of user1" in refused["error"]
    assert world.controller.engine.jobs[other].priority == 50, "all or none"
    changed = await data(ask, "update", owner, job_ids=[job_id], priority=80)
    assert changed == [{"job_id": job_id, "priority": 80, "was": 50}]
    await restart(world, "kept")
    await world.until(lambda: world.runs(job_id))
    api = Api(world.controller, frozenset({ROOT, SLURM}), lambda: read_rules(world.slurm))
    told = json.loads(await api.answer(json.dumps({"ask": "why", "args": {"job_id": job_id}}).encode(), USER))
    assert "priority 80 by gandiva update; submitted with 50" in told["data"]["evidence"]
    again = json.dumps({"ask": "update", "args": {"job_ids": [job_id], "priority": 0}}).encode()
    (row,) = json.loads(await api.answer(again, ROOT))["data"]
    assert row["was"] == 80


async def test_an_owner_changes_the_class_of_a_job_that_runs(world, ask):
    job_id = await running(world)
    owner, was = world.slurm.jobs[job_id].uid, "guaranteed"
    for to in ("opportunistic", "guaranteed", "opportunistic"):
        changed = await data(ask, "update", owner, job_ids=[job_id], job_class=to)
        assert changed == [{"job_id": job_id, "job_class": to, "was": was}]
        was = to
    told = (await data(ask, "why", job_id=job_id))["evidence"]
    assert "opportunistic by gandiva update; submitted as guaranteed" in told
    assert any(line.startswith("opportunistic: it has what") for line in told)
    await restart(world, "kept")
    await world.until(lambda: world.runs(job_id))
    assert world.controller.engine.jobs[job_id].is_opportunistic


async def test_what_is_no_change_is_answered_at_once(world, ask):
    """A user who asks for it again and again does not set the controller's pace."""
    job_id = await running(world)
    with mock.patch.object(world.controller.requests, "ask", side_effect=AssertionError):
        (row,) = await data(ask, "update", ROOT, job_ids=[job_id], priority=50)
    assert row["was"] == 50


@pytest.mark.parametrize("trouble", ["keep", "disk"])
async def test_a_priority_that_is_not_kept_is_told_so_and_comes_to_be_later(world, ask, monkeypatch, trouble):
    """While cycles fail, or the journal cannot be written, the answer does not say that all is well."""
    monkeypatch.setattr("gandiva_slurm.controller.api.UPDATE_S", 0.5)
    job_id = await running(world)
    journal, full = world.controller.books.journal, sqlite3.OperationalError("database or disk is full")

    def write(*words):
        raise full

    broken = mock.patch.object(world.controller, "keep", side_effect=RuntimeError("broken"))
    with broken if trouble == "keep" else mock.patch.object(journal, "write", write):
        told = await ask("update", ROOT, job_ids=[job_id], priority=7)
        assert not told["ok"] and "has not kept this within 0.5 s" in told["error"]
    world.want_errors = world.controller.status.errors
    await world.until(lambda: world.controller.engine.jobs[job_id].priority == 7)
    await world.until(lambda: world.controller.requests.take() == [])


@pytest.mark.parametrize("args", [
    {}, {"job_ids": [1]}, {"job_ids": ["1"], "priority": 1}, {"job_ids": [1], "priority": 101},
    {"job_ids": [1], "priority": -1}, {"job_ids": [1], "priority": True}, {"job_ids": [1], "priority": 1e9},
    {"job_ids": [], "priority": 1}, {"job_ids": 1, "priority": 1}, {"job_ids": [1], "job_class": "best"},
    {"job_ids": [1], "job_class": ["guaranteed"]}, {"job_ids": [1], "job_class": "guaranteed", "priority": 1},
])  # fmt: skip
async def test_a_bad_update_changes_nothing(ask, args):
    answer = await ask("update", ROOT, **args)
    assert (answer["ok"], answer["exit"]) == (False, 2)


async def test_a_job_that_is_unknown_or_has_ended_is_not_changed(world, ask):
    assert "no job 4711" in (await ask("update", ROOT, job_ids=[4711], priority=1))["error"]
    job_id = await running(world)
    world.slurm.finish(job_id)
    await world.until(lambda: world.state(job_id) == "ENDED")
    assert f"no job {job_id}" in (await ask("update", ROOT, job_ids=[job_id], priority=1))["error"]


async def test_slow_questions_of_many_users_leave_threads_for_signatures(world, ask, monkeypatch):
    await data(ask, "acct")
    free = threading.Event()
    monkeypatch.setattr("gandiva_slurm.controller.api.job_usage", lambda *args: free.wait(20) and [])
    slow = [asyncio.create_task(data(ask, "acct")) for _ in range(64)]
    try:
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "signed"), 10 * slowness()) == "signed"
    finally:
        free.set()
        assert await asyncio.gather(*slow) == [[]] * 64


async def test_one_user_s_slow_questions_keep_no_other_user_waiting(ask, monkeypatch):
    busy, free, slow = threading.Event(), threading.Event(), {"users": ["slow"]}

    def answer(db, window, wanted, holds):
        if wanted.users:
            busy.set()
            free.wait(60)
        return []

    monkeypatch.setattr("gandiva_slurm.controller.api.job_usage", answer)
    first = [asyncio.create_task(data(ask, "acct", **slow)) for _ in range(8)]
    try:
        assert await asyncio.to_thread(busy.wait, 20)
        for _ in range(100):  # all eight are on their way to a reader
            await asyncio.sleep(0)
        assert await asyncio.wait_for(data(ask, "acct", ROOT), 10 * slowness()) == []
    finally:
        free.set()
        assert await asyncio.gather(*first) == [[]] * 8


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"ask": "queue", "args": 3}', b"\xff", *HOSTILE])
async def test_noise_is_a_usage_error(world, payload):
    await world.start()
    api = Api(world.controller, frozenset(), lambda: read_rules(world.slurm))
    answer = json.loads(await api.answer(payload, USER))
    assert (answer["ok"], answer["exit"]) == (False, 2)
