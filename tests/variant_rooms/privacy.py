"""Known-wrong variants. What keeps private what Slurm keeps private."""

from __future__ import annotations

from tests.variant_kit import Variant

TESTS = "tests/controller/test_privacy.py"
ROOM = "gandiva_slurm/controller/privacy.py"

VARIANTS = (
    Variant(
        "an-array-is-one-job",
        "gandiva_slurm/controller/views.py:picked",
        "number not in found or found[number].job.array_job_id == number",
        "number not in found",
        "Asked for an array's number, the queue shows the one task that has it too.",
        ("tests/unit/test_picked.py::test_jobs_by_their_numbers",),
    ),
    Variant(
        "a-question-of-one-looks-at-all",
        "gandiva_slurm/controller/views.py:picked",
        "number not in found or found[number].job.array_job_id == number",
        "True",
        "Each question of one job costs gandivactld a look at 50,000.",
        ("tests/unit/test_picked.py::test_no_other_job_is_looked_at",),
    ),
    Variant(
        "a-coordinator-sees-no-names",
        "gandiva_slurm/controller/privacy.py:curtain",
        "if viewer.accounts else set[str]()",
        "if False else set[str]()",
        "Names of users whose jobs a coordinator sees are hidden in sentences all the same.",
        ("tests/controller/test_privacy.py"
         "::test_names_are_hidden_but_for_those_whose_jobs_are_seen_and_asked_for_where_they_are_needed",),
    ),
    Variant(
        "others-jobs-in-the-queue",
        "gandiva_slurm/controller/api.py:Api._queue",
        "and viewer.sees(JOBS, record.job.user, [record.job.account])",
        "",
        "Others' jobs are in the queue though Slurm hides them.",
        (f"{TESTS}::test_others_are_in_no_answer",),
    ),
    Variant(
        "others-jobs-in-the-forecast",
        "gandiva_slurm/controller/api.py:Api._when",
        "if viewer.sees(JOBS, jobs[job_id].job.user, [jobs[job_id].job.account])",
        "",
        "`gandiva when` tells of others' jobs though Slurm hides them.",
        ("tests/controller/test_foretold.py::test_others_are_in_no_forecast",),
    ),
    Variant(
        "others-in-sentences",
        "gandiva_slurm/controller/curtained.py:_node",
        '[one for one in row[name] if curtain.shows(one["job_id"])]',
        "row[name]",
        "A node's residents are told with their users though Slurm hides them.",
        (f"{TESTS}::test_that_a_gpu_is_held_is_told", f"{TESTS}::test_others_are_in_no_answer"),
    ),
    Variant(
        "anothers-job-is-there",
        "gandiva_slurm/controller/api.py:Api._why",
        "if record is None or not viewer.sees(JOBS, record.job.user, [record.job.account]):",
        "if record is None:",
        "`gandiva why` tells of another's job.",
        (f"{TESTS}::test_anothers_job_is_as_one_that_is_not_there",),
    ),
    Variant(
        "open-until-slurm-speaks",
        f"{ROOM}:Privacy.rules",
        "return self._rules",
        "return self._rules if self._is_known else Rules(frozenset())",
        "While Slurm is away after a start of gandivactld nothing is private.",
        (f"{TESTS}::test_until_slurm_has_said_what_is_private_everything_is",),
    ),
    Variant(
        "coordinators-of-one-account-see-all",
        f"{ROOM}:Viewer.sees",
        "self.accounts >= {*accounts}",
        "bool(self.accounts)",
        "A coordinator sees the jobs of accounts that are another's.",
        (f"{TESTS}::test_a_coordinator_of_another_account_does_not",),
    ),
    Variant(
        "a-hidden-mate-is-told",
        "gandiva_slurm/controller/curtained.py:_with_mates",
        "if _may_see(owners, viewer)",
        "",
        "`gandiva acct` tells with whose job one's own has shared a GPU though Slurm hides it.",
        (f"{TESTS}::test_a_mate_is_told_to_those_who_may_see_it",),
    ),
)
