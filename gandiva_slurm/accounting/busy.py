"""How busy jobs kept the GPUs they held, as NVML saw it from outside, whatever their own pages say.

A node tells how much GPU time an incarnation has held, and how busy its processes are now. The time held
since the report before counts as seen, the busy part of it as busy. It is a measure and no account: what a
gandivactld that is killed had not written yet, and what was held while none heard it, is not seen.
"""

from __future__ import annotations

from gandiva_slurm.accounting.days import NS_PER_S
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.wire.messages import NodeReport

#: So much GPU time is kept in memory for an incarnation before it is written: a write each minute, not each
#: report.
WRITTEN_NS = 60 * NS_PER_S
#: What SQLite's integers take, whatever a node tells: it must not keep that node's holds out.
_MOST_NS = 1 << 62

#: (seen, busy), GPU nanoseconds
Seen = tuple[int, int]


class Busy:
    """Sums since they were written last, by incarnation."""

    def __init__(self) -> None:
        #: GPU time held by the report before, of each node's incarnations
        self._held: dict[str, dict[JobKey, int]] = {}
        self._sums: dict[JobKey, Seen] = {}

    def due(self, report: NodeReport) -> dict[JobKey, Seen]:
        """Take in a report, and return what is to be written now; `written` drops it when it has been."""
        before = self._held.get(report.node, {})
        held = {JobKey(item.job_id, item.restart): item.gpu_ns for item in report.residents}
        self._held[report.node] = held
        for item in report.residents:
            key = JobKey(item.job_id, item.restart)
            # of one that was not known before it is not known how busy it was
            held_ns = item.gpu_ns - before.get(key, item.gpu_ns)
            if item.gpu_percent >= 0 and held_ns > 0:
                seen_ns, busy_ns = self._sums.get(key, (0, 0))
                busy_part_ns = held_ns * min(item.gpu_percent, 100) // 100
                self._sums[key] = (min(seen_ns + held_ns, _MOST_NS), min(busy_ns + busy_part_ns, _MOST_NS))
        gone = before.keys() - held.keys()
        found = {key: self._sums[key] for key in (*held, *gone) if key in self._sums}
        return {key: sums for key, sums in found.items() if key in gone or sums[0] >= WRITTEN_NS}

    def written(self, rows: dict[JobKey, Seen]) -> None:
        """Forget what is in the file."""
        for key in rows:
            self._sums.pop(key, None)
