"""pyslurm in its worker, where it hangs, dies or refuses; and what is made of its answers."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import gandiva_slurm
from gandiva_slurm.model.errors import SlurmBusy, SlurmRefused, SlurmUnreachable
from gandiva_slurm.model.snapshot import SlurmJob, SlurmNode
from gandiva_slurm.slurm import pyslurm_fields, run
from gandiva_slurm.slurm.pyslurm_fields import Told, job_records, node_records
from gandiva_slurm.slurm.pyslurm_link import Worker
from gandiva_slurm.slurm.pyslurm_port import PyslurmPort, parse_told
from gandiva_slurm.slurm.reader import pick_jobs, pick_nodes
from gandiva_slurm.slurm.run import Answer, Commands
from tests import patience

OURS = frozenset({"gandiva"})
#: As much of pyslurm as the worker uses; what is behind `#` is put in by a test.
STAND_IN = """
import os, sys, time
from types import SimpleNamespace
# at import
__version__ = "25.11.2"
class PyslurmError(Exception): pass
class RPCError(PyslurmError): pass
class Config:
    @staticmethod
    def load():
        # at versions
        return SimpleNamespace(version="26.05.5")
slurmctld = SimpleNamespace(Config=Config)
class JobSubmitDescription:
    def __init__(self, **changes): pass
class Job:
    def __init__(self, number): self.number = number
    def hold(self): self.modify(None)
    def modify(self, changes):
        # at modify
        pass
"""
LIVE_JOB: dict[str, Any] = {
    **{"id": 7, "name": "train", "user_id": 5001, "account": "research", "partition": "gandiva"},
    **{"state": "PENDING", "state_reason": "JobHeldUser", "priority": 0, "requeue_count": 0},
    **{"allocated_nodes": None, "array_id": None, "array_task_id": None, "array_tasks_waiting": None},
    **{"array_tasks_parallel": None, "qos": "normal", "cpus": 1, "time_limit": 60, "submit_time": 1000},
    **{"eligible_time": None, "start_time": None, "end_time": None, "exit_code": 0, "exit_code_signal": 0},
    **{"is_batch_job": True, "is_requeueable": True, "admin_comment": None, "dependencies": None},
    **{"tres": {"cpu": 2, "mem": 500, "node": 1}, "user_name": "user1"},
}
DEPENDENCIES: dict[str, Any] = {
    "afterok": ["1(unfulfilled)"],
    "after": [],
    "singleton": False,
    "satisfy": "all",
}

MakeWorker = Callable[..., Worker]


@pytest.fixture
async def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeWorker]:
    """Make a worker whose pyslurm does what is said at some place."""
    made: list[Worker] = []
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(**code: str) -> Worker:
        text = STAND_IN
        for place, line in code.items():
            text = text.replace(f"# at {place.removeprefix('at_')}", line)
        (tmp_path / "pyslurm.py").write_text(text)
        made.append(Worker(Commands()))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def test_an_answer_and_what_is_printed_meanwhile(worker: MakeWorker) -> None:
    noisy = worker(at_versions="print('libslurm may print'); os.write(1, b'this too')")
    assert await noisy.call("versions", timeout_s=20) == ["25.11.2", "26.05.5"]
    assert await noisy.call("versions", timeout_s=20) == ["25.11.2", "26.05.5"]


async def test_a_hanging_slurmctld_stops_neither_the_daemon_nor_the_next_call(
    worker: MakeWorker, tmp_path: Path
) -> None:
    flag = tmp_path / "hung-once"
    late = worker(
        at_versions=f"if not os.path.exists({str(flag)!r}): open({str(flag)!r}, 'w'); time.sleep(600)"
    )
    ticks, ends = 0, False

    async def tick() -> None:
        nonlocal ticks
        while not ends:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with pytest.raises(SlurmUnreachable, match="pyslurm versions: no answer within 2 s; is slurmctld up"):
        await late.call("versions", timeout_s=2)
    ends = True
    await ticking
    assert ticks > 10, "the daemon went on meanwhile"
    flag.touch()  # where its worker took the two seconds to start
    assert await late.call("versions", timeout_s=20) == ["25.11.2", "26.05.5"]


@pytest.mark.parametrize(
    ("at_import", "why"),
    [
        ("os.kill(os.getpid(), 11)", "its process was killed by signal 11"),
        ("print('no slurm.conf', file=sys.stderr); os._exit(1)", "exit code 1 and said: no slurm.conf"),
        ("import no_such_library", "No module named 'no_such_library'"),
    ],
)
async def test_a_pyslurm_that_cannot_be_imported_is_no_death_of_ours(
    worker: MakeWorker, at_import: str, why: str
) -> None:
    with pytest.raises(SlurmUnreachable, match=why) as told:
        await worker(at_import=at_import).call("versions", timeout_s=20)
    assert "backend: commands" in str(told.value)


async def test_a_crash_in_a_call_costs_that_call_only(worker: MakeWorker, tmp_path: Path) -> None:
    flag = tmp_path / "crashed-once"
    code = f"if not os.path.exists({str(flag)!r}): open({str(flag)!r}, 'w'); os.kill(os.getpid(), 11)"
    fragile = worker(at_versions=code)
    with pytest.raises(SlurmUnreachable, match="signal 11"):
        await fragile.call("versions", timeout_s=20)
    assert await fragile.call("versions", timeout_s=20) == ["25.11.2", "26.05.5"]


@pytest.mark.parametrize(
    ("at_modify", "error", "why"),
    [
        (
            "raise RPCError('Access/permission denied')",
            SlurmRefused,
            "pyslurm hold: Access/permission denied",
        ),
        ("raise RPCError('Job update not available right now, try again in a bit')", SlurmBusy, "try again"),
        (
            "raise RPCError('Unable to contact slurm controller (connect failure)')",
            SlurmUnreachable,
            "contact",
        ),
        ("raise AttributeError('no priority')", SlurmUnreachable, "hold: AttributeError: no priority; is it"),
    ],
)
async def test_what_goes_wrong_carries_slurms_sentence(
    worker: MakeWorker, at_modify: str, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why) as told:
        await worker(at_modify=at_modify).call("hold", 7, timeout_s=20)
    assert type(told.value) is error


async def test_each_start_has_its_own_refusal(worker: MakeWorker) -> None:
    choosy = worker(at_modify="if self.number == 2: raise RPCError('Invalid job id specified')")
    places = [(1, ["n1"]), (2, ["n1"]), (3, ["n1", "n2"])]
    assert await choosy.call("start", places, timeout_s=20) == [None, "Invalid job id specified", None]


async def test_a_call_given_up_is_not_answered_later(worker: MakeWorker, tmp_path: Path) -> None:
    flag = tmp_path / "asked"
    slow = worker(at_modify=f"open({str(flag)!r}, 'w'); time.sleep(600)")
    call = asyncio.create_task(slow.call("hold", 7, timeout_s=60))
    async with asyncio.timeout(20):
        while not flag.exists():
            await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await slow.call("versions", timeout_s=20) == ["25.11.2", "26.05.5"]


async def test_one_that_is_late_and_says_a_long_line_is_ended_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio's buffer is full of what nobody reads: the end is not seen before all of that is read."""
    monkeypatch.setattr(run, "END_S", 60.0)
    flood = "os.write(1, bytes([0, 64, 0, 0])); [os.write(n, b'x' * 65536) for n in (1, 2) * 20]"
    worker = Worker(Commands())
    worker.argv = (sys.executable, "-c", f"import os, time; {flood}; time.sleep(60)")
    async with asyncio.timeout(patience.slowness() * 20):
        for _ in range(2):
            with pytest.raises(SlurmUnreachable, match="no answer within"):
                await worker.call("jobs", timeout_s=1.0)


def read(job: dict[str, Any], told: Told | None = None) -> SlurmJob:
    """Return what the reader makes of a job as pyslurm shows it."""
    (found,), _ = pick_jobs(job_records([LIVE_JOB | job], {7: told} if told else {}), OURS)
    return found


def test_what_pyslurm_shows_is_read() -> None:
    job = read({})
    assert (job.job_id, job.user, job.uid, job.cpus, job.memory_mib, job.time_limit_s) == (
        *(7, "user1", 5001, 2, 500),
        3600,
    )
    assert job.is_held and job.array_task_id is None and job.options is None


def test_task_0_of_an_array_has_its_number() -> None:
    assert read({"array_id": 7}).array_task_id == 0
    assert read({"array_id": 7, "array_tasks_waiting": "0-5"}).array_task_id is None
    assert read({"array_id": 7, "array_task_id": 3}).array_task_id == 3


def test_exit_codes_are_squeues_where_it_was_asked() -> None:
    ended = {"state": "FAILED", "exit_code": 72, "end_time": 2000}
    assert pyslurm_fields.is_unsure(LIVE_JOB | ended, OURS)
    assert read(ended).exit_code == "72:0"
    assert read(ended, Told("200:0", "")).exit_code == "200:0"


@pytest.mark.parametrize(
    ("dependencies", "told", "want"),
    [
        (DEPENDENCIES, None, "afterok:1(unfulfilled)"),
        (DEPENDENCIES | {"afterok": []}, None, "singleton(unfulfilled)"),
        (DEPENDENCIES | {"after": [2, 3], "satisfy": "any"}, None, "afterok:1(unfulfilled)?after:2?after:3"),
        (DEPENDENCIES, Told("0:0", "after:2,singleton(unfulfilled)"), "after:2,singleton(unfulfilled)"),
        (DEPENDENCIES, Told("0:0", None), "afterok:1(unfulfilled)"),
        (None, None, ""),
    ],
)
def test_no_dependency_is_lost(dependencies: dict[str, Any] | None, told: Told | None, want: str) -> None:
    assert read({"dependencies": dependencies, "priority": 5}, told).dependency == want


def test_priorities_without_limit_are_not_held() -> None:
    assert not read({"priority": "UNLIMITED"}).is_held


def test_a_node_and_its_slots() -> None:
    shown = {"name": "n1", "state": "IDLE+DRAIN", "configured_gres": {"gpu:v100": 16}, "reason": None}
    more = {"allocated_tres": {"cpu": 2, "gres/gpu": 3}, "total_cpus": 32, "real_memory": 64000}
    (node,) = pick_nodes(node_records([shown | more | {"address": "a", "partitions": ["gandiva"]}]), OURS)
    want = SlurmNode("n1", frozenset({"IDLE", "DRAIN"}), "v100", 16, 3, 32, 64000, "a", ("gandiva",), "")
    assert node == want


def test_squeues_columns() -> None:
    text = "7           200:0       (null)       \n8           0:0         after:2,singleton(unfulfilled) \n"
    cut = "9           0:0         " + "x" * 1000 + "\n"
    told = {7: Told("200:0", ""), 8: Told("0:0", "after:2,singleton(unfulfilled)"), 9: Told("0:0", None)}
    assert parse_told(text + cut + "nonsense\n") == told


class Script(Commands):
    """Answers every command with the same."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer, self.asked = answer, 0

    async def run(self, argv: Any, timeout_s: float) -> Answer:
        self.asked += 1
        return self.answer


async def test_squeue_is_asked_again_only_when_something_changed() -> None:
    script = Script(Answer(0, "7  0:0  afterok:1(unfulfilled)\n", ""))
    port = PyslurmPort(["gandiva"], commands=script)
    held = LIVE_JOB | {"dependencies": DEPENDENCIES}
    for _ in range(3):
        assert (await port._ask_squeue([held]))[7].dependency == "afterok:1(unfulfilled)"
    assert script.asked == 1
    await port._ask_squeue([held | {"requeue_count": 1}])
    assert script.asked == 2
    for asked in (3, 4):  # Slurm looks at the dependencies of a job that is not held
        await port._ask_squeue([held | {"priority": 5}])
        assert script.asked == asked
    await port._ask_squeue([])
    assert script.asked == 4


async def test_jobs_squeue_has_forgotten_stay_as_pyslurm_shows_them() -> None:
    port = PyslurmPort(["gandiva"], commands=Script(Answer(1, "", "Invalid job id specified")))
    assert await port._ask_squeue([LIVE_JOB | {"dependencies": DEPENDENCIES}]) == {}


def test_one_file_imports_pyslurm() -> None:
    package = Path(gandiva_slurm.__file__).parent
    importing = re.compile(r"^\s*(import|from) pyslurm\b", re.MULTILINE)
    found = [path.name for path in package.rglob("*.py") if importing.search(path.read_text())]
    assert found == ["pyslurm_worker.py"]
