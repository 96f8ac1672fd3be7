"""What submitit has submitted is sliced, and moved by its own requeueing; submitit has its results."""

from typing import Any

from tests.cluster.fleet import Fleet, wait_for
from tests.cluster.moved import END_S, Crowd, rows
from tests.cluster.test_moving import SUBMITTED
from tests.cluster.test_moving import cluster as cluster
from tests.slow import slow

pytestmark = slow("20 s each; attach/test_frameworks_tried has what submitit's batch script runs")


def submitit(fleet: Fleet, *words: str) -> list[str]:
    """Run the script that submits by submitit, as user1; return the words it prints."""
    return fleet.mini.exec(["python", SUBMITTED.name, *words], user="user1").stdout.split()


def done(fleet: Fleet, name: str) -> list[tuple[int, int, float]]:
    """What a training has done: (run, mini-batch, weight behind it)."""
    lines = map(str.split, rows(fleet, f"{name}.out"))
    return [(int(run), int(number), float(weight)) for run, number, weight in lines]


class Submitted(Crowd):
    """A training that submitit has submitted, in the place of one of sbatch's."""

    def submit(self, script: str, *flags: str, gpus: int) -> int:
        """Submit it; its script has its flags."""
        return int(submitit(self.fleet, "run", self.name)[0])


def test_a_training_with_a_checkpoint_is_moved_by_submitit(fleet: Fleet) -> None:
    """SIGUSR2 has submitit call its checkpoint() and requeue it; it goes on, and returns its count."""
    crowd = Submitted(fleet, "moves", "")
    wait_for(lambda: len(rows(fleet, "moves.out")) > 50, "it to train", 90)
    fleet.wait_moves_by(crowd.job, "submitit")
    crowd.make_room()
    crowd.wait_moved()
    wait_for(lambda: done(fleet, "moves")[-1][0] == 1, "it to go on", 90)
    fleet.home("user1", "moves.stop").touch()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)
    found = done(fleet, "moves")
    first = [number for run, number, _ in found if run == 0]
    again = [number for run, number, _ in found if run == 1]
    # The mini-batch that the signal came into may have been printed and not counted.
    assert first == [*range(len(first))] and again[0] in (len(first) - 1, len(first))
    assert again == [*range(again[0], again[0] + len(again))]
    assert all(weight == -1.0 - number for _, number, weight in found)
    assert submitit(fleet, "told", str(crowd.job)) == [str(again[-1] + 1)]
    crowd.wait_runs(f"REQUEUED {crowd.home}", f"COMPLETED {crowd.target}")
    assert crowd.codes().count("Signalled") == 1


def test_trials_take_turns_and_return_what_they_did(fleet: Fleet) -> None:
    """An array of four on two GPUs: each trains, in slices, and submitit has each one's result."""
    names = [f"trial{number}" for number in range(4)]
    jobs = submitit(fleet, "trials", *names)
    assert len(jobs) == len(names)
    wait_for(lambda: all(len(done(fleet, name)) > 50 for name in names), "all four to train", 120)

    def shared() -> list[dict[str, Any]]:
        return [row for row in fleet.ask("queue")["jobs"] if row["user"] == "user1"]

    wait_for(
        lambda: [row["suspends"] > 0 for row in shared()] == [True] * len(names), "each to be parked", 60
    )
    assert {row["moves_by"] for row in shared()} == {"submitit"}
    for name in names:
        fleet.home("user1", f"{name}.stop").touch()
    words = ["sacct", "-X", "-n", "-P", "-j", jobs[0].split("_")[0], "-o", "State"]
    ended = ["COMPLETED"] * len(names)
    wait_for(lambda: fleet.mini.exec(words).stdout.split() == ended, "all four to end", END_S)
    for name in names:
        found = done(fleet, name)
        assert [number for _, number, _ in found] == [*range(len(found))]
    wanted = [str(done(fleet, name)[-1][1] + 1) for name in names]
    assert submitit(fleet, "told", *jobs) == wanted
