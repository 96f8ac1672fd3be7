"""Switches and sockets of simulated nodes: GPUs of a gang are near, and as near as it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.placement.free import FreeGpus
from gandiva_slurm.policy.placement.seats import Guest, seat_all
from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.clusters import read_cluster
from gandiva_slurm.sim.workloads.load import Source, load
from gandiva_slurm.sim.world import PolicyError
from tests.policy_world import SETTINGS, PolicyWorld, a_job
from tests.sim_scenes import ORACLE, model_spec, play, spec

EIGHT = read_cluster("v100:1x8/2/4")
FLAT = read_cluster("v100:1x8")


def test_a_cluster_has_switches_and_sockets_where_it_says_so() -> None:
    assert EIGHT.has_parts and not FLAT.has_parts
    assert EIGHT.lines[5] == (4, 4, 0)
    assert EIGHT.share((4, 5), "switch") and not EIGHT.share((5, 6), "switch")
    assert EIGHT.share((4, 7), "socket") and not EIGHT.share((3, 4), "socket")
    assert EIGHT.share((0, 7), "node") and FLAT.share((0, 7), "switch")
    assert not EIGHT.share((0, 1), "gpu") and EIGHT.share((0,), "gpu") and EIGHT.share((0, 7), "any")
    assert [EIGHT.widest("v100", cell) for cell in ("gpu", "switch", "socket", "node", "")] == [1, 2, 4, 8, 8]


@pytest.mark.parametrize("text", ["v100:1x8/3", "v100:1x8/4/2", "v100:1x8/0", "v100:1x8/2/4/8"])
def test_parts_that_do_not_divide_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--cluster"):
        read_cluster(text)


@pytest.mark.parametrize(("taken", "want"), [((0,), (2, 3)), ((0, 3), (4, 5)), ((0, 2, 4, 6), (1, 3))])
def test_two_gpus_come_from_one_switch_if_any_has_them_else_from_one_socket(
    taken: tuple[int, ...], want: tuple[int, ...]
) -> None:
    assert FreeGpus(EIGHT, taken).gather(2, "v100") == want


def test_one_gpu_breaks_no_whole_switch() -> None:
    assert FreeGpus(EIGHT, (2,)).gather(1, "v100") == (3,)


def test_a_gang_that_asks_for_a_switch_waits_rather_than_be_apart() -> None:
    apart = frozenset({0, 2, 4, 6})
    assert seat_all(EIGHT, apart, [Guest(1, 2, "v100", cell="switch")]) == {}
    assert seat_all(EIGHT, apart, [Guest(1, 2, "v100", cell="socket")]) == {1: (1, 3)}
    nodes = Cluster([("v100", 2), ("v100", 2)])
    assert seat_all(nodes, frozenset(), [Guest(1, 3, "v100", cell="node")]) == {}
    assert len(seat_all(nodes, frozenset(), [Guest(1, 3, "v100")])[1]) == 3


def test_movable_jobs_make_room_for_it() -> None:
    singles = [Guest(n, 1, "v100", (n,), True) for n in (0, 2, 4, 6)]
    seats = seat_all(EIGHT, frozenset(), [*singles, Guest(9, 2, "v100", cell="switch")])
    assert len(seats) == 5 and EIGHT.share(seats[9], "switch")


def test_the_world_refuses_a_gang_that_is_apart() -> None:
    with pytest.raises(PolicyError, match="must share a switch"):
        play({0: {0: [1, 2]}}, [spec(0, 2, cell="switch")], EIGHT)


def test_gandiva_fair_keeps_cells_and_everybody_ends() -> None:
    jobs = [
        a_job(n, 2, length_s=100, cell=("node", "node", "")[n % 3], user=f"u{n % 2}") for n in range(1, 10)
    ]
    world = PolicyWorld((("v100", 3), ("v100", 3)), gandiva_fair.make(SETTINGS)).run(jobs)
    assert len(world.ends_ns) == 9
    for moment in world.moments:
        for job_id, gpus in moment.plan.runs.items():
            assert moment.view.cluster.share(gpus, moment.view.jobs[job_id].cell)


def test_a_workload_may_ask_for_cells(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,gpus,length_s,cell\na,0,2,60,switch\nb,0,4,60,any\nc,0,1,60,\n")
    specs, _ = load(Source(path, "gandiva"), EIGHT)
    assert [one.cell for one in specs] == ["switch", "any", ""]
    path.write_text("job_id,submit_s,gpus,length_s,cell\na,0,4,60,switch\n")
    with pytest.raises(UsageError, match="asks for 4 GPUs of one switch"):
        load(Source(path, "gandiva"), EIGHT)
    path.write_text("job_id,submit_s,gpus,length_s,cell\na,0,4,60,rack\n")
    with pytest.raises(UsageError, match="cell is 'rack'"):
        load(Source(path, "gandiva"), EIGHT)


def test_rates_at_sizes_not_measured_lie_between_those_that_were() -> None:
    """m does 10 a second on one GPU, 18 on two; on more it goes on in proportion."""
    job = model_spec(0, "m", 100, 2)
    assert [ORACLE.alone(job, size, "fast", True) for size in (1, 2, 3, 4)] == [10.0, 18.0, 27.0, 36.0]
    gang = model_spec(1, "n", 100, 4)
    table = type(ORACLE)({"fast": {("n", 2): {None: 8.0}, ("n", 4): {None: 12.0}}})
    assert [table.alone(gang, size, "fast", True) for size in (1, 2, 3, 4)] == [4.0, 8.0, 10.0, 12.0]
    assert table.alone(model_spec(2, "n", 100, 3), 3, "fast", True) == 0.0, "it was never measured as asked"
