"""What it costs to record what the engine hears: 1,600 jobs, a report of each node in every cycle.

Processor time of this process, for it shares the machine; the disk's own time is not in it.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from gandiva_slurm.controller.journal import Journal
from gandiva_slurm.controller.recorder import Recorder
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.state.codec import dumps
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Start
from gandiva_slurm.model.measured import Measured
from tests.builders import SECOND_NS, a_job, a_node
from tests.fake_world import an_engine
from tests.replaying import replay_journal

JOBS, NODES, GPUS, CYCLES = 1600, 50, 8, 30
#: What recording may add to a cycle, and what a cycle may take in the file.
LIMIT_S, LIMIT_BYTES = 0.05, 40_000


class Site:
    """A site whose jobs all run: each node tells of all its residents, with new times and rates."""

    def __init__(self) -> None:
        self.jobs = {n: a_job(n, f"user{n % 20}", memory_mib=100) for n in range(1, JOBS + 1)}
        self.nodes = [a_node(f"n{n:03}", GPUS, cpus=1000, memory_mib=10**9) for n in range(NODES)]
        self.events: list[ev.Event] = [ev.NodeSeen(node) for node in self.nodes]
        self.events += [ev.JobSeen(job) for job in self.jobs.values()]
        self._parked = dict.fromkeys(self.jobs, 0)
        self._random = random.Random(1)

    def obey(self, engine: Engine, actions: list[object], cycle: int) -> None:
        """Start what is to start, and report."""
        self.events = []
        for action in actions:
            if isinstance(action, Start):
                job = self.jobs[action.key.job_id]
                job = replace(job, state="RUNNING", nodes=action.nodes, priority=1, reason="")
                self.jobs[job.job_id] = job
                self.events += [ev.ActionDone(action.action_id), ev.JobSeen(job)]
        for node in self.nodes:
            late_ns = self._random.randrange(10**7)
            for place in engine.plan_jobs(node.name):
                self.events.append(self._seen(node.name, place.key, place.gpus, cycle, late_ns))

    def _seen(self, node, key, gpus, cycle, late_ns):
        is_on = (key.job_id // 400 + cycle // 20) % 4 == 0
        self._parked[key.job_id] += 0 if is_on else SECOND_NS + late_ns
        state, reason = (states.RUNNING, "") if is_on else (states.SUSPENDED, "Parked")
        rate = round(2 + key.job_id % 7 + self._random.random() / 100, 6) if is_on else 2.5
        told, parked_ns = Measured(rate_alone=rate), self._parked[key.job_id]
        return ev.ResidentSeen(node, key, state, gpus, reason, "", parked_ns, measured=told)


def live(path: Path, hours: float) -> float:
    """Run a controller's cycles; return the median time its journal took, decisions apart."""
    part = SimpleNamespace(replay_hours=hours, replay_mib=256)
    recorder = Recorder(lambda: SimpleNamespace(controller=part))  # type: ignore[arg-type,return-value]
    journal, engine, site = Journal.open(path), an_engine(), Site()
    now_ns, took = 2_000_000 * SECOND_NS, []
    for cycle in range(CYCLES):
        now_ns += SECOND_NS
        actions = recorder.handle(engine, [*site.events, ev.CycleTick()], now_ns)
        text = dumps(engine.to_json())
        begin_s = time.thread_time()
        journal.write(text, actions, now_ns, recorder.batch)
        took.append(time.thread_time() - begin_s)
        site.obey(engine, actions, cycle)
    journal.close()
    return statistics.median(took[5:])


def test_recording_1600_jobs(tmp_path: Path) -> None:
    without_s, with_s = live(tmp_path / "a.sqlite", 0), live(tmp_path / "b.sqlite", 24)
    size = (tmp_path / "b.sqlite").stat().st_size - (tmp_path / "a.sqlite").stat().st_size
    began_s = time.thread_time()
    tally = replay_journal(tmp_path / "b.sqlite")
    took_s = time.thread_time() - began_s
    print(f"\nwriting a cycle: {without_s * 1e3:.1f} ms, with what it heard {with_s * 1e3:.1f} ms; ", end="")
    print(f"{size / CYCLES / 1e3:.1f} KB a cycle of {tally.events / tally.cycles:.0f} events; ", end="")
    print(f"replayed at {took_s / tally.cycles * 1e3:.0f} ms a cycle")
    assert tally.first is None and tally.equal >= JOBS
    assert with_s - without_s < LIMIT_S
    assert size / CYCLES < LIMIT_BYTES
