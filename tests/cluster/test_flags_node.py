"""On a node of a real Slurm: what each kind of task asks of gandivad, and what it then sees.

The fake gandivad here gives the GPUs of a job by the rule of the real one: each slot that a job's tasks name
stands for one GPU of the job, for as long as the job lives.
"""

import re
import socket
from collections.abc import Callable, Iterator

import pytest

from gandiva_slurm.mini import probe
from tests import patience
from tests.cluster.held import WAIT_S, HeldCluster, held_cluster
from tests.unit.spank_runner import FakeGandivad, answer, hang

SHOW = 'echo "$T $SLURM_PROCID gpus=$CUDA_VISIBLE_DEVICES job=$GANDIVA_JOB"'
HOOK = "/gandiva_slurm/client/hook"


class Binder:
    """Answers BIND; the GPUs of every job are 2, 3, 0, 1 in this order, as many of them as it has slots."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, str]] = {}
        self.asked: list[list[str]] = []

    def __call__(self, peer: socket.socket, _: int) -> None:
        _, _, job, restart, step, task, job_slots, slots = self.line.split()
        self.asked.append([job, restart, step, task, job_slots, slots])
        table = self.tables.setdefault(job, {})
        named = "" if slots == "none" else slots if slots != "-" else job_slots
        for slot in [*job_slots.split(","), *named.split(",")]:
            if slot not in ("-", ""):
                table.setdefault(slot, "2301"[len(table)])
        gpus = ",".join(table[slot] for slot in named.split(",") if slot in table)
        peer.sendall(f"OK CUDA_VISIBLE_DEVICES={gpus} GANDIVA_JOB={job}\n".encode())

    @property
    def line(self) -> str:
        """The question being answered."""
        return self.daemon.lines[-1]

    daemon: FakeGandivad


@pytest.fixture(scope="module")
def slurm(slurm_here: None) -> Iterator[HeldCluster]:
    with held_cluster("bind") as cluster:
        yield cluster


@pytest.fixture
def binder(slurm: HeldCluster) -> Iterator[Binder]:
    path = slurm.cluster.path("/run/gandiva/n1.sock")
    made = Binder()
    made.daemon = FakeGandivad(path, made)
    yield made
    made.daemon.close()
    made.daemon.unlink()


@pytest.fixture
def other(slurm: HeldCluster) -> Iterator[int]:
    """A job that holds the first three slots of n1, so that slot numbers and GPUs differ."""
    job_id = slurm.submit("-p", "gandiva", "--gres=gpu:3", script="sleep 300")
    slurm.start(job_id)
    slurm.wait_state(job_id, "RUNNING")
    yield job_id
    slurm.root("scancel", str(job_id))
    slurm.wait_state(job_id, "CANCELLED")


# An overlapping step is refused, not put off, where the step before it has its memory yet: it asks for none.
STEPS = f"""
show() {{ T="$1"; shift; export T; "$@" bash -c '{SHOW}' 2>&1 | sort; }}
show batch
show whole srun -n2
show one srun -n1 --gres=gpu:1
show each srun -n2 --gpus-per-task=1
show none srun -n1 --gres=none
show overlap srun -n1 --overlap --mem=0
show beyond srun -n1 --gres=gpu:3
"""


@pytest.mark.parametrize("form", ["--gres=gpu:v100:2", "--gpus=2", "--gpus-per-node=2", "--gpus-per-task=1"])
def test_batch_and_steps_see_the_gpus_of_their_slots(
    slurm: HeldCluster, binder: Binder, other: int, form: str
) -> None:
    job_id = slurm.submit("-p", "gandiva", "-n2", form, script=STEPS)
    told = slurm.run(job_id)
    of = f"job={job_id}"
    per_task = form == "--gpus-per-task=1"
    assert f"batch 0 gpus=2,3 {of}\n" in told
    for task in (0, 1):
        assert f"whole {task} gpus={'23'[task] if per_task else '2,3'} {of}\n" in told
        assert f"each {task} gpus={'23'[task]} {of}\n" in told
    # srun reads --gpus-per-node from its environment: beside it 22.05 refuses --gres=none, 26.05 any --gres.
    beside = form == "--gpus-per-node=2"
    assert beside or f"none 0 gpus= {of}\n" in told
    refused = beside and "--gpus-per-node and --gres=gpu are mutually exclusive" in told
    assert refused or f"one 0 gpus=2 {of}\n" in told
    assert f"overlap 0 gpus={'2' if per_task else '2,3'} {of}\n" in told, told
    assert "beyond 0" not in told and re.search("srun: (error|fatal): ", told)
    assert [str(job_id), "0", "batch", "0", "3,4", "-"] in binder.asked


def test_two_steps_side_by_side_get_different_gpus(slurm: HeldCluster, binder: Binder, other: int) -> None:
    meet = "touch side.$SLURM_STEP_ID; until [ -e side.0 -a -e side.1 ]; do sleep 0.1; done"
    step = f"srun -n1 --exact --gres=gpu:1 bash -c 'T=side; {SHOW}; {meet}' &"
    script = f"rm -f side.[01]\n{step}\n{step}\nwait"
    told = slurm.run(slurm.submit("-p", "gandiva", "-n2", "--gres=gpu:2", script=script))
    assert sorted(re.findall(r"side 0 gpus=(\d)", told)) == ["2", "3"]


def test_a_typed_request_keeps_plain_slurm_s_rules_for_steps(slurm: HeldCluster, binder: Binder) -> None:
    script = f"export T=typed; srun -n2 bash -c '{SHOW}'; srun -n1 --gres=gpu:1 true"
    told = slurm.run(slurm.submit("-p", "gandiva", "-n2", "--gpus=v100:2", script=script))
    assert "typed 0 gpus=2,3 " in told and "typed 1 gpus=2,3 " in told
    assert "with and without type identification" in told


@pytest.mark.parametrize("words", [
    ["srun", "-n2", "--gpus-per-task=1"],
    ["salloc", "-n2", "--gres=gpu:2", "srun", "--gpus-per-task=1"],
])
def test_interactive_jobs_bind_their_tasks_too(slurm: HeldCluster, binder: Binder, other: int,
                                               words: list[str]) -> None:
    first, rest = words[0], words[1:]
    command = [first, "-p", "gandiva", "-J", f"live-{first}", *rest, "bash", "-c", f"T=live; {SHOW}"]
    waiting = slurm.cluster.popen(command, user="user1", stdout=-1, stderr=-1, text=True)
    job_id = slurm.wait_queued(f"live-{first}")
    slurm.start(job_id)
    told, errors = waiting.communicate(timeout=60 * patience.slowness())
    assert waiting.returncode == 0, errors
    # Nobody says here which slots the job has: the tasks share its GPUs out, in the order in which they ask.
    assert sorted(re.findall(rf"live [01] gpus=(\d) job={job_id}", told)) == ["2", "3"]


def test_the_task_finds_its_socket_and_the_hook(slurm: HeldCluster, binder: Binder) -> None:
    show = 'echo "$GANDIVA_SOCKET $PYTHONPATH"'
    script = f"{show}\nsrun bash -c '{show}'"
    words = ["-p", "gandiva", "--gres=gpu:1"]
    [batch, step] = slurm.run(slurm.submit(*words, script=script, PYTHONPATH="/mine")).splitlines()
    assert batch == step
    assert batch.startswith("/run/gandiva/n1.sock ")
    assert batch.split()[1].endswith(f"{HOOK}:/mine")
    assert HOOK not in slurm.run(slurm.submit(*words, "--gandiva-hook=none", script=script))
    assert HOOK not in slurm.run(slurm.submit(*words, script=script, SBATCH_GANDIVA_HOOK="none"))


def test_export_none_keeps_the_choice_of_hook(slurm: HeldCluster, binder: Binder) -> None:
    script = 'echo "$GANDIVA_SOCKET path=$PYTHONPATH"'
    words = ["-p", "gandiva", "--gres=gpu:1", "--export=NONE"]
    assert HOOK in slurm.run(slurm.submit(*words, script=script))
    told = slurm.run(slurm.submit(*words, "--gandiva-hook=none", script=script))
    assert told == "/run/gandiva/n1.sock path=\n"


def test_a_requeued_job_asks_with_its_restart_count(slurm: HeldCluster, binder: Binder) -> None:
    script = '[ "$SLURM_RESTART_COUNT" ] || sleep 60\nsrun true'
    job_id = slurm.submit("-p", "gandiva", "--gres=gpu:1", "--open-mode=append", script=script)
    slurm.start(job_id)
    slurm.wait_state(job_id, "RUNNING")
    probe.wait_until(lambda: bool(binder.asked), "its first task to ask", WAIT_S * patience.slowness())
    slurm.root("scontrol", "hold", str(job_id))
    slurm.root("scontrol", "requeue", str(job_id))
    slurm.wait_state(job_id, "PENDING")
    slurm.run(job_id)
    assert [line[1:3] for line in binder.asked] == [["0", "batch"], ["1", "batch"], ["1", "0"]]


def test_a_job_submitted_from_a_job_takes_none_of_its_options(slurm: HeldCluster, binder: Binder) -> None:
    inner = "sbatch --parsable -o inner.out -p gandiva --gres=gpu:1 --wrap true"
    words = ["-p", "gandiva", "--gres=gpu:1", "--gandiva-tickets=7", "--gandiva-hook=none"]
    inner_id = int(slurm.run(slurm.submit(*words, script=inner)))
    options = slurm.options(inner_id)
    assert options is not None
    assert (options.tickets, options.hook) == (100, "auto")


def test_ordinary_jobs_never_ask(slurm: HeldCluster, binder: Binder) -> None:
    told = slurm.run_plain(script="env", SBATCH_GANDIVA_CELL="node")
    assert "GANDIVA_SOCKET" not in told and HOOK not in told
    assert binder.asked == []


@pytest.fixture
def unbound(slurm: HeldCluster) -> Iterator[Callable[[str], None]]:
    """unbound(VALUE): what plugstack.conf says of tasks that cannot be bound."""
    conf = slurm.cluster.path("/etc/slurm/plugstack.conf.d/gandiva.conf")
    kept = conf.read_text()
    yield lambda value: conf.write_text(f"{kept.rstrip()} unbound={value}\n") and None
    conf.write_text(kept)


SAY = ["-p", "gandiva", "--gres=gpu:1"]


@pytest.mark.parametrize("is_hung", [False, True])
def test_a_planned_job_does_not_start_unbound(
    slurm: HeldCluster, unbound: Callable[[str], None], is_hung: bool
) -> None:
    unbound("wait:2" if is_hung else "fail")
    path = slurm.cluster.path("/run/gandiva/n1.sock")
    daemon = FakeGandivad(path, hang) if is_hung else None
    try:
        job_id = slurm.submit(*SAY, script="echo it runs")
        told = slurm.run(job_id)
        assert "gandiva: this task does not start" in told and "it runs" not in told
        assert ("does not answer" if is_hung else "No such file") in told
        assert slurm.show(job_id)["JobState"] == "FAILED"
    finally:
        if daemon:
            daemon.close()
            daemon.unlink()


def test_a_planned_job_waits_for_a_gandivad_that_comes_late(slurm: HeldCluster) -> None:
    job_id = slurm.submit(*SAY, script=f"T=late; {SHOW}")
    slurm.start(job_id)
    slurm.wait_state(job_id, "RUNNING")
    path = slurm.cluster.path("/run/gandiva/n1.sock")
    daemon = FakeGandivad(path, answer(f"OK CUDA_VISIBLE_DEVICES=3 GANDIVA_JOB={job_id}\n"))
    try:
        slurm.wait_state(job_id, "COMPLETED")
        assert daemon.uids == [int(slurm.user("id", "-u").stdout)], "and root has said whose it is"
        assert (slurm.home / f"{job_id}.out").read_text() == f"late 0 gpus=3 job={job_id}\n"
    finally:
        daemon.close()
        daemon.unlink()


def test_without_gandivad_ordinary_jobs_start_at_once(slurm: HeldCluster) -> None:
    assert slurm.run_plain(script='echo "gpus=$CUDA_VISIBLE_DEVICES"') == "gpus=\n"


def test_a_job_that_gandivad_refuses_sees_no_gpu(slurm: HeldCluster) -> None:
    path = slurm.cluster.path("/run/gandiva/n1.sock")
    daemon = FakeGandivad(path, answer("NO this job is of yesterday\n"))
    try:
        told = slurm.run(slurm.submit(*SAY, script='echo "gpus=$CUDA_VISIBLE_DEVICES"'))
        assert told.splitlines()[-1] == "gpus="
    finally:
        daemon.close()
        daemon.unlink()
