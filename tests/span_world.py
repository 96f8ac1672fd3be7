"""Nodes of a domain in virtual time: the central stride over them, each node's own stride around the spans.

A quantum a round, every park on time unless a job is told to be slow. What was held is counted by the nodes
as gandivad counts it, so charges go the real way; shares are counted from the holds alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gandiva_slurm.engine.invariants import no_gpu_held_twice
from gandiva_slurm.model import span as words
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import HeldTime, PartStand
from gandiva_slurm.slicing.central import CentralSettings, Domain, Verdict
from gandiva_slurm.slicing.cluster import Central
from gandiva_slurm.slicing.domains import Places, Planned
from gandiva_slurm.slicing.local import Gang, LocalStride
from tests.records import Held

QUANTUM_NS = 10**9
CLIENT_WAIT_NS = 120 * 10**9
#: How long a gang that refuses to park is borne, and the longest freeze.
REFUSAL_BOUND_NS, FREEZE_BOUND_NS = 10 * QUANTUM_NS, 30 * QUANTUM_NS


@dataclass
class Job:
    """A job in this world. `stays_until`: round before which it cannot be parked once it is on.

    A span that `refuses` never parks; `turns`: when it came on and went off, in turn, from its first time on.
    """

    plan: Planned
    is_on: bool = False
    held_ns: int = 0
    waits: int = 0
    longest_wait: int = 0
    stays_until: int = 0
    refuses: bool = False
    is_frozen: bool = False
    turns: list[int] = field(default_factory=list)


@dataclass
class SpanWorld:
    """`nodes`: how many GPUs each has."""

    nodes: Mapping[str, int]
    now_ns: int = 0
    rounds: int = 0
    silent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.central = Central(CentralSettings(QUANTUM_NS, CLIENT_WAIT_NS, REFUSAL_BOUND_NS))
        self.locals = {node: LocalStride(gpus, QUANTUM_NS) for node, gpus in self.nodes.items()}
        self.jobs: dict[JobKey, Job] = {}
        self.holds: dict[str, list[Held]] = {node: [] for node in self.nodes}
        self.ended: dict[JobKey, Job] = {}
        self._last_id = 0

    def submit(self, user: str, places: Places, tickets: int = 1000) -> JobKey:
        """A job has started on these places; `tickets` are the whole job's."""
        self._last_id += 1
        key = JobKey(self._last_id, 0)
        self.jobs[key] = Job(Planned(key, user, tickets, self._last_id, places))
        return key

    def finish(self, key: JobKey) -> None:
        """A job has ended."""
        self.ended[key] = self.jobs.pop(key)

    def share_tickets(self, each: int = 840_000) -> None:
        """Split each user's tickets over his jobs, as the plan does."""
        owners = [job.plan.user for job in self.jobs.values()]
        for job in self.jobs.values():
            job.plan = job.plan._replace(tickets=each // owners.count(job.plan.user))

    def run(self, rounds: int) -> SpanWorld:
        """Hold rounds."""
        for _ in range(rounds):
            self.share_tickets()
            self.round()
        return self

    def round(self) -> None:
        """One quantum: the controller asks and decides, the nodes choose around it, time passes."""
        self.central.follow(self.nodes, {key: job.plan for key, job in self.jobs.items()})
        decided: set[str] = set()
        for domain in self.central.domains:
            decided |= domain.nodes.keys()
            for node in domain.nodes:
                if node in self.silent:
                    domain.silence(node)
                else:
                    domain.gather(node, "boot", self._rows(node), self._parts(node), self.now_ns)
            verdicts = domain.decide({})
            # Those that come wait until those that go have gone.
            for key in sorted(verdicts, key=lambda key: verdicts[key].where != words.OUT):
                self._change_hands(domain, key, verdicts[key])
        for node in self.nodes:
            self._choose(node)
        for job in self.jobs.values():
            job.waits = 0 if job.is_on else job.waits + 1
            job.longest_wait = max(job.longest_wait, job.waits)
        self.now_ns += QUANTUM_NS
        self.rounds += 1
        self._hold()

    def _change_hands(self, domain: Domain, key: JobKey, verdict: Verdict) -> None:
        job, is_to_be_on = self.jobs[key], verdict.where in (words.IN, words.STAY)
        if job.is_on == is_to_be_on:
            return
        error = "no common boundary" if job.refuses and job.is_on and not verdict.freezes else ""
        if is_to_be_on and any(self._meet(job, other) for other in self.jobs.values()):
            error = "its GPUs were not given back"
        move = words.IN if is_to_be_on else words.FREEZE if verdict.freezes else words.OUT
        if not error:
            job.is_on, job.is_frozen = is_to_be_on, verdict.freezes
            job.turns.append(self.now_ns)
        domain.tried(key, error, {node: self._part(key, node) for node in domain.spans[key].nodes}, move)

    @staticmethod
    def _meet(job: Job, other: Job) -> bool:
        """True when the other one, a span, holds GPUs of this one."""
        mine = {(node, gpu) for node, gpus in job.plan.places for gpu in gpus}
        held = {(node, gpu) for node, gpus in other.plan.places for gpu in gpus}
        return other is not job and other.plan.is_span and other.is_on and bool(mine & held)

    def got(self, since_ns: int = 0) -> dict[str, float]:
        """GPU-quanta of each user from holds that began since then."""
        seconds: dict[str, float] = {}
        for hold in (hold for holds in self.holds.values() for hold in holds if hold.t0_ns >= since_ns):
            work = (hold.t1_ns - hold.t0_ns) * len(hold.gpus) / QUANTUM_NS
            seconds[hold.user] = seconds.get(hold.user, 0.0) + work
        return seconds

    def check(self) -> None:
        """No GPU was held twice, and spans were on everywhere or nowhere."""
        for holds in self.holds.values():
            assert no_gpu_held_twice(holds) == []
        everywhere: dict[tuple[int, int], set[str]] = {}
        for node, holds in self.holds.items():
            for hold in holds:
                everywhere.setdefault((hold.job_id, hold.t0_ns), set()).add(node)
        plans = {job.plan.key.job_id: job.plan for job in (*self.jobs.values(), *self.ended.values())}
        for (job_id, _), on in everywhere.items():
            assert on == set(plans[job_id].nodes)

    def _here(self, node: str) -> dict[JobKey, tuple[int, ...]]:
        return {
            key: gpus for key, job in self.jobs.items() for place, gpus in job.plan.places if place == node
        }

    def _rows(self, node: str) -> list[HeldTime]:
        gone = [(key, job, words.ENDED) for key, job in self.ended.items() if node in job.plan.nodes]
        here = [(key, self.jobs[key], "") for key in self._here(node)]
        rows = []
        for key, job, state in (*here, *gone):
            gpus = dict(job.plan.places)[node]
            state = state or (words.ON if job.is_on else words.OFF)
            stays = job.is_on and job.stays_until > self.rounds
            rows.append(HeldTime(*key, job.plan.user, gpus, job.held_ns, 0, state, must_stay=stays))
        return rows

    def _parts(self, node: str) -> list[PartStand]:
        return [self._part(key, node) for key in self._here(node) if self.jobs[key].plan.is_span]

    def _part(self, key: JobKey, node: str) -> PartStand:
        job = self.jobs[key]
        phase, world = words.ON if job.is_on else words.OFF, len(job.plan.places)
        rank = job.plan.nodes.index(node)
        ready = job.stays_until <= self.rounds
        left_ns = max(0, job.turns[-1] + FREEZE_BOUND_NS - self.now_ns) if job.is_frozen else -1
        return PartStand(*key, phase, world, (rank,), 9, 9, 1, 1, 1, is_parkable=ready, left_ns=left_ns)

    def _choose(self, node: str) -> None:
        """The node's own stride, spans forced in or out."""
        local, here = self.locals[node], self._here(node)
        gangs = []
        for key, gpus in here.items():
            plan = self.jobs[key].plan
            tickets = max(1, plan.tickets // len(plan.places))
            gangs.append(Gang(key, plan.user, tickets, gpus, plan.submitted_ns))
        local.set_gangs(gangs)
        forced = [key for key in here if self.jobs[key].plan.is_span and self.jobs[key].is_on]
        stays = [k for k in here if self.jobs[k].is_on and self.jobs[k].stays_until > self.rounds]
        free = [key for key in here if not self.jobs[key].plan.is_span]
        chosen = local.choose(free, {*forced, *stays}, ())
        for key in free:
            self.jobs[key].is_on = key in chosen

    def _hold(self) -> None:
        for key, job in self.jobs.items():
            if not job.is_on:
                continue
            job.held_ns += QUANTUM_NS
            for node, gpus in job.plan.places:
                hold = Held(*key, job.plan.user, gpus, self.now_ns - QUANTUM_NS, self.now_ns)
                self.holds[node].append(hold)
                self.locals[node].charge(key, QUANTUM_NS, 0)
        for local in self.locals.values():
            local.settle()
