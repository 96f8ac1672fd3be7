"""Known-wrong variants. The ledger: sums by day, upkeep, what is read of them."""

from __future__ import annotations

from tests.variant_kit import Variant

_CRASHES = "tests/property/test_sum_crashes.py::test_a_hold_is_charged_once_around_sums_and_removal"
_UNIT = "tests/unit/test_sums.py::"

VARIANTS = (
    Variant(
        "sums-removed-hold-is-charged-again",
        "gandiva_slurm/accounting/ledger.py:Ledger._write_holds",
        "if hold.t0_ns < self._upkeep.kept_from_ns and self._days.has(hold):",
        "if False:",
        "A hold that is reported again when it has been removed is charged twice.",
        (_UNIT + "test_a_removed_hold_that_comes_again_is_not_charged_and_a_late_one_is", _CRASHES),
    ),
    Variant(
        "sums-late-hold-is-lost",
        "gandiva_slurm/accounting/days.py:Days.has",
        "return newest_ns is not None and hold.t0_ns <= int(newest_ns)",
        "return True",
        "A hold that is reported for the first time when its day's are removed is charged to nobody.",
        (_UNIT + "test_a_removed_hold_that_comes_again_is_not_charged_and_a_late_one_is", _CRASHES),
    ),
    Variant(
        "sums-known-hold-is-added",
        "gandiva_slurm/accounting/ledger.py:Ledger._write_holds",
        "if db.execute(_INSERT_HOLD, (*hold, self._days.is_long(hold))).rowcount:",
        "if db.execute(_INSERT_HOLD, (*hold, self._days.is_long(hold))):",
        "A hold that is reported twice is in its day's sums twice.",
        (_CRASHES,),
    ),
    Variant(
        "sums-removed-before-they-are-summed",
        "gandiva_slurm/accounting/upkeep.py:Upkeep.piece",
        "if not self._is_summed:",
        "if False:",
        "Holds of the release before are removed and nowhere summed.",
        (_UNIT + "test_a_file_of_the_release_before_answers_at_once_and_is_summed_in_pieces", _CRASHES),
    ),
    Variant(
        "sums-new-hold-is-summed-again",
        "gandiva_slurm/accounting/upkeep.py:Upkeep._sum_piece",
        "for *values, is_long in rows if is_long is None]",
        "for *values, is_long in rows]",
        "Holds that came since an upgrade are summed twice.",
        (_UNIT + "test_a_file_of_the_release_before_answers_at_once_and_is_summed_in_pieces", _CRASHES),
    ),
    Variant(
        "sums-pieces-are-not-noted",
        "gandiva_slurm/accounting/upkeep.py:Upkeep._sum_piece",
        "db.executemany(_SUMMED, [(self._days.is_long(hold), *hold[:3]) for hold in holds])",
        "pass",
        "While a file of the release before is summed, what is summed counts twice.",
        (_UNIT + "test_a_file_of_the_release_before_answers_at_once_and_is_summed_in_pieces", _CRASHES),
    ),
    Variant(
        "sums-unsummed-holds-are-not-read",
        "gandiva_slurm/accounting/parts.py:parts_in",
        "if not _is_summed(db):",
        "if False:",
        "After an upgrade what was held before counts only when all is summed.",
        (_UNIT + "test_a_file_of_the_release_before_answers_at_once_and_is_summed_in_pieces",),
    ),
    Variant(
        "sums-days-of-a-failed-write-are-believed",
        "gandiva_slurm/accounting/ledger.py:Ledger.record_report",
        "self._days.load()",
        "pass",
        "After a full disk a day's sums are written and the day is not.",
        (_UNIT + "test_a_full_disk_stops_upkeep_and_writing_and_loses_nothing",),
    ),
    Variant(
        "sums-hold-of-two-days-is-of-the-first",
        "gandiva_slurm/accounting/days.py:Days._pieces",
        "while end_ns < t1_ns:",
        "while False:",
        "What is held after midnight is in no day's sums.",
        (_UNIT + "test_sums_answer_as_holds_do", _CRASHES),
    ),
    Variant(
        "sums-part-of-a-day-leaves-long-holds-out",
        "gandiva_slurm/accounting/parts.py:_rest",
        "for which in _ENDING_LATER:",
        "for which in _ENDING_LATER[:1]:",
        "A hold that goes on over midnight does not count in a part of a day.",
        (_UNIT + "test_a_file_of_the_release_before_answers_at_once_and_is_summed_in_pieces", _CRASHES),
    ),
    Variant(
        "sums-removed-days-are-cut",
        "gandiva_slurm/accounting/parts.py:require_kept",
        "if at_ns < kept_from_ns:",
        "if False:",
        "A part of a day whose holds are removed is told as if nobody had held anything.",
        (_UNIT + "test_a_part_of_a_day_is_told_while_its_holds_are_kept_and_refused_after",),
    ),
    Variant(
        "sums-halves-are-rounded-each",
        "gandiva_slurm/accounting/parts.py:Part.halves",
        "return self.held_ns * (1 if self.shared_with else 2)",
        "return self.held_ns // (2 if self.shared_with else 1) * 2",
        "Half nanoseconds of packs are lost where a day ends.",
        (_UNIT + "test_a_pack_s_half_nanoseconds_are_kept_until_all_is_summed",),
    ),
    Variant(
        "sums-clock-that-is-ahead-removes",
        "gandiva_slurm/accounting/upkeep.py:Upkeep._remove_piece",
        "min(now_ns, int(newest_ns))",
        "now_ns",
        "A clock that is ahead for a moment removes all single holds.",
        (_UNIT + "test_a_clock_that_is_ahead_removes_nothing",),
    ),
    Variant(
        "sums-days-overlap",
        "gandiva_slurm/accounting/days.py:Days._find",
        "start_ns = max(start_ns, self._ends[place])",
        "pass",
        "When the time zone changes days overlap.",
        (_UNIT + "test_days_stay_as_they_are_when_the_time_zone_changes",),
    ),
    Variant(
        "sums-jobs-that-ended-stay-in-memory",
        "gandiva_slurm/accounting/ledger.py:Ledger.record_jobs",
        "self._forget({row.job_id for row in rows})",
        "pass",
        "gandivactld's memory grows with each job that ends.",
        (_UNIT + "test_memory_does_not_grow_with_jobs_that_ended",),
    ),
    Variant(
        "sums-upkeep-is-not-done",
        "gandiva_slurm/controller/books.py:Books.keep_up",
        "await self.write(partial(self.ledger.tidy, clock_ns(), keep_days()))",
        "[False]",
        "The ledger grows without bound.",
        ("tests/controller/test_controller_holds.py::test_old_holds_are_removed_while_it_runs_and_stay_charged",),
    ),
    Variant(
        "sums-one-user-has-all-readers",
        "gandiva_slurm/controller/api.py:Api._data",
        "self._turns.setdefault(uid, asyncio.Lock())",
        "asyncio.Lock()",
        "One user's slow questions to the ledger keep all others waiting.",
        (
            "tests/controller/test_controller_api.py"
            "::test_one_user_s_slow_questions_keep_no_other_user_waiting",
        ),
    ),
    Variant(
        "sums-forgotten-job-is-another",
        "gandiva_slurm/accounting/ledger.py:Ledger._find",
        "if row is None:",
        "if True:",
        "A job that was forgotten and is requeued is two in the ledger.",
        (_UNIT + "test_memory_does_not_grow_with_jobs_that_ended",),
    ),
)
