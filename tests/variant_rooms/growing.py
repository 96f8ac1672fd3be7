"""Known-wrong variants. What elastic jobs grow into, and keep."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "grown-in-the-last-plan-only",
        "gandiva_slurm/policy/elastic.py:Elastic._keep",
        "if gpu in idle]",
        "if gpu in idle and view.now_ns - self._resized_ns.get(job.job_id, 0) < self.turn_ns]",
        "What a job has grown into it gives back as soon as it has come, with nobody waiting.",
        ("tests/unit/test_engine_growing.py::test_what_has_grown_stays_so_while_nobody_waits",),
    ),
)
