"""BIND lines as the plugin sends them, read by gandivad: which GPUs stand for the slots that Slurm gave."""

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.binding import gpus_of_task, learn_slots
from gandiva_slurm.node.hello import parse_bind
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses

BATCH = "BIND 1 7 0 batch 0 3,9 -"
KEY = JobKey(7, 0)


def gpus(lines: list[str]) -> list[tuple[int, ...]]:
    """What each line in turn gets in a job that holds GPUs 1 and 2."""
    processes = JobProcesses(KEY, 5001, "n1", set(), set())
    resident = Resident(KEY, "user1", (1, 2), 1, 0, processes, 0)
    given = []
    for line in lines:
        bind = parse_bind(line.encode() + b"\n")
        learn_slots(resident, bind)
        given.append(gpus_of_task(resident, bind.step_slots) if bind.has_gpus else ())
    return given


@pytest.mark.parametrize(("lines", "given"), [
    ([BATCH], [(1, 2)]),
    ([BATCH, "BIND 1 7 0 0 0 3,9 9", "BIND 1 7 0 0 1 3,9 3"], [(1, 2), (2,), (1,)]),
    ([BATCH, "BIND 1 7 0 0 0 3,9 none"], [(1, 2), ()]),
    ([BATCH, "BIND 1 7 0 0 0 3,9 3,9", "BIND 1 7 0 0 0 3,9 -"], [(1, 2), (1, 2), (1, 2)]),
    # salloc, and srun without a script: nobody names the job's slots
    (["BIND 1 7 0 0 0 - 3", "BIND 1 7 0 0 1 - 9", "BIND 1 7 0 1 0 - 3"], [(1,), (2,), (1,)]),
    (["BIND 1 7 0 0 0 - 9", "BIND 1 7 0 0 1 - 3,9"], [(1,), (2, 1)]),
    (["BIND 1 7 0 0 0 - none", "BIND 1 7 0 1 0 - 9"], [(), (1,)]),
    # salloc from inside another job: its slots are in the environment
    (["BIND 1 7 0 0 0 5,6 3", "BIND 1 7 0 0 1 5,6 9"], [(1,), (2,)]),
    (["BIND 1 7 0 0 0 5 3", "BIND 1 7 0 0 1 5 9"], [(1,), (2,)]),
    # regular files as slots: Slurm names none
    (["BIND 1 7 0 batch 0 - -", "BIND 1 7 0 0 0 - -"], [(1, 2), (1, 2)]),
])
def test_a_slot_stands_for_one_gpu_of_its_job(lines: list[str], given: list[tuple[int, ...]]) -> None:
    assert gpus(lines) == given
