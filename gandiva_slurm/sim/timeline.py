"""Who held which GPUs from when to when: what drawings are made of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from gandiva_slurm.sim.job import Job

#: Events after which a job is on GPUs it was not on before, and after which it is on none.
_COMES = frozenset(("start", "resume", "migrate", "grow", "shrink", "restart"))
_GOES = frozenset(("suspend", "finish", "fail"))


class Span(NamedTuple):
    """A job on its GPUs."""

    name: str
    user: str
    gpus: tuple[int, ...]
    start_ns: int
    end_ns: int


class Timeline:
    """Listens to a simulation as `outcome.EventLines` does, and keeps spans instead of lines."""

    def __init__(self) -> None:
        self.clock: Any = None
        self.spans: list[Span] = []
        self._open: dict[int, tuple[tuple[int, ...], int]] = {}

    def tell(self, event: str, job: Job | None, gpus: tuple[int, ...]) -> None:
        """Take note of what happened."""
        if job is None or event not in _COMES | _GOES:
            return
        now_ns = self.clock.now_ns
        if job.job_id in self._open:
            held, since_ns = self._open.pop(job.job_id)
            if now_ns > since_ns:
                self.spans.append(Span(job.spec.name, job.user, held, since_ns, now_ns))
        if event in _COMES:
            self._open[job.job_id] = (gpus, now_ns)

    def shares(self, step_ns: int) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield, for each step of time, its end and the GPUs each user held in the mean.

        Whoever shares a GPU holds half of it.
        """
        end_ns = max((span.end_ns for span in self.spans), default=0)
        steps = -(-end_ns // step_ns)
        held: list[dict[str, float]] = [{} for _ in range(steps)]
        for span, parts in self._with_parts():
            for step in range(span.start_ns // step_ns, -(-span.end_ns // step_ns)):
                inside = min(span.end_ns, (step + 1) * step_ns) - max(span.start_ns, step * step_ns)
                held[step][span.user] = held[step].get(span.user, 0.0) + parts * inside / step_ns
        for step, users in enumerate(held):
            yield (step + 1) * step_ns, users

    def _with_parts(self) -> Iterator[tuple[Span, float]]:
        """Cut spans where a second job came or went on the same GPUs; yield each with the GPUs it held."""
        by_gpus: dict[tuple[int, ...], list[Span]] = {}
        for span in self.spans:
            by_gpus.setdefault(span.gpus, []).append(span)
        for gpus, spans in by_gpus.items():
            marks = sorted({at for span in spans for at in (span.start_ns, span.end_ns)})
            spans.sort(key=lambda span: span.start_ns)
            live: list[Span] = []
            coming = iter(spans)
            following = next(coming, None)
            for start_ns, end_ns in itertools.pairwise(marks):
                live = [span for span in live if span.end_ns > start_ns]
                while following is not None and following.start_ns <= start_ns:
                    live.append(following)
                    following = next(coming, None)
                for span in live:
                    yield span._replace(start_ns=start_ns, end_ns=end_ns), len(gpus) / len(live)
