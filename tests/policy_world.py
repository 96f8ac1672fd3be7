"""A tiny world for policies: constant rates, no costs, exact time. Checks every plan; keeps what happened.

For tests of one policy's rules; the simulator proper has costs, noise and workloads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.policy.port import (
    GUARANTEED,
    OPPORTUNISTIC,
    Cluster,
    JobView,
    Plan,
    Policy,
    PolicySettings,
    View,
)
from tests.slow import DRAWN, drawn

S = 10**9
SETTINGS = PolicySettings(quantum_ns=60 * S)

Shape = tuple[tuple[str, int], ...]


class FixedRates:
    """Rates from tables; alone 1 where nothing is said, packed as `packed_default` says."""

    def __init__(
        self,
        alone: Mapping[tuple[str, int, str], float] | None = None,
        packed: Mapping[tuple[str, str], tuple[float, float]] | None = None,
        packed_default: tuple[float, float] | None = (0.0, 0.0),
    ) -> None:
        self._alone, self._packed, self._packed_default = alone or {}, packed or {}, packed_default

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return self._alone.get((model, size, gpu_type), 1.0)

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        if (other, model) in self._packed:
            mine, theirs = self._packed[other, model]
            return theirs, mine
        return self._packed.get((model, other), self._packed_default)


def a_job(job_id: int, size: int = 1, at_s: int = 0, length_s: int | None = 100, **more: object) -> JobView:
    """Make a job; its user is `u` unless told."""
    length_ns = None if length_s is None else length_s * S
    more = {"user": "u", **more}
    return JobView(job_id, size=size, submit_ns=at_s * S, length_ns=length_ns, **more)  # type: ignore[arg-type]


def a_view(
    shape: Shape,
    jobs: Iterable[JobView],
    at_s: int = 0,
    rates: FixedRates | None = None,
    down: tuple[int, ...] = (),
) -> View:
    """Make a picture."""
    live = {job.job_id: job for job in sorted(jobs, key=lambda job: job.order)}
    return View(at_s * S, Cluster(shape), live, rates or FixedRates(), frozenset(down))


def running(job: JobView, gpus: tuple[int, ...], ran_s: int = 0, since_s: int = 0) -> JobView:
    """Let a job run on GPUs."""
    job.gpus, job.is_running, job.ran_ns, job.first_run_ns = gpus, True, ran_s * S, since_s * S
    return job


def check_plan(view: View, plan: Plan) -> None:
    """Whatever the policy: gangs whole, of one accepted type, on GPUs that are up, shared by pairs only."""
    owners: dict[int, list[int]] = {}
    for job_id, gpus in plan.runs.items():
        job = view.jobs[job_id]
        least, most = job.min_size or job.size, max(job.max_size, job.min_size) or job.size
        assert list(gpus) == sorted(set(gpus)), (job_id, gpus)
        assert least <= len(gpus) <= most, (job_id, gpus)
        assert view.down.isdisjoint(gpus), (job_id, gpus)
        types = {view.cluster.type_of[gpu] for gpu in gpus}
        assert len(types) == 1 and job.accepts(types.pop()), (job_id, gpus)
        assert job.can_migrate or not job.gpus or gpus == job.gpus, (job_id, gpus)
        for gpu in gpus:
            owners.setdefault(gpu, []).append(job_id)
    for gpu, jobs in owners.items():
        assert len(jobs) <= 2, (gpu, jobs)
        if len(jobs) == 2:
            assert all(view.jobs[job_id].can_pack for job_id in jobs), (gpu, jobs)
            assert plan.runs[jobs[0]] == plan.runs[jobs[1]], (gpu, jobs)
    assert plan.wake_ns is None or plan.wake_ns > view.now_ns


def idle_gpus(view: View, plan: Plan) -> set[int]:
    """GPUs that are up and unused by a plan."""
    return set(range(view.cluster.size)) - view.down - {gpu for gpus in plan.runs.values() for gpu in gpus}


def could_start(view: View, plan: Plan, is_elastic: bool = False) -> list[int]:
    """Jobs that wait though GPUs for them, at their least, are idle: none in a work-conserving plan."""
    idle = idle_gpus(view, plan)
    counts: dict[str, int] = {}
    for gpu in idle:
        counts[view.cluster.type_of[gpu]] = counts.get(view.cluster.type_of[gpu], 0) + 1
    return [
        job.job_id
        for job in view.jobs.values()
        if job.job_id not in plan.runs
        and (job.can_migrate or not job.gpus)
        and any(
            job.accepts(name) and count >= ((is_elastic and job.min_size) or job.size)
            for name, count in counts.items()
        )
    ]


@dataclass
class Moment:
    """What was asked and answered at one time; jobs as they were then."""

    view: View
    plan: Plan


@dataclass
class PolicyWorld:
    """Runs jobs of known length under a policy, from one thing that happens to the next."""

    shape: Shape
    policy: Policy
    rates: FixedRates = field(default_factory=FixedRates)
    #: (from_s, until_s, GPUs) out of order
    outages: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    check: Callable[[View, Plan], None] | None = None
    tells_lengths: bool = True

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.shape)
        self.now_ns = 0
        self.moments: list[Moment] = []
        self.ends_ns: dict[int, int] = {}
        self.starts_ns: dict[int, int] = {}
        self._coming: list[JobView] = []
        self._live: dict[int, JobView] = {}
        self._work: dict[int, Fraction] = {}
        self._length: dict[int, int] = {}
        self._plan = Plan({})

    def run(self, jobs: Iterable[JobView], most_questions: int = 2000) -> PolicyWorld:
        """Run until nothing more can happen."""
        self._coming = sorted(copy.deepcopy(list(jobs)), key=lambda job: job.order)
        for job in self._coming:
            assert job.length_ns is not None
            self._length[job.job_id] = job.length_ns
            self._work[job.job_id] = Fraction(job.length_ns)
            job.length_ns = job.length_ns if self.tells_lengths else None
        while (at_ns := self._next_ns()) is not None:
            assert len(self.moments) < most_questions, "the policy asks to be woken without end"
            self._advance(at_ns)
            self._ask()
        return self

    def jct_s(self, job: JobView) -> float:
        """Seconds from submission to end."""
        return (self.ends_ns[job.job_id] - job.submit_ns) / S

    def down(self) -> frozenset[int]:
        """GPUs that are out of order now."""
        return frozenset(
            gpu for since, until, gpus in self.outages if since * S <= self.now_ns < until * S for gpu in gpus
        )

    def _next_ns(self) -> int | None:
        times = [job.submit_ns for job in self._coming[:1]]
        for job_id in self._plan.runs:
            times.append(self.now_ns - int(-self._work[job_id] // self._speed(job_id)))
        if self._live or self._coming:
            times += [t * S for outage in self.outages for t in outage[:2] if t * S > self.now_ns]
        if self._live and self._plan.wake_ns is not None:
            times.append(self._plan.wake_ns)
        return min(times, default=None)

    def _speed(self, job_id: int) -> Fraction:
        """Work a wall second, 1 at the size asked for, alone."""
        job, gpus = self._live[job_id], self._plan.runs[job_id]
        gpu_type = self.cluster.type_of[gpus[0]]
        asked = Fraction(self.rates.alone(job.model, job.size, gpu_type) or 1)
        mate = next(
            (other for other, held in self._plan.runs.items() if held == gpus and other != job_id), None
        )
        if mate is not None:
            pair = self.rates.packed(job.model, self._live[mate].model, gpu_type) or (0.5, 0.5)
            return max(Fraction(pair[0]), Fraction(1, 100)) / asked
        return Fraction(self.rates.alone(job.model, len(gpus), gpu_type) or 1) / asked

    def _advance(self, at_ns: int) -> None:
        passed = at_ns - self.now_ns
        for job_id in self._plan.runs:
            job = self._live[job_id]
            self._work[job_id] -= passed * self._speed(job_id)
            job.ran_ns += passed
            sharers = sum(gpus == job.gpus for gpus in self._plan.runs.values())
            job.held_ns += passed * len(job.gpus) // sharers
            job.left_ns = int(self._work[job_id]) if self.tells_lengths else None
            job.progress = float(1 - self._work[job_id] / max(1, self._length[job_id]))
        self.now_ns = at_ns
        for job_id in [job_id for job_id in self._plan.runs if self._work[job_id] <= 0]:
            del self._live[job_id]
            self.ends_ns[job_id] = at_ns
        while self._coming and self._coming[0].submit_ns <= at_ns:
            job = self._coming.pop(0)
            self._live[job.job_id] = job

    def _ask(self) -> None:
        down = self.down()
        for job in self._live.values():
            if not down.isdisjoint(job.gpus):
                job.gpus, job.is_running = (), False
        view = View(self.now_ns, self.cluster, dict(self._live), self.rates, down)
        before = copy.deepcopy(view.jobs)
        self._plan = self.policy.decide(view)
        assert view.jobs == before, "a policy only reads"
        view.jobs = before
        check_plan(view, self._plan)
        if self.check is not None:
            self.check(view, self._plan)
        self.moments.append(Moment(view, copy.deepcopy(self._plan)))
        for job_id, job in self._live.items():
            job.is_running = job_id in self._plan.runs
            if job.is_running:
                gpus = self._plan.runs[job_id]
                job.migrations += bool(job.gpus) and gpus != job.gpus
                job.gpus = gpus
                job.first_run_ns = self.now_ns if job.first_run_ns is None else job.first_run_ns
                self.starts_ns.setdefault(job_id, self.now_ns)


@dataclass(frozen=True)
class Case:
    """A cluster, what arrives, and what breaks."""

    shape: Shape
    jobs: tuple[JobView, ...]
    rates: FixedRates
    outages: tuple[tuple[int, int, tuple[int, ...]], ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any small cluster with any few jobs; each job fits, so each has to end."""
    shape = tuple(
        draw(
            st.lists(
                st.tuples(st.sampled_from(("fast", "slow")), st.sampled_from((2, 4))), min_size=1, max_size=4
            )
        )
    )
    cluster = Cluster(shape)
    jobs = tuple(_any_job(draw, job_id, cluster) for job_id in range(1, draw(st.integers(1, 10)) + 1))
    pairs = st.sampled_from(((1.0, 1.0), (0.97, 0.6), (0.6, 0.9), (0.0, 0.0)))
    packed = {
        ("a", "a"): (0.8, 0.8),
        ("a", "b"): draw(pairs),
        ("b", "b"): draw(st.sampled_from(((1.0, 1.0), (0.0, 0.0)))),
    }
    outages = []
    if draw(st.booleans()):
        since = draw(st.integers(0, 400))
        host = draw(st.sampled_from(cluster.hosts))
        outages.append((since, since + draw(st.integers(1, 300)), host.gpus))
    unseen = draw(st.sampled_from((None, (0.0, 0.0))))
    return Case(shape, jobs, FixedRates(packed=packed, packed_default=unseen), tuple(outages))


def _any_job(draw: st.DrawFn, job_id: int, cluster: Cluster) -> JobView:
    gpu_type = draw(st.sampled_from(list(cluster.counts)))
    size = draw(st.sampled_from([n for n in (1, 1, 2, 3, 4, 6) if n <= cluster.counts[gpu_type]]))
    elastic = {}
    if draw(st.integers(0, 3)) == 0:
        elastic = {"min_size": draw(st.integers(1, size)), "max_size": size + draw(st.integers(0, 3))}
    return a_job(
        job_id,
        size,
        at_s=draw(st.sampled_from((0, 0, 10, 60, 250))),
        length_s=draw(st.sampled_from((1, 30, 300, 2000))),
        user=draw(st.sampled_from(("u", "v", "w"))),
        vc=draw(st.sampled_from(("", "", "x"))),
        model=draw(st.sampled_from(("a", "b"))),
        job_class=draw(st.sampled_from((GUARANTEED, OPPORTUNISTIC))),
        gpu_types=draw(st.sampled_from(((), (), (gpu_type,)))),
        can_pack=draw(st.booleans()),
        can_migrate=draw(st.sampled_from((True, True, False))),
        **elastic,
    )


def on_cases(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a test so many cases."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        marked: Callable[..., None] = DRAWN(settings(max_examples=drawn(examples))(given(case=cases())(test)))
        return marked

    return decorate


def check_on(
    case: Case, make: Callable[[PolicySettings], Policy], check: Callable[[View, Plan], None] | None = None
) -> PolicyWorld:
    """Run a case twice: every plan legal, both runs the same, every job ends."""
    first, second = (
        PolicyWorld(case.shape, make(SETTINGS), case.rates, case.outages, check).run(case.jobs)
        for _ in range(2)
    )
    assert [moment.plan for moment in first.moments] == [moment.plan for moment in second.moments]
    assert set(first.ends_ns) == {job.job_id for job in case.jobs}
    return first


def conserving(view: View, plan: Plan) -> None:
    """Let no job wait while GPUs for it are idle."""
    assert could_start(view, plan) == []


def conserving_with_homes(view: View, plan: Plan) -> None:
    """The same, but a job that cannot be saved may wait a round for the GPUs that it is to keep."""
    assert [job_id for job_id in could_start(view, plan) if view.jobs[job_id].can_migrate] == []


def conserving_elastic(view: View, plan: Plan) -> None:
    """Let no job wait while the GPUs it needs at least are idle."""
    assert could_start(view, plan, is_elastic=True) == []
