"""Nine trainings of three users on four GPUs, a framework's among them: those that remain have a GPU each."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, mended, own_cluster, wait_for
from tests.slow import soak

pytestmark = [
    pytest.mark.local,
    soak("70 s, nine trainings at once; unit/test_immovable_live has the same through the engine"),
    pytest.mark.timeout(900),
]

SCRIPTS = Path(__file__).parents[1] / "node/scripts"
QUANTUM_S, MOVE_S = 2.0, 10.0
USERS = ("user1", "user2", "user3")
#: Those that remain, one of each user: by a Trainer without a line, attached, and by its own file.
LONG = {
    "user1": "exec python unasked.py long",
    "user2": "OUT=~ exec python attached.py 20 1000000000",
    "user3": "#SBATCH --gandiva-checkpoint=self\nexec python own.py long",
}
#: Those that end first can never be moved.
SHORT = "exec python own.py short{0}"


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of two GPUs."""
    moves = {"cost_s": MOVE_S, "deadline_s": 30}
    with own_cluster("nine", "v100:2x2", QUANTUM_S, moves=moves) as made:
        for user in USERS:
            home = made.path(f"/home/{user}")
            for name in ("unasked", "attached", "own"):
                home.joinpath(f"{name}.py").write_text((SCRIPTS / f"{name}.py").read_text())
        yield made


@pytest.fixture
def fleet(cluster: MiniCluster) -> Iterator[Fleet]:
    with mended(Fleet(cluster)) as made:
        yield made


def homes(fleet: Fleet, jobs: set[int]) -> dict[int, tuple[str, int]]:
    """Which GPU each of these lives on, where it does."""
    rows = [row for row in fleet.ask("queue")["jobs"] if row["job_id"] in jobs]
    places = {row["job_id"]: row["places"] for row in rows if row["places"] and row["state"] != "STARTING"}
    return {job: (at[0]["node"], at[0]["gpus"][0]) for job, at in places.items() if at[0]["gpus"]}


def test_three_that_remain_of_nine_have_a_gpu_each(fleet):
    flags = ("--gandiva-pack=never",)
    short = [fleet.submit(user, SHORT.format(n), *flags) for user in USERS for n in range(2)]
    long = {user: fleet.submit(user, script, *flags) for user, script in LONG.items()}
    jobs = {*long.values()}
    wait_for(lambda: fleet.are_there([*short, *jobs]), "all nine to live somewhere", 240)
    out = {"user1": "long", "user2": f"loss.{long['user2']}", "user3": "long.out"}
    files = {user: fleet.home(user, name) for user, name in out.items()}

    def sizes() -> list[int]:
        return [file.stat().st_size if file.exists() else 0 for file in files.values()]

    wait_for(lambda: min(sizes()) > 200, "each of the three to train", 240)
    for user in USERS:
        for n in range(2):
            fleet.stop(user, f"short{n}")
    for job in short:
        fleet.wait_ended(job, "COMPLETED", deadline_s=240)
    shared_s, began_s = 0.0, time.monotonic()

    def are_apart() -> bool:
        """Look how long two of them have shared a GPU, while one is idle in any case: there are four."""
        nonlocal shared_s
        found = homes(fleet, jobs)
        if len(found) == 3 and len({*found.values()}) < 3:
            shared_s = time.monotonic() - began_s
        return len(found) == 3 and len({*found.values()}) == 3

    wait_for(are_apart, lambda: f"each to have a GPU: {homes(fleet, jobs)}", 240)
    print(f"shared for {shared_s:.0f} s more; two quanta and a move: {2 * QUANTUM_S + MOVE_S:.0f} s")
    before = sizes()
    wait_for(lambda: all(a > b + 200 for a, b in zip(sizes(), before, strict=True)), "each to train on", 240)
    fleet.wait_moves_by(long["user1"], "transformers")
    for user, name in (("user1", "long.stop"), ("user2", f"stop.{long['user2']}"), ("user3", "long.stop")):
        fleet.home(user, name).touch()
    for job in jobs:
        fleet.wait_ended(job, "COMPLETED", deadline_s=120)
    losses = files["user1"].read_text().splitlines()
    fleet.mini.exec(["python", "unasked.py", "alone", str(len(losses))], user="user1")
    assert losses == fleet.home("user1", "alone").read_text().splitlines(), "to the last bit"
