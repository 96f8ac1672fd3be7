"""On a real Slurm: a parked job is written to disk, its node is set down, it goes on elsewhere from that."""

from collections.abc import Iterator
from typing import Any

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster, set_down, wait_for
from tests.cluster.moved import END_S, Crowd
from tests.cluster.sharing import LIGHT
from tests.cluster.test_moving import ENDLESS, LIGHT_TRAINING
from tests.slow import slow

pytestmark = slow("60 s; node/test_written has it without Slurm")

EVERY_S, QUANTUM_S, STEP_MS = 2, 0.5, 10


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of one GPU."""
    settings = {"checkpoint_parked": EVERY_S, "moves": {"enabled": False}}
    with own_cluster("written", "v100:2x1", QUANTUM_S, **settings) as made:  # type: ignore[arg-type]
        made.path("/home/user2/light.py").write_text(LIGHT)
        made.path("/home/user1", LIGHT_TRAINING.name).write_text(LIGHT_TRAINING.read_text())
        yield made


def test_a_lost_node_costs_a_parked_job_no_more_than_that_time(fleet: Fleet) -> None:
    crowd = Crowd(fleet, "written", f"OUT=~ exec python {LIGHT_TRAINING.name} {STEP_MS} {ENDLESS}")
    wait_for(lambda: fleet.count("written", crowd.job, crowd.home) >= 3, "it to be written three times", 120)
    fleet.mini.kill(f"slurmd:{crowd.home}")
    set_down(fleet.mini, crowd.home)
    wait_for(lambda: fleet.count("rank", crowd.job, crowd.target), "it to train elsewhere", 120)
    crowd.trains(20)
    crowd.file("stop").touch()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)
    fleet.mini.start_daemon(f"slurmd:{crowd.home}")
    fleet.mini.exec(["scontrol", "update", f"NodeName={crowd.home}", "State=RESUME"], check=False)
    *found, end = crowd.lines()
    numbers = [int(line.split()[0]) for line in found]
    losses, loss = [], 1
    for _ in range(max(numbers) + 1):
        loss = loss * 48271 % 2147483647
        losses.append(loss)
    assert end == "end" and found == [f"{number} {losses[number]}" for number in numbers]
    (cut,) = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    lost = numbers[cut - 1] + 1 - numbers[cut]
    assert numbers[cut] > 0, "it went on from what was written"
    rows: list[dict[str, Any]] = []

    def is_told() -> bool:
        rows[:] = fleet.ask("acct", "-a", "-j", str(crowd.job))["jobs"]
        return rows[0]["state"] == "COMPLETED" and rows[0]["lost_steps"] is not None

    wait_for(is_told, lambda: f"acct to tell of its end: {rows}")
    (told,) = rows
    print(f"lost {lost} mini-batches of {STEP_MS} ms where {EVERY_S} s were asked; acct: {told}")
    assert told["lost_steps"] in (lost, lost - 1), "its node looks at a page, and one may end then"
    assert (told["restarts"], told["migrations"]) == (1, 0) and told["ckpt_s"] > 0
