"""AntMan: guaranteed jobs within quotas, opportunistic ones on what is left (OSDI 2020).

A guaranteed job within its virtual cluster's quota gets GPUs that no other guaranteed job holds, idle ones
first. When they are too few, those that exist are reserved for it and serve opportunistic jobs meanwhile. A
guaranteed job that has waited long over quota runs as an opportunistic one until quota frees; then it is
promoted, where it is if nobody guaranteed shares its GPUs. Opportunistic jobs fill idle GPUs, then share
one with a guaranteed job that keeps its rate; where it was never seen whether it does, the first pair shows
it.

Memory and compute scaling inside a GPU are the node's; here is who may be where.
"""

from __future__ import annotations

from collections.abc import Mapping

from gandiva_slurm.policy.baselines.placing import Runs, Types, held, kept
from gandiva_slurm.policy.baselines.quotas import Quotas, used_gpus, vc_of
from gandiva_slurm.policy.placement.free import FreeGpus
from gandiva_slurm.policy.port import GUARANTEED, JobView, Plan, PolicySettings, Rates, View

#: So long over quota, and a guaranteed job runs as an opportunistic one. (The paper names no time.)
CONVERT_NS = 300 * 10**9

#: What a guaranteed job must keep of its rate beside another: steps at most 5 % longer.
KEEPS = 1 / 1.05


class AntMan:
    """Two classes of jobs on one cluster."""

    name = "antman"

    def __init__(self, settings: PolicySettings, convert_ns: int = CONVERT_NS) -> None:
        self._oracle = settings.oracle
        self._quantum_ns = settings.quantum_ns
        self._quotas = Quotas(settings.tickets)
        self._convert_ns = convert_ns
        self._guaranteed: Runs = {}
        self._others: Runs = {}
        self._since: dict[int, int] = {}

    def decide(self, view: View) -> Plan:
        """Serve the guaranteed within quota, then fill with the others."""
        runs = kept(view, {**self._guaranteed, **self._others})
        safe = {job_id: gpus for job_id, gpus in runs.items() if job_id in self._guaranteed}
        others = {job_id: gpus for job_id, gpus in runs.items() if job_id not in safe}
        types = Types(view, self._oracle)
        promises = Promises(view, types, safe, others)
        promises.serve(self._quotas.of(view))
        self._since = {job.job_id: self._since.get(job.job_id, view.now_ns) for job in promises.over_quota}
        filling = Filling(view, types, self._oracle or view.rates, promises.safe)
        filling.fill(self._opportunistic(view, promises), others)
        self._guaranteed, self._others = promises.safe, filling.runs
        wake_ns = self._next_change(view.now_ns, filling.is_trying)
        notes = {**promises.notes, **filling.notes}
        return Plan({**promises.safe, **filling.runs}, wake_ns, notes)

    def _opportunistic(self, view: View, promises: Promises) -> list[JobView]:
        """Jobs of that class, guaranteed ones too long over quota, and those that run so already."""
        return [
            job
            for job_id, job in view.jobs.items()
            if job_id not in promises.safe
            and (
                job.job_class != GUARANTEED
                or job_id in self._others
                or (job_id in self._since and self._converts_at(job_id) <= view.now_ns)
            )
        ]

    def _converts_at(self, job_id: int) -> int:
        return self._since[job_id] + self._convert_ns

    def _next_change(self, now_ns: int, is_trying: bool) -> int | None:
        times = [at_ns for job_id in self._since if (at_ns := self._converts_at(job_id)) > now_ns]
        if is_trying:
            times.append(now_ns + self._quantum_ns)
        return min(times, default=None)


class Promises:
    """Guaranteed jobs: who has GPUs (`safe`), for whom some are reserved, and who is over quota."""

    def __init__(self, view: View, types: Types, safe: Runs, others: Runs) -> None:
        self._view, self._types, self._others = view, types, others
        self.safe = safe
        self.over_quota: list[JobView] = []
        self.notes: dict[int, str] = {}
        #: GPUs promised to nobody guaranteed, and those of them on which nothing runs
        self._open = FreeGpus(view.cluster, view.down.union(held(safe)))
        self._idle = FreeGpus(view.cluster, view.down.union((*held(safe), *held(others))))

    def serve(self, quotas: Mapping[str, int]) -> None:
        """Give the guaranteed jobs within quota their GPUs, in order of arrival, or reserve what there is."""
        used = used_gpus(self._view, self.safe)
        for job in self._view.jobs.values():
            if job.job_class != GUARANTEED or job.job_id in self.safe or not self._types.of(job):
                continue
            name = vc_of(job)
            if used.get(name, 0) + job.size > quotas[name] or self._is_stuck(job):
                self.over_quota.append(job)
                continue
            used[name] = used.get(name, 0) + job.size
            self._grant(job)

    def _is_stuck(self, job: JobView) -> bool:
        """It may not move, and where it is parked others are guaranteed."""
        return bool(job.gpus) and not job.can_migrate and not self._open.has(job.gpus)

    def _grant(self, job: JobView) -> None:
        types = self._types.of(job)
        mine = self._others.get(job.job_id, ())
        place: tuple[int, ...] | None
        if mine and self._open.has(mine):
            place = mine
            self._open.take(place)
            self.notes[job.job_id] = "promoted: its quota has room"
        elif (place := self._idle.place(job, types)) is not None:
            self._open.take(place)
        elif (place := self._open.place(job, types)) is not None:
            self._idle.take(gpu for gpu in place if self._idle.has((gpu,)))
        if place is None:
            self._reserve(job, types)
        else:
            self.safe[job.job_id] = place

    def _reserve(self, job: JobView, types: tuple[str, ...]) -> None:
        """Set aside what there is: nobody else guaranteed gets it, opportunistic jobs may use it."""
        gpu_type = max(types, key=self._open.left_of)
        gpus = self._open.gather(min(self._open.left_of(gpu_type), job.size), gpu_type)
        self._idle.take([gpu for gpu in gpus if self._idle.has((gpu,))])
        self.notes[job.job_id] = f"{len(gpus)} of {job.size} {gpu_type} are reserved for it"


class Filling:
    """Opportunistic jobs on what the guaranteed ones leave, and beside them."""

    def __init__(self, view: View, types: Types, rates: Rates, safe: Runs) -> None:
        self._view, self._types, self._rates = view, types, rates
        self.runs: Runs = {}
        self.notes: dict[int, str] = {}
        self.is_trying = False
        self._free = FreeGpus(view.cluster, view.down.union(held(safe)))
        self._unfit: set[tuple[str, tuple[str, ...]]] = set()
        #: GPUs beside whose guaranteed job there is room for another: by that one's model and the GPU type
        self._beside: dict[tuple[str, str], list[int]] = {}
        for job_id, gpus in safe.items():
            if len(gpus) == 1 and view.jobs[job_id].can_pack:
                key = (view.jobs[job_id].model, view.cluster.type_of[gpus[0]])
                self._beside.setdefault(key, []).append(gpus[0])
        self._owner = {gpu: key for key, gpus in self._beside.items() for gpu in gpus}

    def fill(self, jobs: list[JobView], running: Runs) -> None:
        """Let those stay who can, then start others in order of arrival."""
        for job in jobs:
            if job.job_id in running:
                self._stay(job, running[job.job_id])
        for job in jobs:
            if not self._free.left and not self._beside:
                break
            if job.job_id not in self.runs:
                self._start(job)

    def _stay(self, job: JobView, gpus: tuple[int, ...]) -> None:
        if self._free.has(gpus):
            self._free.take(gpus)
            self.runs[job.job_id] = gpus
            return
        key = self._owner.get(gpus[0]) if len(gpus) == 1 and job.can_pack else None
        if key is not None and gpus[0] in self._beside.get(key, ()) and self._keeps(key, job) is not None:
            self._pack(job, key, gpus[0])
        else:
            self.notes[job.job_id] = "parked: a guaranteed job needs its GPUs"

    def _start(self, job: JobView) -> None:
        types = self._types.of(job)
        place = self._free.place(job, types)
        if place is not None:
            self.runs[job.job_id] = place
            return
        shape = (job.model, types)
        is_fixed = bool(job.gpus) and not job.can_migrate
        if job.size != 1 or not job.can_pack or is_fixed or shape in self._unfit:
            return
        best = max(
            (
                (kept_rate, -self._beside[key][0], key)
                for key in self._beside
                if key[1] in types and (kept_rate := self._keeps(key, job)) is not None
            ),
            default=None,
        )
        if best is None:
            self._unfit.add(shape)
        else:
            self._pack(job, best[2], -best[1])

    def _pack(self, job: JobView, key: tuple[str, str], gpu: int) -> None:
        self.runs[job.job_id] = (gpu,)
        self._beside[key].remove(gpu)
        if not self._beside[key]:
            del self._beside[key]
        self.is_trying |= self._rates.packed(key[0], job.model, key[1]) is None
        self.notes.setdefault(job.job_id, "packed beside a guaranteed job, which keeps its rate")

    def _keeps(self, key: tuple[str, str], job: JobView) -> float | None:
        """Part of its rate that the guaranteed job keeps; 0.0: not seen yet; None: they may not share."""
        alone = self._rates.alone(key[0], 1, key[1])
        if not alone:
            return None
        packed = self._rates.packed(key[0], job.model, key[1])
        if packed is None:
            return 0.0
        return packed[0] / alone if packed[0] >= KEEPS * alone and packed[1] > 0 else None


def make(settings: PolicySettings) -> AntMan:
    """Make the policy."""
    return AntMan(settings)
