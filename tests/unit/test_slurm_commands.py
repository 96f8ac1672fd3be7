"""Running commands and acting by them: deadlines, refusals, retries, many starts."""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gandiva_slurm.model.errors import NotNow, SlurmBusy, SlurmRefused, SlurmUnreachable
from gandiva_slurm.slurm import control
from gandiva_slurm.slurm.commands import CommandsPort, Timeouts
from gandiva_slurm.slurm.control import Control
from gandiva_slurm.slurm.run import Answer, Commands, complaint, environment
from tests.park_harness import is_alive

DONE = Answer(0, "", "")
BUSY = Answer(
    1, "", "Job update not available right now, the DB index is being set, try again in a bit for job 1"
)


class Script(Commands):
    """Answers by the words of a call; the last answer of a list stays."""

    def __init__(self, answers: dict[str, list[Answer]] | None = None) -> None:
        super().__init__()
        self.answers = answers or {}
        self.calls: list[str] = []

    async def run(self, argv: Sequence[str], timeout_s: float) -> Answer:
        call = " ".join(argv)
        self.calls.append(call)
        answers = next((item for words, item in self.answers.items() if words in call), [DONE])
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PAUSE_S", 0)


async def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "child"
    began = time.monotonic()
    with pytest.raises(SlurmUnreachable, match=r"no answer within 3 s; is slurmctld up"):
        await Commands().run(["sh", "-c", f"sleep 60 & echo $! > {note}; wait"], 3)
    assert time.monotonic() - began < 40
    child = int(note.read_text())
    for _ in range(500):
        if not is_alive(child):
            return
        await asyncio.sleep(0.01)
    pytest.fail("the child of a command that was ended is alive")


async def test_a_command_that_is_cancelled_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    task = asyncio.create_task(Commands().run(["sh", "-c", f"echo $$ > {note}; exec sleep 60"], 60))
    while not (note.exists() and note.read_text().strip()):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


async def test_a_missing_command_says_where_to_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmUnreachable, match=r"squeue: No such file.*on the PATH of this daemon"):
        await Commands().run(["squeue", "--json"], 5)


async def test_what_a_command_says_is_kept() -> None:
    answer = await Commands().run(["sh", "-c", "printf out; printf 'a\\n\\033[1mb\\n' >&2; exit 3"], 5)
    assert answer == Answer(3, "out", "a; [1mb")


def test_users_variables_do_not_reach_slurms_commands() -> None:
    kept = environment(
        {"PATH": "/bin", "SQUEUE_FORMAT": "%i", "SLURM_CLUSTERS": "x", "SLURM_CONF": "/c", "LC_ALL": "de"}
    )
    assert kept == {
        "PATH": "/bin",
        "SLURM_CONF": "/c",
        "LC_ALL": "C",
        "SLURM_TIME_FORMAT": "standard",
        "SLURM_BITSTR_LEN": "0",
        "SLURM_JSON": "compact",
    }


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)", SlurmUnreachable),
        ("Unexpected message received for job 10", SlurmUnreachable),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", SlurmUnreachable),
        (BUSY.err, SlurmBusy),
        ("Invalid node name specified for job 1", SlurmRefused),
        ("Access/permission denied for job 1", SlurmRefused),
    ],
)
def test_slurms_sentence_tells_the_kind_of_failure(sentence: str, kind: type[Exception]) -> None:
    error = complaint(["scontrol", "hold", "1"], Answer(1, "", sentence))
    assert type(error) is kind
    assert str(error) == f"scontrol hold 1: {sentence}"


def test_busy_is_not_now() -> None:
    assert isinstance(complaint(["scontrol"], BUSY), NotNow)


async def test_start_places_before_it_releases() -> None:
    script = Script()
    await CommandsPort(["gandiva"], commands=script).start(7, ["n1"])
    assert script.calls == ["scontrol update JobId=7 ReqNodeList=n1 StartTime=now", "scontrol release 7"]


async def test_a_job_that_cannot_be_placed_is_not_released() -> None:
    script = Script({"update": [Answer(1, "", "Invalid node name specified for job 7")]})
    with pytest.raises(SlurmRefused, match="scontrol update JobId=7: Invalid node name"):
        await CommandsPort(["gandiva"], commands=script).start(7, ["n9"])
    assert not any("release" in call for call in script.calls)


@pytest.mark.parametrize("node", ["", "n1 Priority=9", "-n", "n1,n2", "n[1-2]", "n\n"])
async def test_what_is_no_node_name_reaches_no_command(node: str) -> None:
    script = Script()
    with pytest.raises(SlurmRefused, match="is no node name"):
        await CommandsPort(["gandiva"], commands=script).start(7, ["n1", node])
    assert script.calls == []


async def test_busy_is_tried_again_for_a_while() -> None:
    script = Script({"hold": [BUSY, BUSY, DONE]})
    await Control(script, 5).hold("7")
    assert len(script.calls) == 3
    script = Script({"hold": [Answer(1, "", "Slurm backing off, try again")]})
    with pytest.raises(SlurmBusy):
        await Control(script, 5).hold("7")
    assert len(script.calls) == control.TRIES


async def test_a_job_that_is_numbered_for_ever_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """scontrol itself takes 5 s for each try; the refusal makes the next come later and later."""
    monkeypatch.setattr(control, "INSIST_S", 0.0)
    script = Script({"JobId=7 ": [BUSY]})
    with pytest.raises(SlurmRefused, match=control.FOR_GOOD):
        await Control(script, 5).start("7", ["n1"])
    assert len(script.calls) == 1


async def test_many_starts_share_one_release() -> None:
    script = Script({"JobId=2 ": [Answer(1, "", "Job has already finished for job 2")]})
    places = {1: ["n1"], 2: ["n1"], 3: ["n1", "n2"]}
    refused = await CommandsPort(["gandiva"], commands=script).start_many(places)
    assert list(refused) == [2]
    assert "scontrol update JobId=3 ReqNodeList=n1,n2 StartTime=now" in script.calls
    assert script.calls[-1] == "scontrol release 1,3"


async def test_a_release_refused_as_one_is_tried_one_by_one() -> None:
    no = Answer(1, "", "Job has already finished for job 2")
    script = Script({"release 1,2": [no], "release 2": [no]})
    refused = await CommandsPort(["gandiva"], commands=script).start_many({1: ["n1"], 2: ["n1"]})
    assert list(refused) == [2]
    assert script.calls[-2:] == ["scontrol release 1", "scontrol release 2"]


async def test_no_release_when_none_was_placed() -> None:
    script = Script({"update": [Answer(1, "", "Invalid job id specified")]})
    assert list(await CommandsPort(["gandiva"], commands=script).start_many({1: ["n1"]})) == [1]
    assert len(script.calls) == 1


async def test_slurmctld_going_away_stops_many_starts() -> None:
    script = Script({"update": [Answer(1, "", "Unable to contact slurm controller (connect failure)")]})
    with pytest.raises(SlurmUnreachable):
        await CommandsPort(["gandiva"], commands=script).start_many({1: ["n1"]})


async def test_slurmdbd_that_is_away_is_left_in_peace_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    away = Answer(1, "", "Unable to contact slurm database")
    empty = '{"jobs": [], "nodes": [], "errors": []}'
    script = Script(
        {
            "squeue": [Answer(0, empty, "")],
            "sinfo": [Answer(0, empty, "")],
            "show config": [Answer(0, "ClusterName = lab", "")],
            "sacctmgr": [away, away, Answer(0, "lab|ann||3|", "")],
        }
    )
    now_ns = 0
    port = CommandsPort(["gandiva"], Timeouts(), script, clock_ns=lambda: now_ns)
    assert (await port.snapshot(True)).associations is None
    assert (await port.snapshot(True)).associations is None
    assert sum("sacctmgr" in call for call in script.calls) == 1
    now_ns = 61 * 10**9
    assert (await port.snapshot(True)).associations is None
    now_ns = 122 * 10**9
    associations = (await port.snapshot(True)).associations
    assert associations is not None and associations[0].shares == 3
    assert any("sacctmgr" in call and "cluster=lab" in call for call in script.calls)
    told = [text.partition(":")[0] for text in caplog.messages if "associations" in text]
    assert told == ["associations not read, the old shares stay", "associations are read"]


async def test_a_split_that_fails_costs_no_picture(caplog: pytest.LogCaptureFixture) -> None:
    tape = Path(__file__).parents[1] / "contract/assets/22.05/test_a_throttled_array_is_split_no_further"
    whole = next(tape.glob("*squeue.json")).read_text()
    alone = whole.replace('"array_task_id":1,', '"array_task_id":null,').replace(
        '"array_task_id":2,', '"array_task_id":null,'
    )
    empty = '{"nodes": [], "errors": []}'
    script = Script(
        {
            "squeue": [Answer(0, alone, "")],
            "sinfo": [Answer(0, empty, "")],
            "hold": [Answer(1, "", "Invalid job id specified")],
        }
    )
    assert (await CommandsPort(["gandiva"], commands=script).snapshot(False)).jobs
    assert "stays in one record for now" in caplog.text


@pytest.mark.parametrize(
    ("state", "is_heard"),
    [
        ("MIXED", True),
        ("IDLE+DRAIN", True),
        ("MIXED*", False),
        ("DOWN", False),
        ("IDLE+NOT_RESPONDING", False),
        ("DOWN*+DRAIN", False),
        ("UNKNOWN", False),
        ("IDLE SlurmdStartTime=None", False),
        ("IDLE SlurmdStartTime=2026-11-29T00:37:45", True),
    ],
)
async def test_whether_slurm_hears_a_node(state: str, is_heard: bool) -> None:
    line = f"NodeName=n1 Arch=x86_64 State={state} ThreadsPerCore=1 Reason=was in State=IDLE before [root]"
    port = CommandsPort((), commands=Script({"scontrol": [Answer(0, line, "")]}))
    assert await port.hears("n1") is is_heard


async def test_what_slurm_shows_on_a_node() -> None:
    told = "1                   0           \n27                  3           \n"
    script = Script({"squeue": [Answer(0, told, "")]})
    assert await CommandsPort((), commands=script).shown("n1") == {(1, 0), (27, 3)}
    for answer, error in ((Answer(0, "N/A 0", ""), "not understood"), (Answer(1, "", "no"), "no")):
        port = CommandsPort((), commands=Script({"squeue": [answer]}))
        with pytest.raises((SlurmUnreachable, SlurmRefused), match=error):
            await port.shown("n1")
