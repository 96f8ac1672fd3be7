"""The commands, against a controller that answers from a table."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.cli import acct, jobids, main, nodes, queue, share, update, why
from gandiva_slurm.cli.jobids import JobId, is_wanted, parse_job_ids, parse_states, show_job_id
from gandiva_slurm.cli.table import Field, choose_fields, expand_codes, sacct_lines
from gandiva_slurm.model.errors import PeerError, UsageError

NOW_S = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))

JOB = {
    "job_id": 12, "array_job_id": 0, "array_task_id": None, "name": "train", "user": "user1", "account": "a1",
    "partition": "gandiva", "state": "RUNNING", "gpus": 2, "type": "v100", "node": "n1", "gpu_ids": [0, 1],
    "share": 0.334, "rate": 12.34, "parked_s": 65.2, "reason": "", "detail": "", "tickets": 100, "restart": 0,
    "submit_s": NOW_S, "start_s": NOW_S + 1, "suspends": 7, "reaims": 0, "off_boundary": 0, "steps": 99,
    "world": 2, "ranks": 2,
}  # fmt: skip
HELD = {
    **JOB, "job_id": 16, "array_job_id": 14, "array_task_id": 3, "user": "user2", "state": "HELD", "node": "",
    "gpu_ids": [], "share": None, "rate": 0, "parked_s": None, "reason": "NoRoom",
}  # fmt: skip
ENDED = {**JOB, "job_id": 9, "state": "ENDED"}
SPAN = {
    **JOB, "gpus": 4, "node": "n[1-2]", "nodes": 2, "gpu_ids": [0, 1, 0, 1],
    "places": [{"node": "n1", "gpus": [0, 1]}, {"node": "n2", "gpus": [0, 1]}],
}  # fmt: skip
DONE = {
    "job_id": 12, "name": "a_very_long_name", "user": "user1", "account": "a1", "partition": "gandiva",
    "state": "COMPLETED", "gpus": 2, "type": "v100", "node": "n1", "submit_s": NOW_S, "start_s": NOW_S + 1,
    "end_s": NOW_S + 91, "exit_code": "0:0", "gpu_held_s": 60.0, "gpu_run_s": 59.0, "gpu_parked_s": 90_000.0,
    "suspends": 7, "migrations": 1, "restarts": 0, "start_latency_s": 0.4567,
}  # fmt: skip
SHARE = {
    "window": [NOW_S, NOW_S + 60],
    "users": [
        {"account": "a1", "user": "user1", "tickets": 100, "norm_shares": 0.5, "gpu_s": 120.4,
         "effectv_share": 0.51, "entitled_share": 0.5, "served_fair": 1.02, "fair_share": None,
         "traded_in": {"v100": 60.0}, "traded_out": {"k80": 125.0, "p100": 1.0}},
    ],
}  # fmt: skip
WHY = {
    "job_id": 12, "state": "SUSPENDED", "code": "NotItsTurn",
    "sentence": "user3's job 15 holds GPU 0-3 of n1.",
    "evidence": ["pass 12 against 10"], "next": "its turn, within 2 quanta",
    "story": [{"t_s": NOW_S, "from": "RUNNING", "to": "SUSPENDED", "code": "NotItsTurn",
               "text": "quantum over"}],
}  # fmt: skip
NODE = {
    "node": "n1", "type": "v100", "gpus": 4, "slots": 16, "state": "UP", "slurm_state": "MIXED",
    "generation": 5, "report_age_s": 0.4, "residents": [12, 13], "reason": "",
    "holders": [
        {"gpu": 0, "job_id": 12, "user": "user1", "state": "RUNNING"}, {"gpu": 3, "job_id": None, "user": ""},
        {"gpu": 1, "job_id": 12, "user": "user1", "state": "RUNNING"},
        {"gpu": 2, "job_id": 13, "user": "user2", "state": "RUNNING"},
    ],
}  # fmt: skip

ANSWERS: dict[str, Any] = {
    "queue": [ENDED, HELD, JOB], "acct": [DONE], "share": SHARE, "why": WHY,
    "update": [{"job_id": 12, "priority": 80, "was": 50}], "nodes": [NODE],
}  # fmt: skip


class Shell:
    """Runs `gandiva ...` in this process and keeps what it printed and asked."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.error: Exception | None = None

    def answer(self, config: str | None, ask: str, args: dict[str, Any]) -> Any:
        self.asked.append((ask, args))
        if self.error:
            raise self.error
        return ANSWERS[ask]

    def __call__(self, *args: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as end:
            main.main(args)
        out = self.capsys.readouterr()
        assert end.value.code == status, out
        return out.out if status == 0 else out.err


@pytest.fixture
def gandiva(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    shell = Shell(capsys)
    for module in (queue, acct, jobids, share, update, why, nodes):
        monkeypatch.setattr(module, "query", shell.answer)
    return shell


def words(text: str) -> list[str]:
    return text.split()


def test_queue_shows_contract_columns(gandiva: Shell) -> None:
    lines = gandiva("queue").splitlines()
    heads = "JOBID USER STATE GPUS TYPE NODE(GPUS) SHARE RATE PARKED WHEN MOVESBY REASON"
    assert lines[0].split() == words(heads)
    assert lines[1].split() == words("12 user1 RUNNING 2 v100 n1(0-1) 33% 12.3/s 00:01:05 - - -")
    assert lines[2].split() == words("14_3 user2 HELD 2 v100 - - - - - - NoRoom")
    assert len(lines) == 3, "ended jobs are shown only when asked for"


@pytest.mark.parametrize(
    ("options", "want"),
    [
        (["-u", "user2"], ["14_3"]), (["-j", "12"], ["12"]), (["-j", "14"], ["14_3"]),
        (["-j", "14_3,12"], ["12", "14_3"]),        (["-t", "PD"], ["14_3"]),
        (["-t", "r"], ["12"]), (["-t", "all"], ["9", "12", "14_3"]),
        (["-j", "14_4"], []),
    ],
)  # fmt: skip
def test_queue_filters(gandiva: Shell, options: list[str], want: list[str]) -> None:
    assert gandiva("queue", "-h", "-o", "jobid%1", *options).split() == want


def test_queue_takes_squeue_codes_and_fields(gandiva: Shell) -> None:
    assert gandiva("queue", "-h", "-j", "12", "-o", "%.6i|%u").rstrip() == "    12 user1"
    assert gandiva("queue", "-h", "-j", "12", "-o", "node(gpus),name:8").split() == ["n1(0-1)", "train"]
    assert "fields: JobID User" in gandiva("queue", "-o", "nonsense", status=2)
    assert "codes: %A" in gandiva("queue", "-o", "%Z", status=2)


@pytest.mark.parametrize(
    ("places", "shown"),
    [
        ([("n1", [0, 1]), ("n2", [0, 1])], "n[1-2](0-1)"),
        ([("n1", [0, 1]), ("n2", [2, 3])], "n1(0-1),n2(2-3)"),
        ([("n1", [0, 2]), ("n2", [])], "n1(0,2),n2(?)"),
        ([("n1", []), ("n2", [])], "n[1-2]"),
    ],
)
def test_queue_names_all_nodes_of_a_job(
    gandiva: Shell, monkeypatch: pytest.MonkeyPatch, places: list[tuple[str, list[int]]], shown: str
) -> None:
    told = [{"node": node, "gpus": gpus} for node, gpus in places]
    monkeypatch.setitem(ANSWERS, "queue", [{**SPAN, "places": told}])
    assert gandiva("queue", "-h", "-o", "node(gpus),node,nodes,gpus").split() == [shown, "n[1-2]", "2", "4"]
    assert gandiva("queue", "-h", "-o", "%D").split() == ["2"]


def test_acct_folds_nodes(gandiva: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "acct", [{**DONE, "node": "n[1-2]", "nodes": 2}])
    assert gandiva("acct", "-n", "-P", "-o", "nodelist,nnodes").split() == ["n[1-2]|2"]


def test_json_is_versioned(gandiva: Shell) -> None:
    assert json.loads(gandiva("queue", "--json", "-u", "user1")) == {"version": 1, "jobs": [JOB]}
    assert json.loads(gandiva("share", "--json"))["users"][0]["served_fair"] == 1.02
    assert json.loads(gandiva("nodes", "--json"))["nodes"] == [NODE]
    assert json.loads(gandiva("why", "12", "--json"))["code"] == "NotItsTurn"
    assert json.loads(gandiva("acct", "--json", "-j", "12"))["jobs"][0]["gpu_held_s"] == 60.0


def test_acct_says_what_moves_took_and_lost_or_why_it_is_not_known(
    gandiva: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = ("acct", "-n", "-P", "-o", "ckpttime,loststeps,movesnote")
    known = {"ckpt_s": 3.25, "lost_steps": 30, "ckpt_why": "", "lost_steps_why": ""}
    monkeypatch.setitem(ANSWERS, "acct", [{**DONE, **known}])
    assert gandiva(*fields) == "3.250|30|\n"
    unknown = {"ckpt_s": None, "lost_steps": None, "ckpt_why": "nobody saw", "lost_steps_why": "no count"}
    monkeypatch.setitem(ANSWERS, "acct", [{**DONE, **unknown}])
    assert gandiva(*fields) == "-|-|LostSteps: no count; CkptTime: nobody saw\n"


def test_acct_draws_like_sacct(gandiva: Shell) -> None:
    lines = gandiva("acct", "-o", "jobid,jobname,state,gpuheld,gpuparked,elapsed,startlatency%8").splitlines()
    assert lines[0] == "JobID           JobName      State    GpuHeld  GpuParked    Elapsed StartLa+"
    assert lines[1] == "------------ ---------- ---------- ---------- ---------- ---------- --------"
    assert lines[2] == "12           a_very_lo+  COMPLETED   00:01:00 1-01:00:00   00:01:30    0.457"


def test_acct_parsable(gandiva: Shell) -> None:
    want = ["JobID|JobName", "12|a_very_long_name"]
    assert gandiva("acct", "-P", "--format", "jobid,jobname").splitlines() == want
    assert gandiva("acct", "-n", "-p", "--format=jobid%-30").splitlines() == ["12|"]


def test_acct_asks_for_whom_and_what(gandiva: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acct.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(acct.getpass, "getuser", lambda: "user1")
    gandiva("acct", "-A", "a1,a2", "-s", "cd,F")
    gandiva("acct", "-a")
    gandiva("acct", "-j", "12")
    (_, mine), (_, everybody), (_, one) = gandiva.asked
    assert (mine["users"], mine["accounts"], mine["states"]) == (
        ["user1"],
        ["a1", "a2"],
        ["COMPLETED", "FAILED"],
    )
    assert "users" not in {*everybody, *one}
    assert one["job_ids"] == [12] and "job_ids" not in {*mine, *everybody}


def test_acct_shows_the_partitions_asked_for(gandiva: Shell) -> None:
    assert gandiva("acct", "-n", "-P", "-o", "jobid", "-r", "cpu,gandiva") == "12\n"
    assert gandiva("acct", "-n", "-P", "-o", "jobid", "-r", "cpu") == ""


def test_acct_help_lists_every_field(gandiva: Shell) -> None:
    assert set(gandiva("acct", "-e").split()) == {field.name for field in acct.FIELDS}
    error = gandiva("acct", "-o", "jobid,MaxRSS", status=2)
    assert error.startswith("gandiva: error: unknown field 'MaxRSS'") and "GpuHeld" in error


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, ("midnight", "now")),
        ({"jobs": "1"}, ("epoch", "now")),
        ({"states": "R"}, ("now", "now")),
        ({"states": "R", "starttime": "11:00"}, ("11:00", "11:00")),
        ({"states": "R", "jobs": "1"}, ("epoch", "now")),
        ({"starttime": "11:00", "endtime": "11:30"}, ("11:00", "11:30")),
    ],
)
def test_acct_default_window_is_sacct_s(options: dict[str, str], want: tuple[str, str]) -> None:
    moments = {
        "epoch": 0.0, "now": NOW_S, "midnight": NOW_S - 43_200, "11:00": NOW_S - 3600, "11:30": NOW_S - 1800,
    }  # fmt: skip
    assert acct.default_window(options, NOW_S) == tuple(moments[name] for name in want)


def test_acct_refuses_a_window_that_ends_before_it_starts() -> None:
    with pytest.raises(UsageError, match="before it starts"):
        acct.default_window({"starttime": "11:00", "endtime": "10:00"}, NOW_S)


def test_acct_truncates_to_the_window(gandiva: Shell) -> None:
    window = ["-S", "2026-11-20T12:00:30", "-E", "2026-11-20T12:01:00"]
    assert gandiva("acct", "-T", "-n", "-P", "-o", "start,end,elapsed", *window).strip() == (
        "2026-11-20T12:00:30|2026-11-20T12:01:00|00:00:30"
    )


def test_share_shows_contract_columns(gandiva: Shell) -> None:
    lines = gandiva("share").splitlines()
    head = "Account User Tickets NormShares GpuTime EffectvShare ServedFair TradedIn TradedOut"
    assert lines[0].split() == words(head)
    assert lines[2].split()[:7] == words("a1 user1 100 0.500000 00:02:00 0.510000 1.020000")
    traded = gandiva("share", "-n", "-P", "-o", "TradedIn,TradedOut").strip()
    assert traded == "v100=00:01:00|k80=00:02:05,p100=00:00:01"


def test_share_shows_what_past_use_does_where_it_matters(
    gandiva: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**SHARE["users"][0], "fair_share": 0.25}]
    monkeypatch.setitem(ANSWERS, "share", {**SHARE, "users": rows})
    lines = gandiva("share").splitlines()
    assert lines[0].split()[-1] == "FairShare" and lines[2].split()[-1] == "0.250000"
    assert "FairShare" not in gandiva("share", "-o", "User,Tickets")


def test_share_asks_for_oneself_unless_told(gandiva: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(share.getpass, "getuser", lambda: "user1")
    gandiva("share")
    gandiva("share", "-a", "-S", "uts5")
    assert [args for _, args in gandiva.asked] == [{"users": ["user1"]}, {"start_s": 5.0}]


def test_why_tells_reason_evidence_next_and_story(gandiva: Shell) -> None:
    text = gandiva("why", "12", "--story")
    assert text.startswith("job 12 is SUSPENDED: NotItsTurn: user3's job 15 holds GPU 0-3 of n1.")
    assert "pass 12 against 10" in text and "next: its turn" in text and "RUNNING -> SUSPENDED" in text
    assert "story" not in gandiva("why", "12")


def test_why_finds_an_array_task(gandiva: Shell) -> None:
    gandiva("why", "14_3")
    assert gandiva.asked[-1] == ("why", {"job_id": 16, "story": False})
    assert "no job 14_9" in gandiva("why", "14_9", status=1)


def test_update_changes_the_priority_of_a_job_or_of_an_array_s_tasks(gandiva: Shell) -> None:
    assert gandiva("update", "12", "priority=80") == "job 12: priority 80, was 50\n"
    assert gandiva.asked[-1] == ("update", {"job_ids": [12], "priority": 80})
    assert json.loads(gandiva("update", "14", "Priority=0", "--json"))["jobs"][0]["priority"] == 80
    assert gandiva.asked[-1] == ("update", {"job_ids": [16], "priority": 0})
    assert "no job 9 " in gandiva("update", "9", "priority=1", status=1), "it has ended"


def test_update_changes_the_class_of_a_job(gandiva: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"job_id": 12, "job_class": "opportunistic", "was": "guaranteed"}
    monkeypatch.setitem(ANSWERS, "update", [changed])
    assert gandiva("update", "12", "class=opportunistic") == "job 12: class opportunistic, was guaranteed\n"
    assert gandiva.asked[-1] == ("update", {"job_ids": [12], "job_class": "opportunistic"})
    assert "expected guaranteed or opportunistic" in gandiva("update", "12", "class=best", status=2)
    assert "only priority=N" in gandiva("update", "12", "tickets=3", status=2)


@pytest.mark.parametrize(
    "change", ["priority", "priority=", "priority=-1", "priority=1e2", "nice=5", "priority=٣"]
)
def test_update_takes_nothing_else(gandiva: Shell, change: str) -> None:
    assert "100" in gandiva("update", "12", change, status=2) and gandiva.asked == []


def test_nodes_tells_who_holds_what(gandiva: Shell) -> None:
    lines = gandiva("nodes").splitlines()
    assert "0-1:12(user1) 2:13(user2) 3:-" in lines[1]
    assert gandiva("nodes", "-h", "-n", "n[2-9]") == ""
    assert "invalid node list" in gandiva("nodes", "-n", "n[2-", status=2)


def test_controller_down_is_exit_3_with_a_next_step(gandiva: Shell) -> None:
    gandiva.error = PeerError("gandivactld does not answer at h:1; see its log")
    assert gandiva("queue", status=3) == "gandiva: error: gandivactld does not answer at h:1; see its log\n"


def test_wrong_use_is_exit_2(gandiva: Shell) -> None:
    assert re.match(
        "gandiva: error: .*--nonsense.*; see `gandiva queue --help`", gandiva("queue", "--nonsense", status=2)
    )
    assert "invalid job id 'x'" in gandiva("queue", "-j", "x", status=2)
    assert "No such command" in gandiva("brew", status=2)


def test_fault_of_ours_shows_a_traceback_only_with_debug(gandiva: Shell) -> None:
    gandiva.error = ZeroDivisionError("oops")
    assert "Traceback" not in gandiva("queue", status=1)
    assert "Traceback" in gandiva("--debug", "queue", status=1)


def test_interrupt_is_exit_130(gandiva: Shell) -> None:
    gandiva.error = KeyboardInterrupt()  # type: ignore[assignment]
    assert gandiva("queue", status=130).strip() == ""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )


def test_closed_pipe_is_quiet(tmp_path: Path) -> None:
    script = tmp_path / "many_rows.py"
    script.write_text(
        "import gandiva_slurm.cli.queue as queue\n"
        "from gandiva_slurm.cli.main import main\n"
        f"queue.query = lambda *args: [{JOB!r}] * 20_000\n"
        "main(['queue'])\n"
    )
    shell = f"{sys.executable} {script} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (main.CLOSED_PIPE, "")
    assert done.stdout.startswith("JOBID")


def test_help_imports_no_command() -> None:
    code = "import sys\nfrom gandiva_slurm.cli.main import main\n"
    code += "try: main(['--help'])\nexcept SystemExit: pass\n"
    code += "heavy = ('gandiva_slurm.cli.', 'aiohttp', 'torch', 'pydantic')\n"
    code += "print([name for name in sys.modules if name.startswith(heavy)])"
    assert run_python(code).stdout.splitlines()[-1] == "['gandiva_slurm.cli.main']"


def test_query_imports_neither_aiohttp_nor_torch() -> None:
    code = "import sys, gandiva_slurm.cli.queue, gandiva_slurm.wire.auth\n"
    code += "print([m for m in ('aiohttp', 'torch', 'asyncio', 'ClusterShell') if m in sys.modules])"
    assert run_python(code).stdout.strip() == "[]"


def test_job_ids_and_states() -> None:
    assert parse_job_ids("12,13_4,14.batch") == (JobId(12, None), JobId(13, 4), JobId(14, None))
    assert [show_job_id(row) for row in (JOB, HELD)] == ["12", "14_3"]
    assert is_wanted(HELD, [JobId(16, None)]) and not is_wanted(JOB, [JobId(0, 3)])
    assert parse_states("pd,Running", ("PENDING", "RUNNING")) == ("PENDING", "RUNNING")
    with pytest.raises(UsageError, match="allowed: RUNNING"):
        parse_states("XX", ("RUNNING",))


def test_table_cuts_and_justifies() -> None:
    fields = choose_fields(
        "a%5,b%-4", (Field("A", 9, lambda row: row["a"]), Field("B", 9, lambda row: row["b"]))
    )
    assert list(sacct_lines(fields, [{"a": "123456", "b": "x"}], header=False)) == ["1234+ x   "]
    assert expand_codes("%.8i %9u", {"i": "jobid", "u": "user"}) == "jobid%8,user%-9"
