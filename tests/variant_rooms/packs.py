"""Known-wrong variants. Two jobs on one GPU, as a policy plans them and the engine makes them true."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "plan-packs-what-does-not-fit",
        "gandiva_slurm/policy/packing/sharing.py:_admits",
        "return card > 0 and all(peaks) and fits(card, peaks, others)",
        "return True",
        "A policy plans two on a GPU that has no memory for both, and each of its plans is refused.",
        ("tests/unit/test_led_packs.py::test_gandiva_fair_packs_two_of_a_user_where_both_fit[8-False]",),
    ),
    Variant(
        "plan-packs-what-is-not-known",
        "gandiva_slurm/engine/apply/picture.py:_note_memory",
        'return record.options.pack != "never" and job.peak_bytes > 0',
        'return record.options.pack != "never"',
        "Two are packed before anybody knows what they take of a GPU's memory.",
        ("tests/unit/test_led_packs.py::test_what_is_not_known_to_fit_is_refused_by_its_name",),
    ),
    Variant(
        "plan-packs-again-what-ran-out",
        "gandiva_slurm/engine/apply/led_packs.py:watch_packs",
        "if (broke or _ooms(at, pack) > pack.ooms) and",
        "if broke and",
        "Two that ran out of GPU memory together are planned together again.",
        ("tests/unit/test_led_packs.py::test_two_that_ran_out_of_memory_together_are_known_for_it",),
    ),
    Variant(
        "plan-packs-across-gpus",
        "gandiva_slurm/policy/packing/sharing.py:_admits",
        "and (guest.can_migrate or guest.gpus == gpus)",
        "and True",
        "A job that cannot be saved is packed on another GPU than its own.",
        ("tests/unit/test_eligibility.py::test_jobs_that_stay_are_packed_where_they_are_and_nowhere_else",),
    ),
    Variant(
        "plan-guests-of-any-memory",
        "gandiva_slurm/policy/packing/pairs.py:_kind",
        "job.memory_mib",
        "0",
        "Two guests of a model are taken for alike where there is memory for one of them only.",
        (
            "tests/unit/test_eligibility.py"
            "::test_of_two_guests_of_a_model_the_one_comes_that_there_is_room_for",
        ),
    ),
    Variant(
        "plan-of-two-on-a-gpu",
        "gandiva_slurm/policy/soundness.py:unpaired",
        "if len(others) > 1 or theirs",
        "if theirs",
        "Three jobs are planned on one GPU.",
        ("tests/unit/test_apply.py::test_a_bad_plan_is_refused_and_the_last_good_one_stays",),
    ),
    Variant(
        "plan-packs-none-whose-user-has-no-other-job",
        "gandiva_slurm/policy/packing/sharing.py:Sharing._bench",
        "user in waiters or behind <= self._quantum_ns * STRIDE1",
        "user in waiters",
        "Two users with a job each take turns on a GPU that both could have together.",
        ("tests/unit/test_fair_charges.py",),
    ),
    Variant(
        "plan-packs-who-only-loses",
        "gandiva_slurm/policy/packing/sharing.py:Sharing._bench",
        "user in waiters or behind <= self._quantum_ns * STRIDE1",
        "True",
        "A user that would be on nearly all the time has half of its speed beside another, for ever.",
        ("tests/unit/test_fair_charges.py",),
    ),
    Variant(
        "plan-a-pair-waits-for-nothing",
        "gandiva_slurm/policy/shares/groups.py:Group.note_waiting",
        "or job_id in halved",
        "or False",
        "What two on one GPU paid is forgotten, for nobody waits meanwhile.",
        ("tests/unit/test_fair_charges.py",),
    ),
    Variant(
        "plan-undoes-a-pair-without-a-word",
        "gandiva_slurm/engine/apply/led_packs.py:_tell_undone",
        "if both is None or pays(both, floor):",
        "if True:",
        "Two that were slower together take turns again, and nothing says why.",
        ("tests/unit/test_led_packs.py",),
    ),
)
