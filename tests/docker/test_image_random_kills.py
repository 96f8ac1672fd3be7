"""A training moves to and fro by images while what makes it move is killed: never two, nothing untold.

It goes back where a slurmctld that was killed had forgotten the move, to its image: what it has done in those
seconds is lost, and told by the node. It begins anew only where that is told.

`GANDIVA_IMAGE_KILLS=200 pytest -s tests/docker/test_image_random_kills.py -m soak` takes an hour; `make soak`
has the 40 of its own.
"""

import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import wait_for
from tests.docker.moving import GONE_S, MOVE_S, TYPES, Moving, criu_of, two_nodes
from tests.slow import soak

KILLS = int(os.environ.get("GANDIVA_IMAGE_KILLS", "40"))
SEED = int(os.environ.get("GANDIVA_IMAGE_KILLS_SEED", "1"))
pytestmark = [soak("15 s a kill; test_image_faults has four"), pytest.mark.timeout(300 + 60 * KILLS)]

#: What a kill comes after: a dump begins, the image is whole (a requeue follows), a restore begins.
POINTS = ("image", "imaged", "restore")
VICTIMS = ("criu", "gandivad:from", "gandivad:to", "gandivactld", "slurmd:from", "slurmd:to", "slurmctld")
#: How long after the event at most: dump and restore take a quarter of a second, a requeue up to three.
LATEST_S = {"image": 0.5, "imaged": 3.0, "restore": 0.6}
GO_ON_S = 240.0
#: Longer than slurmctld lets a batch script be missing after its start (BatchStartTimeout).
REGISTER_S = 20.0
#: Another waits on its GPU, and the other node has no room for it. It is no kill.
NOT_MOVED = "was not moved"
#: A dump or a restore that was over.
NO_CRIU = "no criu was there"
#: More steps than it ever takes.
ENDLESS = 10**7


@pytest.fixture(scope="module")
def mini() -> Iterator[MiniCluster]:
    """As in test_images, a cluster of its own."""
    with two_nodes("random") as cluster:
        yield cluster


def test_killed_at_random_points_it_is_alive_once_and_loses_nothing_untold(mini: MiniCluster) -> None:
    """A training whose move has failed rests for half an hour: another one takes its place.

    Rounds in which nothing was there to be killed do not count, and are half as many at most.
    """
    draw, outcomes = random.Random(SEED), Counter[tuple[str, str, str]]()
    moving, victims = begun(mini), list[str]()
    for number in itertools.count(1):
        point, victim = draw.choice(POINTS), draw.choice(VICTIMS)
        victims.append(victim)
        late_s = draw.uniform(0, LATEST_S[point])
        # What it forgot may strike in the next round.
        may_go_back = "slurmctld" in victims[-3:]
        outcome = one_kill(moving, point, victim, late_s, may_go_back)
        outcomes[point, victim, outcome] += 1
        print(f"{number}, for {KILLS} kills: {point} + {late_s:.2f} s, {victim}: {outcome}", flush=True)
        if outcome == NOT_MOVED or "moves that failed in a row" in moving.story():
            end(moving)
            moving = begun(mini)
        kills = sum(n for (*_, what), n in outcomes.items() if what not in (NOT_MOVED, NO_CRIU))
        assert number - kills <= 3 + KILLS // 2, outcomes
        if kills == KILLS:
            break
    end(moving)
    for (point, victim, outcome), count in sorted(outcomes.items()):
        print(f"{point:8} {victim:14} {outcome:12} {count}")


def begun(mini: MiniCluster) -> Moving:
    """A training that goes on until it is cancelled."""
    moving = Moving(mini)
    moving.submit(f"exec python train.py OUT {ENDLESS} 0.02")
    return moving


def end(moving: Moving) -> None:
    """Cancel it; nothing of it is left, and its losses are those of a run alone."""
    moving.mini.exec(["scancel", str(moving.job)])
    wait_for(lambda: not any(moving.processes(node) for node in TYPES), "its processes to be gone", 60)
    check_losses(moving)
    wait_for(lambda: not moving.images(), lambda: f"images to be deleted: {moving.images()}", GONE_S)
    moving.fleet.finish()


def one_kill(moving: Moving, point: str, victim: str, late_s: float, may_go_back: bool) -> str:
    """Have it moved and something killed meanwhile; return what came of it, when it trains again."""
    mini, home = moving.mini, moving.node()
    there = {"from": home, "to": next(node for node in TYPES if node != home)}
    resume(mini)
    before, anew, gone_back = len(moving.events(point)), told_anew(moving), len(jumps(moving))
    moving.crowd()
    try:
        wait_for(lambda: len(moving.events(point)) > before or is_away(moving, home), "it to move", MOVE_S)
    except AssertionError:
        wait_for(lambda: not cancelled(moving), lambda: f"the others to end: {cancelled(moving)}", 60)
        return NOT_MOVED
    time.sleep(late_s)  # the moment itself
    daemon, _, side = victim.partition(":")
    name = f"{daemon}:{there[side]}" if side else daemon
    pid = -1
    if victim == "criu":
        pid = criu_of(mini, there["to" if point == "restore" else "from"])
        try:
            if pid:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pid = 0
    else:
        mini.kill(name)
        mini.start_daemon(name)
    was = len(moving.lines())
    again = Registrations(mini) if victim == "slurmctld" else None
    wait_for(
        lambda: (len(moving.lines()) > was + 20 and is_where_slurm_has_it(moving)) or (again and again.ask()),
        moving.story, GO_ON_S,
    )  # fmt: skip
    # A slurmctld that is killed forgets what it was told within the last seconds.
    wait_for(lambda: not cancelled(moving), lambda: f"the others to end: {cancelled(moving)}", 60)
    alive = {node: len(moving.processes(node)) for node in TYPES}
    assert sum(alive.values()) <= 1, (alive, moving.story())
    back = jumps(moving)[gone_back:]
    if back:
        print(f"went back {back}; of its nodes:", *moving.story().splitlines()[-40:], sep="\n  ")
    told = told_anew(moving) - anew
    assert sum(first == 0 for _, first in back) <= told, (back, moving.story())
    assert not back or told or may_go_back, (back, moving.story())
    if pid == 0:
        return NO_CRIU
    if told:
        return "began anew"
    if back:
        return "went back"
    return "moved" if moving.node() not in ("", home) else "stayed"


class Registrations:
    """Nodes tell slurmctld what they have when slurmd starts, and else every some minutes.

    A slurmctld that was killed may have forgotten a requeue and a start of the last seconds, and ends what it
    does not know; what it takes for running it starts again when its node has told it otherwise.
    """

    def __init__(self, mini: MiniCluster) -> None:
        self._mini, self._asked_s = mini, time.monotonic()

    def ask(self) -> None:
        """Have both nodes tell it, if they have not for a while."""
        if time.monotonic() - self._asked_s > REGISTER_S:
            for node in TYPES:
                self._mini.kill(f"slurmd:{node}")
                self._mini.start_daemon(f"slurmd:{node}")
            self._asked_s = time.monotonic()


def is_where_slurm_has_it(moving: Moving) -> bool:
    """It runs, on the node that Slurm says, and on no other."""
    node = moving.node()
    return bool(node) and [name for name in TYPES if moving.processes(name)] == [node]


def resume(mini: MiniCluster) -> None:
    """Undo drains: a slurmctld that was killed starts a job twice, a "Duplicate jobid" to the node."""
    for row in mini.exec(["sinfo", "-h", "-N", "-o", "%N %T"]).stdout.splitlines():
        node, state = row.split()
        if state.startswith("drain"):
            mini.exec(["scontrol", "update", f"NodeName={node}", "State=RESUME"])


def cancelled(moving: Moving) -> str:
    """Cancel all jobs but the training; return those that are there all the same."""
    moving.mini.exec(["scancel", "-u", "user2"], check=False)
    return moving.mini.exec(["squeue", "-h", "-u", "user2", "-o", "%A %T"], check=False).stdout.strip()


def is_away(moving: Moving, home: str) -> bool:
    """It has left the node before it was seen to."""
    return moving.node() not in ("", home)


def told_anew(moving: Moving) -> int:
    """How often a restore failed, or criu's death was the job's, and it was begun anew."""
    return sum(bool(event.get("anew")) for event in moving.events("unrestored")) + moving.broken()


def jumps(moving: Moving) -> list[tuple[int, int]]:
    """Where it did not go on with the next step: (the last one before, the first one after)."""
    steps = [int(line.split()[0]) for line in moving.lines()]
    return [(one, other) for one, other in itertools.pairwise(steps) if other != one + 1]


def check_losses(moving: Moving) -> None:
    """Each loss is that of a run alone."""
    rows = [line.split() for line in moving.lines()]
    longest = max(int(step) for step, _ in rows) + 1
    words = f"cd; python train.py {moving.name}.alone {longest} 0"
    moving.mini.exec(["sh", "-c", words], user="user1", check=False, timeout_s=60 + longest / 50)
    alone = [line.split()[1] for line in Path(moving.file(".alone")).read_text().splitlines()]
    assert all(loss == alone[int(step)] for step, loss in rows), "the same to the last bit"
    print(f"{len(rows)} steps, to {longest}; went back: {jumps(moving)}", flush=True)
