"""How long gandivactld decides: CPU seconds of the engine for one cycle of a large cluster."""

import inspect
import time
from collections import Counter

from gandiva_slurm.engine.engine import Engine
from tests.fake_world import FakeWorld

NODES, GPUS, JOBS, USERS = 1250, 8, 2000, 20
#: The controller decides in its event loop: for so long it answers nobody.
LONGEST_S = 10.0


def test_hundreds_of_jobs_that_come_at_once() -> None:
    world = FakeWorld({f"n{n}": GPUS for n in range(NODES)}, users=tuple(f"user{n}" for n in range(USERS)))
    took_s: list[float] = []
    handle = inspect.unwrap(Engine.handle)  # without the tests' own checks

    def timed(engine: Engine, *words: object) -> object:
        began_s = time.process_time()
        actions = handle(engine, *words)
        took_s.append(time.process_time() - began_s)
        return actions

    world.handle = timed
    for n in range(JOBS):
        world.submit(f"user{n % USERS}", gpus=(1, 2, 4, 8)[n % 4])
    world.cycle()
    while _waiting(world):
        world.cycle()
    world.run(3)
    print(
        f"\n{JOBS} jobs on {NODES} nodes placed in {len(took_s) - 3} cycles of {min(took_s):.2f} to "
        f"{max(took_s):.2f} s, {sum(took_s):.0f} s in all; then {took_s[-1]:.2f} s a cycle"
    )
    print(Counter(record.state for record in world.engine.jobs.values()))
    assert max(took_s) <= LONGEST_S


def _waiting(world: FakeWorld) -> int:
    return sum(record.code == "New" for record in world.engine.jobs.values())
