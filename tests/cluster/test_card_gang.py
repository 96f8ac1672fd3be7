"""Gangs of two ranks, each on a simulated card of its own, take turns on a real mini cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.attach.test_requeue import Room
from tests.cluster.carded import CONTEXT, TOTAL, CardFleet, card_cluster
from tests.cluster.fleet import mended, wait_for
from tests.device import backend, card
from tests.device.conftest import library as library
from tests.device.test_gang import SEGMENT, WIDE_BYTES, WORLD
from tests.slow import soak

pytestmark = [pytest.mark.local, soak("60 s: tests/device/test_gang.py has each kind")]

QUANTUM_S, TURNS = 3.0, 3
SCRIPT = Path(__file__).parents[1] / "attach_train.py"
WORDS = ("--epochs", "1000000", "--device", "card")


@pytest.fixture(scope="module")
def cluster(slurm_here: None, library: Path) -> Iterator[MiniCluster]:
    with card_cluster("gangs", library, QUANTUM_S, cards=WORLD) as made:
        yield made


@pytest.fixture
def fleet(cluster: MiniCluster) -> Iterator[CardFleet]:
    with mended(CardFleet(cluster)) as made:
        yield made


def gang(fleet: CardFleet, user: str, name: str) -> int:
    """Submit a gang that trains until `stop(name)`."""
    words = " ".join([f"wide ~/{name}", *WORDS, "--step-ms 20", f"--store ~/{name}.store"])
    start = f"RANK=$rank WORLD_SIZE={WORLD} python {SCRIPT} {words} & ranks+=($!)"
    lines = f"for rank in 0 1; do {start}; done\nfor one in ${{ranks[@]}}; do wait $one || exit 1; done"
    return fleet.submit(user, lines, "--mem=6000", gpus=WORLD)


@pytest.fixture
def alone(tmp_path: Path, library: Path) -> Iterator[Room]:
    """A place for the same training without Slurm."""
    made = Room(tmp_path)
    yield made
    made.close()


def test_gangs_that_take_turns_learn_what_they_learn_alone(fleet, alone, library, tmp_path):
    jobs = {user: gang(fleet, user, name) for user, name in (("user1", "one"), ("user2", "two"))}
    wait_for(lambda: fleet.are_there(jobs.values()), "both to begin", 90)
    fleet.wait_suspends(jobs.values(), TURNS, deadline_s=60)
    # Of a parked rank its context and its buckets are on its card; it has five times as much while it trains.
    for number in range(WORLD):
        most = CONTEXT + WIDE_BYTES + 2 * SEGMENT
        least = wait_for(
            lambda number=number: len(used := fleet.used(number)) == 2 and min(used), "a park to be seen", 30
        )
        assert CONTEXT + WIDE_BYTES <= least < most
    for user, name in (("user1", "one"), ("user2", "two")):
        fleet.stop(user, name)
        fleet.wait_ended(jobs[user], "COMPLETED")
    told = {name: [fleet.home(user, f"{name}.{rank}").read_text().splitlines() for rank in range(WORLD)]
            for user, name in (("user1", "one"), ("user2", "two"))}  # fmt: skip
    short, long = sorted(told.values(), key=lambda lines: len(lines[0]))
    paths = [card.make(tmp_path / f"card{number}", TOTAL, CONTEXT) for number in range(WORLD)]
    epochs = str(1 + int(long[0][-2].split()[0]))
    env = backend.environment(library, *paths)
    alone.start("wide", *WORDS, "--epochs", epochs, world=WORLD, is_ours=False, **env)
    alone.finish()
    want = [alone.lines("alone", rank) for rank in range(WORLD)]
    assert long == want, "to the last bit"
    assert [lines[:-1] for lines in short] == [lines[: len(short[0]) - 1] for lines in want]
    assert not any(event["event"] == "unrestored" for event in fleet.events())
