"""Known-wrong variants. What users, managers and monitoring are told."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "a-page-says-how-busy",
        "gandiva_slurm/accounting/busy.py:Busy.due",
        "if item.gpu_percent >= 0 and held_ns > 0:",
        "if held_ns > 0:",
        "Time that NVML did not look at counts as seen.",
        ("tests/unit/test_report.py::test_what_was_held_counts_as_busy_as_nvml_saw_it",),
    ),
    Variant(
        "a-refused-write-counts-as-done",
        "gandiva_slurm/accounting/ledger.py:Ledger.record_report",
        "busy = self._busy.due(report)",
        "busy = self._busy.due(report)\n        self._busy.written(busy)",
        "What a full disk refused of a job's busy time is forgotten.",
        ("tests/unit/test_report.py::test_a_full_disk_loses_none_of_it_and_none_counts_twice",),
    ),
    Variant(
        "a-pack-charged-twice-in-reports",
        "gandiva_slurm/accounting/report.py:usage_report",
        "job.held += part.halves",
        "job.held += 2 * part.held_ns",
        "A report charges what two jobs shared to both in full.",
        ("tests/unit/test_report.py::test_its_sums_are_those_of_acct",),
    ),
    Variant(
        "others-in-reports",
        "gandiva_slurm/controller/api.py:Api._report",
        "and curtained.may_see_usage(row, viewer)",
        "",
        "A report tells of others though Slurm hides them.",
        ("tests/controller/test_privacy.py::test_others_are_in_no_answer",),
    ),
    Variant(
        "a-formula-in-a-report",
        "gandiva_slurm/cli/report.py:csv_lines",
        "_plain(cell)",
        "cell",
        "An account's name runs as a formula in the spreadsheet that opens a report.",
        ("tests/unit/test_report.py::test_csv_has_a_line_a_row_and_no_formula",),
    ),
    Variant(
        "lost-work-is-useful",
        "gandiva_slurm/cli/advice.py:useful_part",
        "/ held_s * once",
        "/ held_s",
        "Mini-batches that were done again count as useful.",
        ("tests/unit/test_eff.py::test_what_was_done_again_is_not_useful",),
    ),
)
