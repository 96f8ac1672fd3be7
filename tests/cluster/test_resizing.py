"""An elastic training grows into idle GPUs and gives them back, each time by a checkpoint and a requeue."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster, said, wait_for
from tests.cluster.sharing import LIGHT
from tests.slow import slow, soak

TESTS = Path(__file__).parents[1]
QUANTUM_S = 0.5
MOVES = {"min_run_s": 2, "per_hour": 20, "cost_s": 0, "deadline_s": 20}
#: A torch process starts, on busy cores, for each new size.
RESIZE_S, END_S = 90.0, 90.0
SAMPLES, EPOCHS = 30, 100_000
TRAIN = "python -m tests.elastic_train replicas"


@contextmanager
def a_cluster(name: str, nodes: str) -> Iterator[MiniCluster]:
    """These nodes, and a controller that is quick to resize jobs."""
    with own_cluster(name, nodes, QUANTUM_S, moves=MOVES) as made:
        made.path("/home/user2/light.py").write_text(LIGHT)
        made.path("/home/user1/tests").mkdir()
        for script in ("elastic_train.py", "stopping.py"):
            made.path("/home/user1/tests", script).write_text((TESTS / script).read_text())
        yield made


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """One node of two GPUs."""
    with a_cluster("resizing", "v100:1x2") as made:
        yield made


def rows(fleet: Fleet, name: str) -> dict[int, list[tuple[int, float, list[int]]]]:
    """What the ranks wrote: by epoch world, loss and samples of each piece."""
    found = defaultdict(list)
    for rank in range(4):
        path = fleet.home("user1", f"{name}.{rank}")
        for line in path.read_text().splitlines() if path.exists() else ():
            _, epoch, world, loss, _, seen = line.split()
            samples = [] if seen == "-" else [*map(int, seen.split(","))]
            found[int(epoch)].append((int(world), float.fromhex(loss), samples))
    return found


def worlds(fleet: Fleet, name: str) -> list[int]:
    """The numbers of ranks that trained, one after the other."""
    told = [world for _, pieces in sorted(rows(fleet, name).items()) for world, _, _ in pieces]
    return [world for world, before in zip(told, [0, *told], strict=False) if world != before]


def codes(fleet: Fleet) -> list[str]:
    """Why jobs are as they are."""
    return [row["reason"] for row in fleet.ask("queue")["jobs"]]


@slow("60 s, torch starts three times; attach/test_elastic and sim/test_elastic_live have the parts")
def test_a_training_grows_and_shrinks_and_sees_each_sample_once(fleet: Fleet) -> None:
    store = "$PWD/store.${SLURM_RESTART_COUNT:-0}"
    script = f"srun {TRAIN} $PWD/elastic --epochs {EPOCHS} --step-ms 50 --store {store}"
    flags = ("--ntasks=1", "--gandiva-elastic=1-2", "--job-name=elastic")
    job = fleet.submit("user1", script, *flags)
    wait_for(lambda: 2 in worlds(fleet, "elastic"), "two ranks to train", RESIZE_S)

    def gpus() -> list[list[int]]:
        return [sorted(row["gpu_ids"]) for row in fleet.ask("queue")["jobs"] if row["job_id"] == job]

    wait_for(lambda: gpus() == [[0, 1]], lambda: f"it to have both GPUs: {gpus()}")
    other = fleet.submit("user2", "exec python light.py count stop", "--gandiva-pack=never")
    wait_for(lambda: worlds(fleet, "elastic")[-1:] == [1], "one rank to train again", RESIZE_S)
    fleet.home("user1", "elastic.stop").touch()
    fleet.wait_ended(job, "COMPLETED", deadline_s=END_S)
    fleet.mini.exec(["touch", "/home/user2/stop"], user="user2")
    fleet.wait_ended(other, "COMPLETED", deadline_s=END_S)
    told = rows(fleet, "elastic")
    for pieces in told.values():
        assert sorted(sample for _, _, samples in pieces for sample in samples) == [*range(SAMPLES)]
    _are_the_losses_of_one_rank(fleet, told)
    _is_told(fleet, job)


@slow("60 to 90 s, torch starts three times; unit/test_engine_growing.py has the parts")
@pytest.mark.parametrize(
    ("gpus", "is_killed"),
    [
        pytest.param(1, True, id="gandivactld killed"),
        pytest.param(2, False, id="two GPUs a node", marks=soak("80 s more")),
    ],
)
def test_a_training_grows_over_two_nodes_and_comes_back(
    slurm_here: None, gpus: int, is_killed: bool
) -> None:
    """Its node has no more GPUs; srun starts as many ranks as it has, on both nodes."""
    with a_cluster("spreading", f"v100:2x{gpus}") as made:
        _grows_over_two_nodes(Fleet(made), gpus, is_killed)


def _grows_over_two_nodes(fleet: Fleet, gpus: int, is_killed: bool) -> None:
    store = "$PWD/store.${SLURM_RESTART_COUNT:-0}"
    script = f"srun {TRAIN} $PWD/elastic --epochs {EPOCHS} --step-ms 50 --store {store}"
    flags = ["--nodes=1-2", f"--gandiva-elastic=1-{2 * gpus}", "--job-name=elastic"]
    if gpus > 1:  # of one task and two nodes sbatch makes one node
        flags.append(f"--ntasks={gpus}")
    job = fleet.submit("user1", script, *flags, gpus=gpus)
    if is_killed:  # saved and requeued, its two places kept, Slurm's record not changed yet
        wait_for(lambda: worlds(fleet, "elastic"), "it to train", RESIZE_S)
        gone = ("COMPLETING", "PENDING")
        wait_for(lambda: fleet.slurm_state(job) in gone, lambda: f"it to be saved: {codes(fleet)}", RESIZE_S)
        fleet.mini.kill("gandivactld")
        fleet.mini.start_daemon("gandivactld")
    wait_for(lambda: 2 * gpus in worlds(fleet, "elastic"), "ranks on both nodes to train", RESIZE_S)

    def homes() -> list[str]:
        jobs = [row for row in fleet.ask("queue")["jobs"] if row["job_id"] == job]
        return [place["node"] for row in jobs for place in row["places"]]

    wait_for(lambda: homes() == ["n1", "n2"], lambda: f"it to be on both nodes: {homes()}")
    told = said(fleet.mini, "why", str(job))
    assert f"GPUs on one node or two, submitted with {gpus}, now {2 * gpus} on two nodes" in told
    other = fleet.submit("user2", "exec python light.py count stop", "--gandiva-pack=never")
    wait_for(lambda: worlds(fleet, "elastic")[-1:] == [gpus], "ranks on one node to train again", RESIZE_S)
    fleet.home("user1", "elastic.stop").touch()
    fleet.wait_ended(job, "COMPLETED", deadline_s=END_S)
    fleet.mini.exec(["touch", "/home/user2/stop"], user="user2")
    fleet.wait_ended(other, "COMPLETED", deadline_s=END_S)
    pieces_of = rows(fleet, "elastic")
    for pieces in pieces_of.values():
        assert sorted(sample for _, _, samples in pieces for sample in samples) == [*range(SAMPLES)]
    _are_the_losses_of_one_rank(fleet, pieces_of)
    _is_told(fleet, job, gpus)


def _are_the_losses_of_one_rank(fleet: Fleet, told: dict[int, list[tuple[int, float, list[int]]]]) -> None:
    """Each epoch's mean loss is that of a training that nobody resized, rounding aside."""
    alone = f"cd; {TRAIN} $PWD/alone --epochs {len(told)}"
    fleet.mini.exec(["sh", "-c", alone], user="user1")
    for epoch, pieces in rows(fleet, "alone").items():
        want = sum(loss / world for world, loss, _ in pieces)
        got = sum(loss / world for world, loss, _ in told[epoch])
        assert got == pytest.approx(want, rel=1e-9), f"epoch {epoch}"


def _is_told(fleet: Fleet, job: int, gpus: int = 1) -> None:
    words = ["sacct", "-D", "-X", "-n", "-P", "-j", str(job), "-o", "State,AllocTRES"]

    def runs() -> list[tuple[str, str]]:
        told = fleet.mini.exec(words).stdout.splitlines()
        return [(line.split("|")[0], line.partition("gres/gpu=")[2][:1]) for line in told]

    want = [("REQUEUED", f"{gpus}"), ("REQUEUED", f"{2 * gpus}"), ("COMPLETED", f"{gpus}")]
    wait_for(lambda: runs() == want, lambda: f"sacct to show its three runs: {runs()}")
    story = said(fleet.mini, "why", str(job), "--story")
    assert "Growing: " in story and "Shrinking: " in story
    assert f"submitted with {gpus}, now {gpus}" in story
