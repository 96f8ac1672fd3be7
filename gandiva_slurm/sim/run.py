"""One simulation from its parts: what the command does, as a function."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.policy.port import Cluster, OfUser, Plan, Policy
from gandiva_slurm.sim.books import Books
from gandiva_slurm.sim.checks import Auditor
from gandiva_slurm.sim.faults import Fault
from gandiva_slurm.sim.gavel_rounds import Rounds
from gandiva_slurm.sim.isolated import isolated_jct_s
from gandiva_slurm.sim.job import RATE, Job, Spec
from gandiva_slurm.sim.loop import Loop
from gandiva_slurm.sim.outcome import Listener, Outcome
from gandiva_slurm.sim.truth import Truth
from gandiva_slurm.sim.world import Costs, World

#: What a policy may tell of users' trades.
TRADED = ("traded_in", "traded_out")


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a simulation is made of but its policy."""

    specs: Sequence[Spec]
    cluster: Cluster
    truth: Truth
    costs: Costs = field(default_factory=Costs)
    tickets: Mapping[str, int] = field(default_factory=dict)
    #: the account tree, where tickets come from it
    associations: tuple[Association, ...] = ()
    faults: Iterable[Fault] = ()
    is_checked: bool = False
    #: time in Gavel's rounds
    is_in_rounds: bool = False


def simulate(
    scene: Scene,
    policy: Policy,
    takes_oracle: bool = False,
    events: Listener | None = None,
    on_finish: Callable[[int], None] | None = None,
) -> Outcome:
    """Run a workload to its end. PolicyError: the policy's plans cannot be; InvariantError: ours is wrong."""
    began_s = time.perf_counter()
    world = World(scene.cluster, scene.truth, scene.costs, events.tell if events else None)
    world.truth_is_open = takes_oracle
    if events:
        events.clock = world
    books = Books(scene.specs, scene.cluster.size, scene.tickets, scene.associations)
    auditor = Auditor(world, books, policy) if scene.is_checked else None
    world.on_admit = books.arrived

    def watch(plan: Plan, ended: Sequence[Job]) -> None:
        for job in ended:
            books.ended(job, world.now_ns)
        if auditor:
            auditor.check(plan, ended)
        if on_finish and ended:
            on_finish(books.finished)

    loop: Loop | Rounds
    if scene.is_in_rounds:
        loop = Rounds(world, policy, scene.specs, watch)
    else:
        loop = Loop(world, policy, scene.specs, watch, scene.faults)
    loop.run()
    counts = dict(world.counts)
    counts["packs_kept"] = counts["packs_tried"] - counts["packs_undone"]
    counts.update(getattr(policy, "counts", {}))
    if auditor:
        auditor.close()
    of_users: Mapping[str, OfUser] = getattr(policy, "of_users", dict)()
    traded = ({user: getattr(told, name) for user, told in of_users.items()} for name in TRADED)
    return Outcome(
        policy.name, books, _isolated(scene), counts, loop.events, time.perf_counter() - began_s, _peak_mib(),
        *traded,
    )  # fmt: skip


def _isolated(scene: Scene) -> dict[int, float]:
    truth = scene.truth
    widest: dict[str, int] = {}
    for host in scene.cluster.hosts:
        widest[host.gpu_type] = max(len(host.gpus), widest.get(host.gpu_type, 0))

    def speed_of(spec: Spec, gpu_type: str) -> float:
        if spec.gpu_types and gpu_type not in spec.gpu_types:
            return 0.0
        return truth.alone(spec, spec.size, gpu_type, spec.size <= widest[gpu_type])

    return isolated_jct_s(scene.specs, scene.cluster, speed_of, lambda spec: truth.work(spec) / RATE / 10**9)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
