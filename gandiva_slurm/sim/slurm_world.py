"""What the daemons make of a policy's plans: the controller's engine, by a small Slurm, as a policy itself.

`SlurmWorld` shows jobs and nodes to engine.Engine as gandivactld does, does what the engine asks for, and has
its `Nodes` obey. The engine looks when something happens, a moment after it did something itself, and when
the policy wants to be asked; nothing takes time but what the simulator charges for starting elsewhere and for
changing hands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.invariants import no_job_is_lost, violations
from gandiva_slurm.engine.lifecycle.moving import ANEW
from gandiva_slurm.engine.state.records import EngineSettings, Placement
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Action, HoldAgain, Note, Requeue, Start
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.model.snapshot import Association, JobOptions, SlurmJob, SlurmNode
from gandiva_slurm.policy.port import Cluster, JobView, OfUser, Plan, Policy, PolicySettings, View
from gandiva_slurm.sim.slurm_nodes import Nodes

_S = 10**9
#: Zero of the simulator's time, for an engine to which 0 means never.
EPOCH_NS = 10**9 * _S
#: After it did something the controller looks again so soon (controller.loop.SHORT_REST_S).
REST_NS = _S // 5
ACCOUNT, PARTITION = "sim", "gandiva"
#: Slots of a GPU, as in gandiva.yaml.
SLOTS = 4
#: Nothing but GPUs is scarce.
_PLENTY = 10**9
_LEAST_RATE = 1e-9
_AMPLE_BYTES = 1 << 50

Handle = Callable[[Engine, Sequence[ev.Event], int], list[Action]]


class SlurmWorld:
    """A policy's plans, carried out by the engine of the daemons."""

    def __init__(
        self,
        settings: PolicySettings,
        policy: Policy,
        slots_per_gpu: int = SLOTS,
        start_ns: int = 0,
        slurm_ns: int = 0,
    ) -> None:
        """`policy`: what decides; `slots_per_gpu`: as in gandiva.yaml.

        `start_ns`: what a job that was started holds its GPUs before it can be parked, or save itself for the
        first time; `slurm_ns`: from the engine's start of a job until Slurm runs it.
        """
        told = EngineSettings(settings.quantum_ns, slots_per_gpu)
        self.engine = Engine(told, Leader(lambda: policy))
        self._policy = policy
        self.name = policy.name
        #: how the engine is called; whoever records it puts himself here
        self.handle: Handle = Engine.handle
        self._settings = settings
        self._start_ns, self._slurm_ns = start_ns, slurm_ns
        #: jobs that Slurm is about to run, by its ids: when, and on which nodes
        self._coming: dict[int, tuple[int, tuple[str, ...]]] = {}
        self._nodes: Nodes | None = None
        #: Slurm's own table, by its job ids: those of the simulator and one
        self._jobs: dict[int, SlurmJob] = {}
        #: the restart count of each, as the engine was shown it last
        self._shown: dict[int, int] = {}
        self._users: set[str] = set()
        self._vcs: set[str] = set()
        #: nodes that are down, as the engine was told; None: it has been told of none yet
        self._down: frozenset[str] | None = None
        self._types: dict[str, str] = {}
        #: by node and job: what a report was made of, and it
        self._made: dict[tuple[str, JobKey], tuple[tuple[object, ...], ev.ResidentSeen]] = {}
        self._outcomes: list[ev.Event] = []
        self._told: dict[tuple[str, JobKey], ev.ResidentSeen] = {}
        self._notes: dict[int, str] = {}

    def decide(self, view: View) -> Plan:
        """Hear what happened, have the policy decide, and carry that out."""
        nodes = self._nodes_of(view.cluster)
        self._deal(view)
        nodes.charge(view.now_ns)
        events = [*self._news(view), *self._reports(view, nodes), ev.CycleTick()]
        actions = self.handle(self.engine, events, EPOCH_NS + view.now_ns)
        self._shown = {job.job_id: job.restart for job in self._jobs.values()}
        self._outcomes = [event for action in actions for event in self._obey(action, view.now_ns)]
        nodes.follow({host.name: self._running(host.name) for host in view.cluster.hosts})
        was_left = set(nodes.left)
        nodes.obey(self._start_ns)
        wake_ns = self._wake(view, nodes.left != was_left)
        return Plan(self._runs(view, nodes), wake_ns, dict(self._notes), homeless=self._homeless())

    @property
    def counts(self) -> Mapping[str, int]:
        """What that policy counts, for the simulator's JSON."""
        return getattr(self._policy, "counts", {})

    def of_users(self) -> Mapping[str, OfUser]:
        """What that policy tells of users."""
        return self.engine.decider.of_users()

    def _deal(self, view: View) -> None:
        """Once a job has named a virtual cluster: equal parts of each type, one for those who name none."""
        new = {job.vc for job in view.jobs.values() if job.vc} - self._vcs
        if new:
            self._vcs |= new
            gpus = Counter(host.gpu_type for host in view.cluster.hosts for _ in host.gpus)
            part = {kind: count // (len(self._vcs) + 1) for kind, count in gpus.items()}
            equal = dict.fromkeys(sorted(self._vcs), part)
            self.engine.settings = replace(self.engine.settings, virtual_clusters=equal)

    def _homeless(self) -> frozenset[int]:
        """Jobs that were started once and live nowhere now."""
        return frozenset(job.job_id - 1 for job in self._jobs.values() if job.restart and not job.nodes)

    def violations(self) -> list[str]:
        """What is wrong with the engine; called by --check-invariants."""
        return violations(self.engine) + no_job_is_lost(self.engine.state, self._shown)

    # Slurm

    def _nodes_of(self, cluster: Cluster) -> Nodes:
        if self._nodes is None:
            self._nodes, self._types = Nodes(), {host.name: host.gpu_type for host in cluster.hosts}
            self.engine.settings = replace(self.engine.settings, cells=_cells_of(cluster))
        return self._nodes

    def _news(self, view: View) -> Iterator[ev.Event]:
        """What Slurm shows that it did not show before."""
        yield from self._outcomes
        yield from self._started(view.now_ns)
        users = {job.user for job in view.jobs.values()}
        if not users <= self._users:
            self._users |= users
            yield ev.SharesSeen(self._tree())
        yield from self._news_of_nodes(view)
        for job_id in [job_id for job_id in self._jobs if job_id - 1 not in view.jobs]:
            del self._jobs[job_id]
            self._coming.pop(job_id, None)
            self._notes.pop(job_id - 1, None)
            yield ev.JobGone(job_id, "COMPLETED", (EPOCH_NS + view.now_ns) // _S, "0:0")
        for view_id, job in view.jobs.items():
            known = self._jobs.get(view_id + 1)
            if known is None or known.options is None or known.options.priority != job.priority:
                now = self._slurm_job(job, view.cluster)
                yield self._see(now if known is None else replace(known, options=now.options))

    def _started(self, now_ns: int) -> Iterator[ev.Event]:
        """Jobs that Slurm has begun to run by now."""
        start_s = (EPOCH_NS + now_ns) // _S
        for job_id in [job_id for job_id, (at_ns, _) in self._coming.items() if at_ns <= now_ns]:
            _, nodes = self._coming.pop(job_id)
            job = self._jobs[job_id]
            yield self._see(replace(job, state="RUNNING", reason="None", nodes=nodes, start_s=start_s))

    def _news_of_nodes(self, view: View) -> Iterator[ev.Event]:
        hosts = view.cluster.hosts
        down = frozenset(host.name for host in hosts if not view.down.isdisjoint(host.gpus))
        slots = self.engine.settings.slots_per_gpu
        for host in hosts:
            if self._down is None or (host.name in down) != (host.name in self._down):
                state = frozenset({"DOWN" if host.name in down else "IDLE"})
                count = len(host.gpus) * slots
                yield ev.NodeSeen(
                    SlurmNode(
                        host.name, state, host.gpu_type, count, 0, _PLENTY, _PLENTY, partitions=(PARTITION,)
                    )
                )
        self._down = down
        for job in [*self._jobs.values()]:
            if not down.isdisjoint(job.nodes):
                yield self._see(requeued(job))

    def _obey(self, action: Action, now_ns: int) -> Iterator[ev.Event]:
        if isinstance(action, Note):
            self._notes[action.key.job_id - 1] = action.text
            return
        yield ev.ActionDone(action.action_id)
        job = self._jobs.get(action.key.job_id)
        if job is None or job.restart != action.key.restart:
            return
        if isinstance(action, Start):
            self._notes.pop(job.job_id - 1, None)
            self._coming[job.job_id] = (now_ns + self._slurm_ns, action.nodes)
            yield from self._started(now_ns)
        elif isinstance(action, HoldAgain):
            self._coming.pop(job.job_id, None)
            yield self._see(replace(job, priority=0))
        elif isinstance(action, Requeue) and job.state == "RUNNING":
            yield self._see(requeued(job))

    def _slurm_job(self, job: JobView, cluster: Cluster) -> SlurmJob:
        """A job as the submission filter leaves it: held.

        Of a job without a model no speeds are known; it is never packed.
        """
        nodes, may_pack = _nodes_for(job, cluster), job.can_pack and bool(job.model)
        elastic = f"{job.min_size}-{job.max_size}" if job.min_size < job.max_size else ""
        options = JobOptions(
            job.tickets, job.priority, job.job_class, job.vc, job.gpu_types,
            pack="auto" if may_pack else "never", migrate="auto" if job.can_migrate else "never",
            gpus=job.size, nodes=nodes, elastic=elastic, cell=job.cell or "any",
        )  # fmt: skip
        account, name = job.account or ACCOUNT, job.model or f"job{job.job_id}"
        return SlurmJob(
            job.job_id + 1, job.user, 1000, account, PARTITION, "PENDING", "JobHeldAdmin", name,
            node_count=nodes, cpus=job.size, submit_s=(EPOCH_NS + job.submit_ns) // _S, options=options,
            time_limit_s=-(-(job.length_ns or 0) // _S), model=job.model,
        )  # fmt: skip

    def _see(self, job: SlurmJob) -> ev.JobSeen:
        self._jobs[job.job_id] = job
        return ev.JobSeen(job)

    def _tree(self) -> tuple[Association, ...]:
        if self._settings.associations:
            return self._settings.associations
        tickets = self._settings.tickets
        users = [Association(ACCOUNT, user, "", tickets.get(user, 1)) for user in sorted(self._users)]
        return (Association("root", "", "", 1), Association(ACCOUNT, "", "root", 1), *users)

    # the nodes

    def _running(self, node: str) -> tuple[Placement, ...]:
        """The node's plan, as far as Slurm runs it: a job that is to start does so at once."""
        return tuple(place for place in self.engine.plan_jobs(node) if self._is_running(place.key))

    def _is_running(self, key: JobKey) -> bool:
        job = self._jobs.get(key.job_id)
        return job is not None and job.restart == key.restart and job.state == "RUNNING"

    def _reports(self, view: View, nodes: Nodes) -> Iterator[ev.Event]:
        """What the nodes say that they did not say before, and each time who has left."""
        alive = [item for item in nodes.placements() if self._is_running(item[1].key)]
        told = {(node, place.key): self._resident(view, nodes, node, place) for node, place in alive}
        for where, seen in told.items():
            before = self._told.get(where)
            if seen.has_left or (before is not seen and before != seen):
                yield seen
        for node, key in [where for where in self._told if where not in told]:
            yield ev.ResidentGone(node, key)
        self._told = told
        self._made = {where: self._made[where] for where in told}
        held: dict[str, list[tuple[JobKey, int]]] = {}
        for node, place in alive:
            held_ns = nodes.held_ns.get(place.key, 0) * len(place.gpus)
            held.setdefault(node, []).append((place.key, held_ns))
        for node, rows in held.items():
            yield ev.HeldTold(node, tuple(rows))

    def _resident(self, view: View, nodes: Nodes, node: str, place: Placement) -> ev.ResidentSeen:
        key, job = place.key, view.jobs[place.key.job_id - 1]
        is_on, has_run = key in nodes.on, nodes.held_ns.get(key, 0) > 0
        state, reason = (states.RUNNING, "") if is_on else (states.SUSPENDED, "Parked" if has_run else "")
        gpu_type = self._types[node]
        mate = view.jobs.get(place.mate - 1)
        gpus = sum(len(part) for _, part in place.span) or len(place.gpus)
        alone = view.rates.alone(job.model, gpus, gpu_type, not place.span) if has_run else None
        pair = view.rates.packed(job.model, mate.model, gpu_type) if mate and has_run else None
        # It is restored, and can save itself again, once it has held its GPUs for so long.
        restore_ns = self._settings.restart_ns if key.restart else self._start_ns
        has_come = has_run and nodes.held_ns[key] >= restore_ns
        is_untouched = not has_run and not is_on and not place.span
        is_movable = (job.can_migrate and has_come) or is_untouched
        made_of = (is_on, has_run, is_movable, alone, pair, place.mate, place.gpus, key in nodes.left)
        known = self._made.get((node, key))
        if known is not None and known[0] == made_of:
            return known[1]
        measured = Measured(
            is_movable=is_movable,
            framework=ANEW if is_untouched else "",
            is_elastic=True,
            rate_alone=alone or 0.0,
            # Measured as nothing (they do not fit) is not the same as not measured.
            rate_packed=max(pair[0], _LEAST_RATE) if pair else 0.0,
            mate=place.mate,
            # Whether two fit into a GPU's memory is in the rates.
            card_bytes=_AMPLE_BYTES,
            peak_bytes=1,
        )
        # The engine looks once a quantum, too seldom to measure what a move costs.
        move_ns = self._settings.restart_ns if key.restart else -1
        seen = ev.ResidentSeen(
            node, key, state, place.gpus, reason, "", 0, key in nodes.left, measured, move_ns=move_ns
        )
        self._made[node, key] = (made_of, seen)
        return seen

    def _runs(self, view: View, nodes: Nodes) -> dict[int, tuple[int, ...]]:
        first = {host.name: host.gpus[0] for host in view.cluster.hosts}
        return {
            key.job_id - 1: tuple(sorted(first[node] + gpu for node, gpus in places for gpu in gpus))
            for key, places in sorted(nodes.runs().items())
        }

    def _wake(self, view: View, has_left: bool) -> int | None:
        """When the engine, or its policy, waits for something."""
        if not view.jobs:
            return None
        now_ns = EPOCH_NS + view.now_ns
        waits = [record.retry_ns for record in self.engine.jobs.values() if record.state in states.WAITING]
        times = [at_ns for at_ns in waits if at_ns > now_ns]
        if self._outcomes or has_left:
            times.append(now_ns + REST_NS)
        times += [max(EPOCH_NS + at_ns, now_ns + REST_NS) for at_ns, _ in self._coming.values()]
        if self._nodes is not None and self._nodes.loaded_ns is not None:
            times.append(now_ns + self._nodes.loaded_ns)
        times += [at_ns for at_ns in (self.engine.decider.wake_ns,) if at_ns > now_ns]
        return min((at_ns - EPOCH_NS for at_ns in times), default=None)


def _cells_of(cluster: Cluster) -> dict[str, dict[str, int]]:
    """The first node of each type tells how many GPUs its switches and sockets have."""
    found: dict[str, dict[str, int]] = {}
    for host in cluster.hosts if cluster.has_parts else ():
        lines = [cluster.lines[gpu][:2] for gpu in host.gpus]
        parts = (sum(line[level] == lines[0][level] for line in lines) for level in (0, 1))
        found.setdefault(host.gpu_type, dict(zip(("switch", "socket"), parts, strict=True)))
    return found


def _nodes_for(job: JobView, cluster: Cluster) -> int:
    """On how few nodes of one type it fits, the same number of GPUs on each; 1 when on none."""
    if job.nodes:
        return job.nodes
    for count in range(1, job.size + 1):
        wide = [host.gpu_type for host in cluster.hosts if len(host.gpus) * count >= job.size]
        is_there = any(job.accepts(kind) and wide.count(kind) >= count for kind in set(wide))
        if job.size % count == 0 and is_there:
            return count
    return 1


def requeued(job: SlurmJob) -> SlurmJob:
    """Slurm shows it held: it was held while it ran (ADR 0003)."""
    return replace(
        job, state="PENDING", reason="JobHeldAdmin", restart=job.restart + 1, nodes=(), start_s=0
    )
