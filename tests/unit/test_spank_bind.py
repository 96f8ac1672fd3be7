"""The SPANK plugin on the node: what it asks gandivad, what the task gets, when that waits, fails or runs."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.spank_runner import (
    MISSING,
    STEP_BATCH,
    STEP_EXTERN,
    STEP_INTERACTIVE,
    Behaviour,
    FakeGandivad,
    Outcome,
    answer,
    build,
    freeze_past_the_bound,
    hang,
    run,
)

OK = "OK CUDA_VISIBLE_DEVICES=2,3 GANDIVA_JOB=5 GANDIVA_RESTART=0 GANDIVA_NODE=n1\n"
INNER = "SLURM_SPANK__SLURM_SPANK_OPTION_gandiva_gandiva"
#: The exchange's bound, and what a loaded machine may add to it.
BOUND_S, SLACK_S = 0.5, 15.0

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("spank"))


class Node:
    """A node with the plugin, and perhaps a fake gandivad."""

    def __init__(self, built: tuple[Path, Path], directory: Path) -> None:
        self.built = built
        self.directory = directory
        self.daemons: list[FakeGandivad] = []

    @property
    def socket(self) -> Path:
        return self.directory / "n1.sock"

    def serve(self, behave: Behaviour, is_older: bool = False) -> FakeGandivad:
        """Start a fake gandivad."""
        self.daemons.append(FakeGandivad(self.socket, behave, is_older))
        return self.daemons[-1]

    def task(self, *words: str, step: int = STEP_BATCH, flag: bool = True, name: str = "n1") -> Outcome:
        """Start one task; `flag`: its job was submitted with --gandiva."""
        always = [f"arg:socket={self.directory}/%n.sock", "arg:hook=/h", "arg:partitions=gandiva,gpu"]
        more = [f"step:{step}", *(["opt:gandiva"] if flag else [])]
        outcome = run(self.built, "remote", *always, *more, *words, environ={"SLURMD_NODENAME": name})
        assert set(outcome.rc.values()) == {0}, "no hook fails"
        return outcome

    def unbound_task(self, *words: str, **options: Any) -> Outcome:
        """The same, where the plugin does not wait; the task does not start."""
        outcome = self.task("arg:unbound=fail", *words, **options)
        assert outcome.status == 1 and outcome.set == {}
        assert "this task does not start" in outcome.errors[0]
        return outcome


@pytest.fixture
def node(built: tuple[Path, Path], tmp_path: Path) -> Iterator[Node]:
    made = Node(built, tmp_path)
    yield made
    for daemon in made.daemons:
        daemon.close()


def test_the_sites_checkpoint_directory_gives_way_to_the_users_own(node: Node) -> None:
    """The user's may be the one of the job that submitted this one, too: both have the job's number in it."""
    node.serve(answer(OK.rstrip() + " GANDIVA_CHECKPOINT_DIR=/scratch/user1/%j\n"))
    assert node.task().set["GANDIVA_CHECKPOINT_DIR"] == "/scratch/user1/%j"
    outcome = node.task("env:GANDIVA_CHECKPOINT_DIR=/mine")
    assert "GANDIVA_CHECKPOINT_DIR" not in outcome.set
    assert outcome.set["GANDIVA_JOB"] == "5" and outcome.infos == outcome.errors == []


def test_the_directory_of_a_jobs_own_files_is_named_to_its_ranks(node: Node) -> None:
    node.serve(answer(OK))
    outcome = node.task("opt:gandiva-checkpoint=self:/data/run-%j")
    assert outcome.set["GANDIVA_CHECKPOINT_FILES"] == "/data/run-%j"
    outcome = node.task("opt:gandiva-checkpoint=signal:USR1@60:out")
    assert outcome.set["GANDIVA_CHECKPOINT_FILES"] == "out"
    for other in ("self", "signal:USR1@60", "signal", "self:/a b"):
        assert "GANDIVA_CHECKPOINT_FILES" not in node.task(f"opt:gandiva-checkpoint={other}").set


def test_a_batch_task_asks_and_gets_its_gpus(node: Node) -> None:
    daemon = node.serve(answer(OK))
    slots = ["env:SLURM_JOB_GPUS=3,7", "env:CUDA_VISIBLE_DEVICES=3,7"]
    outcome = node.task("job:77", *slots, "env:SLURM_RESTART_COUNT=2")
    assert daemon.lines == ["BIND 2 77 2 batch 0 3,7 -\n"]
    assert daemon.uids == [61001], "root has said whose it is"
    assert outcome.set == {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "GANDIVA_JOB": "5",
        "GANDIVA_RESTART": "0",
        "GANDIVA_NODE": "n1",
        "GANDIVA_SOCKET": str(node.socket),
        "PYTHONPATH": "/h",
    }
    assert outcome.infos == outcome.errors == []


SIZE = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_GPUS_PER_NODE")
SUBMITTED = ["env:SLURM_NTASKS=2", "env:SLURM_NPROCS=2", "env:SLURM_GPUS_PER_NODE=v100:2"]


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["env:SLURM_TASKS_PER_NODE=4", "env:SLURM_GPUS_ON_NODE=4", *SUBMITTED], ("4", "4", "4")),
        (["env:SLURM_TASKS_PER_NODE=1", "env:SLURM_GPUS_ON_NODE=3"], ("1", "1", None)),
        (["env:SLURM_TASKS_PER_NODE=2(x2)", "env:SLURM_GPUS_ON_NODE=2", *SUBMITTED], ("4", "4", "2")),
        (["env:SLURM_TASKS_PER_NODE=3,1"], ("4", "4", None)),
        (["env:SLURM_TASKS_PER_NODE=2(x"], (None, None, None)),
        (["env:SLURM_TASKS_PER_NODE=-2"], (None, None, None)),
        (SUBMITTED, (None, None, None)),
    ],
)
def test_the_script_of_an_elastic_job_is_told_its_size_of_now(
    node: Node, words: list[str], size: tuple[str | None, ...]
) -> None:
    node.serve(answer(OK))
    outcome = node.task("opt:gandiva-elastic=1-4", *words)
    assert tuple(outcome.set.get(name) for name in SIZE) == size
    assert not set(SIZE) & set(node.task(*words).set), "another job's is left alone"
    assert not set(SIZE) & set(node.task("opt:gandiva-elastic=1-4", *words, step=0).set), "and that of a step"


@pytest.mark.parametrize(
    ("step", "words", "line"),
    [
        (0, ["env:SLURM_JOB_GPUS=3,7", "env:SLURM_STEP_GPUS=7", "task:1"], "BIND 2 5 0 0 1 3,7 7\n"),
        (4, ["env:SLURM_STEP_GPUS=7"], "BIND 2 5 0 4 0 - 7\n"),
        (1, ["env:SLURM_JOB_GPUS=3,7"], "BIND 2 5 0 1 0 3,7 none\n"),
        (1, ["env:SLURM_JOB_GPUS=3,7", "env:SLURM_GPUS_ON_NODE=1"], "BIND 2 5 0 1 0 3,7 -\n"),
        (1, ["env:SLURM_GPUS_ON_NODE=1"], "BIND 2 5 0 1 0 - -\n"),
        (1, [], "BIND 2 5 0 1 0 - none\n"),
        (STEP_INTERACTIVE, ["env:SLURM_STEP_GPUS=3"], "BIND 2 5 0 interactive 0 - 3\n"),
        (STEP_BATCH, ["env:SLURM_STEP_GPUS=9"], "BIND 2 5 0 batch 0 - -\n"),
    ],
)
def test_steps_say_which_slots_slurm_gave_them(node: Node, step: int, words: list[str], line: str) -> None:
    daemon = node.serve(answer(OK))
    node.task(*words, step=step)
    assert daemon.lines == [line]


@pytest.mark.parametrize(
    "text", ["1\nBIND 1 6 0 batch 0 - -", "1 2", "-", "a", "1;2", "", ",".join(["1"] * 900)]
)
def test_a_hostile_environment_does_not_reach_the_daemon(node: Node, text: str) -> None:
    daemon = node.serve(answer(OK))
    names = ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_RESTART_COUNT"]
    node.task(*(f"env:{name}={text}" for name in names), "env:SLURM_GPUS_ON_NODE=1", step=0)
    assert daemon.lines == ["BIND 2 5 0 0 0 - -\n"]


def test_an_empty_list_of_devices_is_passed_on(node: Node) -> None:
    node.serve(answer("OK CUDA_VISIBLE_DEVICES= GANDIVA_JOB=5\n"))
    assert node.task().set["CUDA_VISIBLE_DEVICES"] == ""


def test_a_part_of_the_gpus_threads_is_passed_on(node: Node) -> None:
    node.serve(answer(OK.rstrip() + " CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40\n"))
    assert node.task().set["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"


def test_an_answer_in_pieces(node: Node) -> None:
    node.serve(answer(OK[:7], OK[7:30], OK[30:], pause_s=0.03))
    assert node.task().set["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_no_means_that_it_sees_no_gpu(node: Node) -> None:
    """It runs all the same; the numbers of its slots would be those of others' GPUs."""
    node.serve(answer("NO job 5 is not in the plan of n1\n"))
    outcome = node.task("env:CUDA_VISIBLE_DEVICES=3")
    assert outcome.set == {"CUDA_VISIBLE_DEVICES": ""}
    assert outcome.infos == ["gandiva: job 5 is not in the plan of n1; the task sees no GPU"]


@pytest.mark.parametrize(
    ("words", "flag", "asks"),
    [
        ([], True, True),
        (["env:SLURM_JOB_PARTITION=gandiva"], False, True),
        (["env:SLURM_JOB_PARTITION=gpu"], False, True),
        ([f"env:{INNER}=1"], False, True),
        ([], False, False),
        (["env:SLURM_JOB_PARTITION=cpu"], False, False),
        (["env:SLURM_JOB_PARTITION=gandiva,gpu"], False, False),
        (["env:SLURM_JOB_PARTITION=" + "g" * 300], False, False),
        (["opt:gandiva-tickets=5", "env:GANDIVA_JOB=5"], False, False),
    ],
)
def test_only_gandiva_jobs_ask(node: Node, words: list[str], flag: bool, asks: bool) -> None:
    daemon = node.serve(answer(OK))
    outcome = node.task(*words, flag=flag)
    assert daemon.connections == (1 if asks else 0)
    assert bool(outcome.set) == asks
    assert outcome.infos == []


def test_the_extern_step_is_none_of_ours(node: Node) -> None:
    daemon = node.serve(answer(OK))
    assert node.task(step=STEP_EXTERN).set == {}
    assert daemon.connections == 0


#: A job in a partition of Gandiva's that has no slots: Gandiva has not planned it.
CPU_JOB = ["env:SLURM_JOB_PARTITION=gandiva"]


def test_without_a_daemon_what_was_not_planned_starts_soon_and_can_find_it_later(node: Node) -> None:
    outcome = node.task(*CPU_JOB, flag=False)
    assert outcome.set == {"GANDIVA_SOCKET": str(node.socket), "PYTHONPATH": "/h"}
    assert outcome.infos[0].endswith("No such file or directory; the task starts as Slurm made it")
    assert outcome.took_s < 2 * BOUND_S + SLACK_S


@pytest.mark.parametrize("name", ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"])
@pytest.mark.parametrize("when", ["env", "late"])
def test_without_a_daemon_a_planned_job_does_not_start(node: Node, name: str, when: str) -> None:
    assert "No such file" in node.unbound_task(*CPU_JOB, f"{when}:{name}=3", step=0, flag=False).errors[0]


def test_a_planned_job_waits_and_then_fails(node: Node) -> None:
    began_s = time.monotonic()
    assert node.task("arg:unbound=wait:2").status == 1
    assert time.monotonic() - began_s >= 2


def test_a_planned_job_waits_for_a_daemon_that_comes_late(node: Node) -> None:
    later = threading.Timer(0.5, node.serve, [answer(OK)])
    later.start()
    outcome = node.task()
    later.join()
    assert outcome.set["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert node.daemons[0].uids == [61001]


def test_a_socket_nobody_listens_on(node: Node) -> None:
    node.serve(answer(OK)).close()
    node.daemons.clear()
    assert "Connection refused" in node.unbound_task().errors[0]


def test_a_hung_daemon_costs_what_was_not_planned_half_a_second_a_hook(node: Node) -> None:
    node.serve(hang)
    outcome = node.task(*CPU_JOB, flag=False)
    assert "CUDA_VISIBLE_DEVICES" not in outcome.set
    assert outcome.infos[0].endswith("it does not answer; the task starts as Slurm made it")
    assert BOUND_S <= outcome.took_s < 2 * BOUND_S + SLACK_S


def test_a_daemon_that_trickles_cannot_stretch_the_bound(node: Node) -> None:
    node.serve(answer(*("OK" + " " * 600), pause_s=0.05))
    assert node.unbound_task().took_s < BOUND_S + SLACK_S


def said_last(node: Node) -> str:
    """Why a task is not bound; on a busy machine its last try may have run out of time, and is made anew."""
    for _ in range(3):
        why = str(node.unbound_task().errors[0])
        if "it does not answer" not in why:
            break
    return why


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "it closed the connection"),
        ("OK GANDIVA_JOB=5", "it closed the connection"),
        ("OKAY\n", "its answer is not understood"),
        ("\n", "its answer is not understood"),
        ("HTTP/1.1 200 OK\n", "its answer is not understood"),
        ("OK " + "x" * 5000, "its answer is too long"),
    ],
)
def test_a_useless_answer_is_no_answer(node: Node, reply: str, why: str) -> None:
    node.serve(answer(reply))
    assert why in said_last(node)


def test_a_daemon_that_dies_before_it_answers_is_asked_on_the_socket_of_all(node: Node) -> None:
    replies = ["", OK]
    daemon = node.serve(lambda peer, _: peer.sendall(replies.pop(0).encode()))
    assert node.task().set["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert daemon.lines == ["BIND 2 5 0 batch 0 - -\n", "BIND 1 5 0 batch 0 - -\n"]
    assert daemon.uids == [61001, None]


def test_later_is_asked_again(node: Node) -> None:
    def behave(peer: socket.socket, _: int) -> None:
        peer.sendall(b"LATER no plan has come\n")
        assert peer.recv(4096).startswith(b"BIND 2 ")
        peer.sendall(OK.encode())

    node.serve(behave)
    assert node.task().set["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_later_until_the_end_is_told(node: Node) -> None:
    def behave(peer: socket.socket, _: int) -> None:
        while True:
            peer.sendall(b"LATER no plan has come\n")
            if not peer.recv(4096):
                return

    node.serve(behave)
    assert "no plan has come" in said_last(node)


def test_a_daemon_of_an_older_release_is_asked_as_it_knows_it(node: Node) -> None:
    daemon = node.serve(answer(OK), is_older=True)
    outcome = node.task()
    assert outcome.set["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert (daemon.lines, daemon.uids) == (["BIND 1 5 0 batch 0 - -\n"], [None])
    assert outcome.took_s < BOUND_S + SLACK_S


def test_the_daemon_sets_only_what_is_its_own(node: Node) -> None:
    names = "LD_PRELOAD=/x PATH=/x GANDIVA_X=1 GANDIVA_/=2 CUDA_VISIBLE_DEVICES=0 word =3"
    node.serve(answer(f"OK {names}\n"))
    outcome = node.task()
    assert set(outcome.set) == {"GANDIVA_X", "CUDA_VISIBLE_DEVICES", "GANDIVA_SOCKET", "PYTHONPATH"}
    assert len(outcome.infos) == 4


def test_a_task_frozen_before_it_reads_the_answer_still_gets_it(node: Node) -> None:
    node.serve(freeze_past_the_bound(OK))
    outcome = node.task()
    assert outcome.set["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert outcome.took_s > BOUND_S


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ([], "/h"),
        (["env:PYTHONPATH="], "/h"),
        (["env:PYTHONPATH=/a:/b"], "/h:/a:/b"),
        (["env:PYTHONPATH=/hh"], "/h:/hh"),
        (["env:PYTHONPATH=/h:/a"], None),
        (["env:PYTHONPATH=/h"], None),
        (["env:PYTHONPATH=/" + "a" * 40000], None),
        (["env:PYTHONPATH=/" + "a" * 32765], None),
        (["opt:gandiva-hook=none"], None),
        (["opt:gandiva-hook=auto"], "/h"),
        ([f"env:{INNER}_hook=none"], None),
        ([f"env:{INNER}_hook=" + "none" * 50], "/h"),
    ],
)
def test_the_hook_comes_first_unless_declined(node: Node, words: list[str], path: str | None) -> None:
    node.serve(answer(OK))
    assert node.task(*words).set.get("PYTHONPATH") == path


@pytest.mark.parametrize("name", ["", "../n1", "n1/x", "n1,n2", "n" * 200])
def test_a_strange_node_name_has_no_socket(node: Node, name: str) -> None:
    daemon = node.serve(answer(OK))
    outcome = node.task(*CPU_JOB, flag=False, name=name)
    assert (outcome.set, daemon.connections) == ({}, 0)
    assert "the node's name is strange" in outcome.infos[0]
    assert "the node's name is strange" in node.unbound_task(name=name).errors[0]
