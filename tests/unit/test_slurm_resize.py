"""What is changed of a job for another number of GPUs, from what squeue tells of it."""

import pytest

from gandiva_slurm.model.errors import SlurmRefused
from gandiva_slurm.slurm.control import resized, spread

NONE = "N/A         N/A         N/A"


@pytest.mark.parametrize(
    ("told", "gpus", "words"),
    [
        (f"1 2   gres:gpu:2 {NONE}\n", 4, ["Gres=gpu:4"]),
        (f"1 2   gres/gpu:2 {NONE}\n", 2, []),
        (f"2 2   gres/gpu:v100:2 {NONE}", 4, ["Gres=gpu:v100:4", "NumTasks=4", "NumCPUs=4"]),
        (f"4 8   gres:gpu:4 {NONE}", 1, ["Gres=gpu:1", "NumTasks=1", "NumCPUs=2"]),
        (f"4 4   gpu:2 {NONE}", 3, ["Gres=gpu:3", "NumTasks=6", "NumCPUs=6"]),
        (f"1 1   gres:gpu {NONE}", 2, ["Gres=gpu:2", "NumTasks=2", "NumCPUs=2"]),
        ("2 4   gres/gpu:2 N/A cpu=2 N/A", 4, ["Gres=gpu:4", "NumTasks=4", "NumCPUs=8"]),
        (f"3 3   gres:gpu:2 {NONE}", 4, ["Gres=gpu:4"]),
    ],
    ids=["one task", "as it is", "typed", "shrunk", "two tasks each", "no number", "cores a task", "uneven"],
)
def test_gpus_and_with_them_tasks(told: str, gpus: int, words: list[str]) -> None:
    assert resized("7", told, gpus) == words


@pytest.mark.parametrize(
    "told",
    [
        "",
        f"2 2 N/A {NONE}",
        "2 2 N/A gres:gpu:2 N/A N/A",
        "2 2 gres:gpu:2 gres:gpu:2 N/A N/A",
        f"x 2 gres:gpu:2 {NONE}",
    ],
    ids=["gone", "no GPUs", "--gpus", "both", "no number"],
)
def test_other_forms_are_refused(told: str) -> None:
    with pytest.raises(SlurmRefused, match="job 7: the GPUs of a job are changed only where --gres=gpu:N"):
        resized("7", told, 4)


@pytest.mark.parametrize(
    ("told", "gpus", "nodes", "words"),
    [
        (f"1 1 gres:gpu:1 {NONE} 1 1", 2, 2, ["NumNodes=2-2", "NumTasks=2", "NumCPUs=2", "MinCPUsNode=1"]),
        (f"2 4 gres:gpu:2 {NONE} 1 2", 4, 2, ["NumNodes=2-2", "NumTasks=4", "NumCPUs=8", "MinCPUsNode=4"]),
        (f"4 4 gres:gpu:2 {NONE} 2 2", 2, 1, ["NumNodes=1-1", "NumTasks=2", "NumCPUs=2"]),
        (f"4 4 gres:gpu:2 {NONE} 2 2", 1, 1,
         ["Gres=gpu:1", "NumNodes=1-1", "NumTasks=1", "NumCPUs=1", "MinCPUsNode=1"]),
        (f"1 1 gres:gpu:1 {NONE} 1 1", 2, 1, ["Gres=gpu:2", "NumTasks=2", "NumCPUs=2"]),
        (f"1 1 gres:gpu:v100:2 {NONE} 1 1", 4, 2, ["NumNodes=2-2"]),
        (f"2 2 gres:gpu:1 {NONE} 2 1", 2, 2, []),
    ],
    ids=["over two", "two each", "back", "and smaller", "at home", "one task", "as it is"],
)  # fmt: skip
def test_nodes_and_tasks_on_each(told: str, gpus: int, nodes: int, words: list[str]) -> None:
    assert spread("7", told, gpus, nodes) == words


@pytest.mark.parametrize("told", ["", f"1 1 gres:gpu:1 {NONE}", f"1 1 N/A {NONE} 1 1"])
def test_a_job_whose_nodes_or_gpus_are_not_told_is_refused(told: str) -> None:
    with pytest.raises(SlurmRefused, match="job 7: "):
        spread("7", told, 2, 2)
