"""The workload in the simulator, with the costs that were measured on the mini cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gandiva_slurm.controller.settings import leader_of
from gandiva_slurm.mini.spec import MiniNode
from gandiva_slurm.mini.validation.costs import Costs
from gandiva_slurm.mini.validation.plan import POLICY, PacedJob
from gandiva_slurm.policy.port import PACK_FLOOR, Cluster, PolicySettings
from gandiva_slurm.sim import world
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import SLOTS, SlurmWorld
from gandiva_slurm.sim.timeline import Timeline
from gandiva_slurm.sim.truth import Oracle

S = 10**9


@dataclass(frozen=True)
class Cast:
    """What is simulated but for its costs."""

    jobs: Sequence[PacedJob]
    #: by name: seconds after the first
    submitted_s: Mapping[str, float]
    nodes: Sequence[MiniNode]
    quantum_s: float
    #: what the policy takes a move for until one was measured
    guess_s: float


def run(cast: Cast, costs: Costs) -> tuple[Outcome, Timeline]:
    """Simulate it; by the policy as gandivactld makes it, its plans carried out by the daemons' engine."""
    quantum_ns, guess_ns, move_ns, start_ns = (
        round(value_s * S) for value_s in (cast.quantum_s, cast.guess_s, costs.move_s, costs.start_s)
    )
    told = {"policy": POLICY, "quantum_ns": quantum_ns, "restart_ns": guess_ns, "pack_floor": PACK_FLOOR}
    # To its engine a move takes what it takes from saved to attached again, as on a cluster.
    settings = PolicySettings(quantum_ns, restart_ns=round(costs.told_s * S))
    policy = SlurmWorld(settings, leader_of(told).make(), SLOTS, start_ns, round(costs.slurm_s * S))
    cluster = Cluster([(node.gpu_type, node.gpus) for node in cast.nodes])
    charged = world.Costs(
        round(costs.switch_s * S), move_ns, round_ns=round(costs.look_s * S), start_ns=start_ns
    )
    timeline = Timeline()
    scene = Scene(specs_of(cast), cluster, truth_of(cast, costs), charged, is_checked=True)
    return simulate(scene, policy, events=timeline), timeline


def specs_of(cast: Cast) -> list[Spec]:
    """The jobs as the simulator takes them, each of a model of its own: a cluster knows no more of them."""
    return [
        Spec(
            number, job.name, job.user, job.gpus, round(cast.submitted_s[job.name] * S), steps=job.steps,
            model=job.name, gpu_types=(job.gpu_type,) if job.gpu_type else (), can_pack=False, cell="node",
        )
        for number, job in enumerate(cast.jobs)
    ]  # fmt: skip


def truth_of(cast: Cast, costs: Costs) -> Oracle:
    """How fast each job is on each type: what was measured of its size there, or else of any."""
    types = {node.gpu_type for node in cast.nodes}
    return Oracle({
        kind: {(job.name, job.gpus): {None: 1 / costs.step_s(kind, job.gpus)} for job in cast.jobs}
        for kind in sorted(types)
    })
