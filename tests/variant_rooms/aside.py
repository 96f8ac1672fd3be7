"""Known-wrong variants. Jobs that cause errors, set aside."""

from __future__ import annotations

from tests.variant_kit import Variant

UNIT = "tests/unit/test_set_aside.py"

VARIANTS = (
    Variant(
        "one-jobs-error-stops-all",
        "gandiva_slurm/controller/blaming.py:Guarded.handle",
        "            if done is None:\n                raise",
        "            raise",
        "An error in a cycle that one job causes restores the same state for ever: nothing starts any more.",
        ("tests/controller/test_set_aside.py::test_one_jobs_error_stops_nobody_else",),
    ),
    Variant(
        "aside-told-each-time",
        "gandiva_slurm/controller/blaming.py:Guarded._tell",
        "if job_id not in self._told:",
        "if True:",
        "A job that changes in each cycle writes a traceback in each cycle.",
        (f"{UNIT}::test_what_is_still_wrong_is_set_aside_again_and_told_once_a_minute",),
    ),
    Variant(
        "aside-tried-by-slurms-words",
        "gandiva_slurm/engine/lifecycle/setting_aside.py:_told",
        "return (quiet, job.state in ON_NODE, job.is_held)",
        "return (job,)",
        "A job set aside is tried again, with a search, whenever Slurm words its waiting otherwise.",
        (f"{UNIT}::test_what_its_owner_changes_is_tried_again",),
    ),
    Variant(
        "aside-tried-at-once",
        "gandiva_slurm/engine/lifecycle/setting_aside.py:_may_try",
        "return aside.since_ns < at.now_ns",
        "return True",
        "A job set aside for its news is brought back by that very news.",
        (f"{UNIT}::test_what_is_still_wrong_is_set_aside_again_and_told_once_a_minute",),
    ),
    Variant(
        "hidden-is-a-stray",
        "gandiva_slurm/engine/lifecycle/setting_aside.py:_keep",
        "if spot[1].job_id != job_id",
        "if True",
        "A running job that the policy may not see is taken for a stray, and stopped.",
        (f"{UNIT}::test_a_job_that_runs_goes_on_beside_all_others",),
    ),
    Variant(
        "hidden-takes-no-slot",
        "gandiva_slurm/engine/apply/carry_out.py:Room.__init__",
        "for record in at.state.hidden.values():",
        "for record in ():",
        "Others are started on the slot of a running job that the policy may not see.",
        (f"{UNIT}::test_a_slot_of_one_that_the_policy_may_not_see_is_taken",),
    ),
    Variant(
        "last-straw-is-blamed",
        "gandiva_slurm/engine/blame.py:_Search.fails",
        "engine.decider.asks_always = self._heeds_policy",
        "engine.decider.asks_always = False",
        "For a policy's error the job is blamed with which it was asked again, not the one it stumbles over.",
        (f"{UNIT}::test_a_requeue_and_an_operators_word_try_it_again",),
    ),
    Variant(
        "bugs-are-blamed-on-jobs",
        "gandiva_slurm/engine/blame.py:_Search.split",
        "> MOST:",
        "> 10**9:",
        "An error of ours that every job meets sets all jobs aside, one by one, instead of being told.",
        (f"{UNIT}::test_what_many_jobs_cause_is_ours",),
    ),
    Variant(
        "unread-record-loses-all",
        "gandiva_slurm/engine/state/plain.py:readable",
        "except (AttributeError, KeyError, TypeError, ValueError) as err:",
        "except ZeroDivisionError as err:",
        "One journalled record that cannot be read throws away the state of all jobs.",
        (f"{UNIT}::test_a_journalled_record_that_cannot_be_read_is_that_jobs_alone",),
    ),
    Variant(
        "unread-job-hides-all",
        "gandiva_slurm/slurm/reader.py:_read_each",
        "if len(unread) >= most:",
        "if True:",
        "One job that Slurm shows in another form keeps the picture of all from being read.",
        ("tests/unit/test_slurm_reader.py::test_one_job_that_cannot_be_read_is_left_out_alone",),
    ),
    Variant(
        "unread-job-is-gone",
        "gandiva_slurm/controller/differences.py:look",
        "elif job_id in held:",
        "elif False:",
        "A running job that cannot be read for a moment counts as ended.",
        ("tests/controller/test_set_aside.py::test_a_job_that_slurm_shows_unreadably_stays_as_it_was",),
    ),
)
