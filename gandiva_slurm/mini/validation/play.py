"""One validation: the cluster comes up, the workload is played, its costs are taken, and it is simulated."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gandiva_slurm.mini.demo import Tally, brought_up
from gandiva_slurm.mini.demo_screen import Screen
from gandiva_slurm.mini.spec import MiniSpec
from gandiva_slurm.mini.validation import costs, live, picture, simulated
from gandiva_slurm.mini.validation.costs import Costs
from gandiva_slurm.mini.validation.holds import holds_of
from gandiva_slurm.mini.validation.live import Recorded
from gandiva_slurm.mini.validation.plan import PacedJob
from gandiva_slurm.mini.validation.report import Compared, lines_of, report_of
from gandiva_slurm.mini.validation.simulated import Cast
from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.timeline import Timeline

S = 10**9
#: What is off in the simulations beside: each of the costs, by this part, up and down.
OFF = 0.05
VARIED = ("look_s", "slurm_s", "load_s", "reload_s", "told_s")


def run(spec: MiniSpec, jobs: Sequence[PacedJob], screen: Screen, at: Path | None = None) -> dict[str, Any]:
    """Validate; returns the report, whose `ok` says whether every check that was judged held.

    `at`: a file for a picture.
    """
    began_s, tally = time.monotonic(), Tally()
    screen.say("== a private Slurm comes up")
    with brought_up(spec, screen, tally) as cluster:
        screen.say(f"== {len(jobs)} jobs come")
        recorded = live.run(cluster, jobs, screen.say)
    screen.say("== the same in the simulator")
    compared, timeline = compare(recorded, spec)
    if at is not None:
        drawn = Cluster([(node.gpu_type, node.gpus) for node in spec.nodes])
        real = picture.spans_of(compared, drawn, [node.name for node in spec.nodes])
        picture.draw(at, compared, drawn, (real, timeline.spans))
    report = report_of(compared, tally.usage, tally.left)
    report |= {"backend": spec.backend, "quantum_s": spec.quantum_s}
    report |= {"wall_s": round(time.monotonic() - began_s, 1)}
    for line in lines_of(report, tally.usage):
        screen.say(line)
    return report


def compare(recorded: Recorded, spec: MiniSpec) -> tuple[Compared, Timeline]:
    """Simulate what was recorded, by the costs that were measured in it; and with costs a little off."""
    holds = holds_of(recorded)
    measured = costs.measure(recorded, holds, {node.name: node.gpu_type for node in spec.nodes})
    first_ns = min(recorded.submitted_ns.values())
    submitted_s = {name: (at_ns - first_ns) / S for name, at_ns in recorded.submitted_ns.items()}
    cast = Cast(recorded.jobs, submitted_s, spec.nodes, spec.quantum_s, recorded.guess_ns / S)
    outcome, timeline = simulated.run(cast, measured)
    others = [simulated.run(cast, each)[0].summary()["avg_jct_s"] for each in varied(measured)]
    return Compared(recorded, holds, measured, outcome, others), timeline


def varied(measured: Costs) -> list[Costs]:
    """The costs, each of those that vary once higher and once lower than it was measured."""
    return [
        dataclasses.replace(measured, **{name: getattr(measured, name) * part})
        for name in VARIED
        for part in (1 + OFF, 1 - OFF)
    ]
