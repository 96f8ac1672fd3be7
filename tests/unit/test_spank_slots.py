"""BIND lines as the plugin sends them, read by gandivad: which GPUs stand for the slots that Slurm gave."""

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.binding import gpus_of_task, learn_slots
from gandiva_slurm.node.hello import parse_bind
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.part import Part

BATCH = "BIND 1 7 0 batch 0 3,9 -"
KEY = JobKey(7, 0)


def gpus(lines: list[str], part: Part | None = None) -> list[tuple[int, ...]]:
    """What each line in turn gets in a job that holds GPUs 1 and 2."""
    processes = JobProcesses(KEY, 5001, "n1", set(), set())
    resident = Resident(KEY, "user1", (1, 2), 1, 0, processes, 0, part=part)
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
    # in whatever order its tasks come, each has the GPU of its number, unless that is another's
    (["BIND 1 7 0 0 1 - 9", "BIND 1 7 0 0 0 - 3"], [(2,), (1,)]),
    (["BIND 1 7 0 0 0 - 9", "BIND 1 7 0 1 0 - 3"], [(1,), (2,)]),
    (["BIND 1 7 0 0 7 - 9", "BIND 1 7 0 0 9 - 3"], [(1,), (2,)]),
    # salloc from inside another job: its slots are in the environment
    (["BIND 1 7 0 0 0 5,6 3", "BIND 1 7 0 0 1 5,6 9"], [(1,), (2,)]),
    (["BIND 1 7 0 0 0 5 3", "BIND 1 7 0 0 1 5 9"], [(1,), (2,)]),
    # regular files as slots: Slurm names none
    (["BIND 1 7 0 batch 0 - -", "BIND 1 7 0 0 0 - -"], [(1, 2), (1, 2)]),
])
def test_a_slot_stands_for_one_gpu_of_its_job(lines: list[str], given: list[tuple[int, ...]]) -> None:
    assert gpus(lines) == given


@pytest.mark.parametrize(("lines", "given"), [
    # the first node: its batch script knows
    (["BIND 1 7 0 batch 0 1,2 -", "BIND 1 7 0 0 1 1,2 2", "BIND 1 7 0 0 0 1,2 1"], [(1, 2), (2,), (1,)]),
    # another: its tasks have the first one's slots in the environment, theirs are 0 and 1
    (["BIND 1 7 0 0 1 1,2 1", "BIND 1 7 0 0 0 1,2 0"], [(2,), (1,)]),
    (["BIND 1 7 0 0 0 1,2 0", "BIND 1 7 0 0 1 1,2 1", "BIND 1 7 0 1 0 1,2 1"], [(1,), (2,), (2,)]),
])
def test_slots_of_the_first_node_are_no_others(lines: list[str], given: list[tuple[int, ...]]) -> None:
    assert gpus(lines, Part((("n1", (1, 2)), ("n2", (1, 2))))) == given
