"""How a user would fare alone: his jobs on a fluid N-th of every GPU type (the base of finish-time fairness).

With n of his jobs alive each holds c_t / (N n) GPUs of type t, in parts of its own size g, and no more than
all of its time: x_t = c_t / (N n g), scaled down where they sum to more than 1. So a job's speed depends on n
and g alone, all jobs of one size advance along one clock, and the end of each is a mark on that clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.job import Spec

#: Steps a second of a job on a GPU type, alone and on as few nodes as it can.
SpeedOf = Callable[[Spec, str], float]


def isolated_jct_s(
    specs: Sequence[Spec], cluster: Cluster, speed_of: SpeedOf, steps_of: Callable[[Spec], float]
) -> dict[int, float]:
    """Return the completion time of each job, by job; a job that can run on no type is left out."""
    by_user: dict[str, list[Spec]] = {}
    for spec in specs:
        by_user.setdefault(spec.user, []).append(spec)
    result: dict[int, float] = {}
    for own in by_user.values():
        fluid = _Fluid(cluster.counts, len(by_user), speed_of, steps_of)
        result.update(fluid.run(own))
    return result


class _Fluid:
    """One user's jobs, in order of arrival."""

    def __init__(
        self,
        counts: Mapping[str, int],
        users: int,
        speed_of: SpeedOf,
        steps_of: Callable[[Spec], float],
    ) -> None:
        self._counts, self._speed_of, self._steps_of = counts, speed_of, steps_of
        #: GPUs he has, of all types
        self._gpus = sum(counts.values()) / users
        self._mean: dict[tuple[str, int, tuple[str, ...]], float] = {}
        self._clock: dict[int, float] = {}
        #: by size: (mark on its clock, job, submitted)
        self._marks: dict[int, list[tuple[float, int, float]]] = {}
        self._alive = 0
        self._now_s = 0.0
        self.ends: dict[int, float] = {}

    def run(self, specs: Iterable[Spec]) -> dict[int, float]:
        """Let them arrive and end."""
        for spec in specs:
            self._advance(spec.submit_ns / 1e9)
            speed = self._mean_speed(spec)
            if speed > 0:
                mark = self._clock.setdefault(spec.size, 0.0) + self._steps_of(spec) / speed
                marks = self._marks.setdefault(spec.size, [])
                heapq.heappush(marks, (mark, spec.job_id, spec.submit_ns / 1e9))
                self._alive += 1
        self._advance(float("inf"))
        return self.ends

    def _mean_speed(self, spec: Spec) -> float:
        """Steps a second with all of its time, spread over the types as they are there."""
        key = (spec.model, spec.size, spec.gpu_types)
        if key not in self._mean:
            total = sum(count * self._speed_of(spec, name) for name, count in self._counts.items())
            self._mean[key] = total / sum(self._counts.values())
        return self._mean[key]

    def _part(self, size: int) -> float:
        """Part of its time that a job of this size has now."""
        return min(1.0, self._gpus / (self._alive * size))

    def _advance(self, until_s: float) -> None:
        while self._alive:
            end_s, size = min(
                (self._now_s + (marks[0][0] - self._clock[size]) / self._part(size), size)
                for size, marks in self._marks.items()
                if marks
            )
            if end_s > until_s:
                self._move(until_s)
                return
            self._move(max(end_s, self._now_s))
            mark, job_id, submit_s = heapq.heappop(self._marks[size])
            self._clock[size] = mark
            self.ends[job_id] = self._now_s - submit_s
            self._alive -= 1
        if until_s != float("inf"):
            self._now_s = max(self._now_s, until_s)

    def _move(self, to_s: float) -> None:
        for size, marks in self._marks.items():
            if marks:
                self._clock[size] += (to_s - self._now_s) * self._part(size)
        self._now_s = to_s
