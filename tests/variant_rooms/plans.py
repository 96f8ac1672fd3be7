"""Known-wrong variants. Whole plans, and how the engine makes them true."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "plan-on-nodes-not-eligible",
        "gandiva_slurm/policy/eligibility.py:Eligibility.barred",
        "(job.hosts is not None and index not in job.hosts)",
        "False",
        "A plan puts a job on a node of another partition.",
        ("tests/unit/test_eligibility.py::test_nodes_that_a_job_may_not_use_are_barred",),
    ),
    Variant(
        "plan-home-wherever-it-is-fast",
        "gandiva_slurm/policy/homes.py:Homes._best_of",
        "part = 1 / (1 + max(met)) if max(met) else _ALONE",
        "part = 1.0",
        "Jobs that cannot be saved crowd the fastest GPUs.",
        ("tests/unit/test_eligibility.py::test_jobs_that_come_together_do_not_meet_each_other",),
    ),
    Variant(
        "plan-homes-of-gangs-cross",
        "gandiva_slurm/policy/homes.py:Homes._best_of",
        "number == len(blocks) - 1",
        "False",
        "Gangs of one size live on GPUs that overlap by a part: their turns do not fit together.",
        ("tests/unit/test_eligibility.py::test_homes_of_gangs_are_the_same_gpus_or_have_none_in_common",),
    ),
    Variant(
        "plan-hands-nothing-over",
        "gandiva_slurm/policy/gandiva_fair.py:GandivaFair._place_but",
        "if is_shared and begins == _SLICE:",
        "if False:",
        "Where moves are dear jobs on one GPU wait for a turn of 18 moves to get their quantum.",
        (
            "tests/property/test_settled.py::"
            "test_those_that_live_on_one_gpu_hand_it_over_each_quantum_however_dear_moves_are[gandiva_fair]",
        ),
    ),
    Variant(
        "plan-moves-for-a-slice",
        "gandiva_slurm/policy/seating.py:Seating.__init__",
        "if is_dear and not is_turn:",
        "if False:",
        "Parked jobs pay a dear move for a quantum on GPUs that others take back.",
        (
            "tests/property/test_settled.py::"
            "test_nobody_moves_inside_a_turn_but_to_gpus_on_which_no_other_lives",
        ),
    ),
    Variant(
        "plan-has-no-other-type-in-mid-turn",
        "gandiva_slurm/policy/seating.py:Seating._types",
        "return self._settle(wanted, places, room, fixed - lost) if lost else types",
        "return types",
        "A job whose GPUs failed waits beside idle ones of another type until the turn is over.",
        (
            "tests/property/test_policy_machine.py::"
            "test_a_gang_that_lost_its_type_in_mid_turn_goes_on_another",
        ),
    ),
    Variant(
        "plan-packs-what-does-not-fit",
        "gandiva_slurm/policy/sharing.py:_admits",
        "return card > 0 and all(peaks) and fits(card, peaks, others)",
        "return True",
        "A policy plans two on a GPU that has no memory for both, and each of its plans is refused.",
        ("tests/unit/test_led_packs.py::test_gandiva_fair_packs_two_of_a_user_where_both_fit[8-False]",),
    ),
    Variant(
        "plan-packs-what-is-not-known",
        "gandiva_slurm/engine/picture.py:_note_memory",
        'return record.options.pack != "never" and job.peak_bytes > 0',
        'return record.options.pack != "never"',
        "Two are packed before anybody knows what they take of a GPU's memory.",
        ("tests/unit/test_led_packs.py::test_what_is_not_known_to_fit_is_refused_by_its_name",),
    ),
    Variant(
        "plan-packs-again-what-ran-out",
        "gandiva_slurm/engine/led_packs.py:watch_packs",
        "if (broke or _ooms(at, pack) > pack.ooms) and",
        "if broke and",
        "Two that ran out of GPU memory together are planned together again.",
        ("tests/unit/test_led_packs.py::test_two_that_ran_out_of_memory_together_are_known_for_it",),
    ),
    Variant(
        "plan-waits-for-a-slow-policy-each-time",
        "gandiva_slurm/controller/bounded.py:Bounded.decide",
        "if self._clock() < self._rest_until_s:",
        "if False:",
        "A policy that takes too long holds gandivactld up for ten seconds in each cycle.",
        (
            "tests/controller/test_bounded.py::"
            "test_one_that_takes_long_is_left_and_begins_anew_after_a_rest[sleeps]",
        ),
    ),
    Variant(
        "plan-of-a-target-that-closed",
        "gandiva_slurm/engine/picture.py:_Eligible.hosts",
        "for name in (*record.nodes, *record.target) if name in index)",
        "for name in record.nodes if name in index)",
        "A policy that leaves a job where it is going is refused while that node takes no others.",
        (
            "tests/unit/test_apply.py::"
            "test_a_job_that_has_left_may_use_the_node_it_goes_to_though_that_takes_no_others_now",
        ),
    ),
    Variant(
        "plan-one-of-two-that-stay",
        "gandiva_slurm/policy/seats.py:_stay_order",
        "rank = 0 if guest.can_move else guest.rank",
        "rank = 0",
        "Of two that cannot leave a GPU the first to come always has it.",
        ("tests/unit/test_eligibility.py::test_of_two_that_live_on_one_gpu_the_one_behind_has_it",),
    ),
    Variant(
        "plan-packs-across-gpus",
        "gandiva_slurm/policy/sharing.py:_admits",
        "and (guest.can_migrate or guest.gpus == gpus)",
        "and True",
        "A job that cannot be saved is packed on another GPU than its own.",
        ("tests/unit/test_eligibility.py::test_jobs_that_stay_are_packed_where_they_are_and_nowhere_else",),
    ),
    Variant(
        "plan-guests-of-any-memory",
        "gandiva_slurm/policy/packing.py:_kind",
        "job.memory_mib",
        "0",
        "Two guests of a model are taken for alike where there is memory for one of them only.",
        (
            "tests/unit/test_eligibility.py"
            "::test_of_two_guests_of_a_model_the_one_comes_that_there_is_room_for",
        ),
    ),
    Variant(
        "plan-charges-what-was-before",
        "gandiva_slurm/policy/gandiva_fair.py:GandivaFair._held_since",
        "before.get(job_id, held_ns)",
        "before.get(job_id, 0)",
        "A policy that is asked for the first time charges jobs for all they ever held.",
        ("tests/unit/test_eligibility.py::test_what_was_held_before_the_first_question_is_not_charged",),
    ),
    Variant(
        "plan-starts-where-all-is-full",
        "gandiva_slurm/engine/apply.py:_start",
        "if now.has(record, record.target):",
        "if True:",
        "A job is started on a GPU whose slots are all taken.",
        ("tests/unit/test_apply.py::test_the_job_parked_longest_makes_way_for_one_that_comes",),
    ),
    Variant(
        "plan-has-anybody-leave",
        "gandiva_slurm/engine/apply.py:Room.make",
        "if over > 0 and may_leave(at, each) and _taken(each, spot):",
        "if over > 0 and _taken(each, spot):",
        "A job that cannot be saved is told to make way.",
        ("tests/unit/test_apply.py::test_a_job_comes_when_one_that_cannot_be_saved_has_ended",),
    ),
    Variant(
        "plan-is-not-looked-at",
        "gandiva_slurm/engine/apply.py:Decider._ask",
        "return None if wrong else plan",
        "return plan",
        "What no cluster can do is begun all the same.",
        ("tests/unit/test_apply.py::test_a_bad_plan_is_refused_and_the_last_good_one_stays",),
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
        "plan-moves-running-jobs-inside-a-turn",
        "gandiva_slurm/policy/gandiva_fair.py:GandivaFair._place_but",
        "seated = self._as_before(view, staying)",
        "pass",
        "One idle GPU, and running jobs pay a dear move in a chain, in the middle of a turn.",
        ("tests/unit/test_pace.py::test_between_slices_running_jobs_stay_where_they_are",),
    ),
    Variant(
        "plan-homes-beyond-memory",
        "gandiva_slurm/policy/homes.py:Homes.of",
        "self._eligibility.take(job, gpus)",
        "pass",
        "Newcomers of one question find homes on a node that has memory for one of them.",
        ("tests/unit/test_eligibility.py::test_homes_of_one_question_leave_room_for_each_other",),
    ),
    Variant(
        "plan-home-on-one-node-of-two",
        "gandiva_slurm/policy/homes.py:Homes.of",
        "or job.nodes > 1",
        "or False",
        "A job of two nodes is planned on one: the plan is refused at each slice.",
        ("tests/unit/test_eligibility.py::test_a_job_of_several_nodes_finds_no_home_on_one",),
    ),
    Variant(
        "plan-starves-a-gang-at-home",
        "gandiva_slurm/policy/gandiva_fair.py:GandivaFair._kept",
        "for job_id in (*starved, *paired):",
        "for job_id in paired:",
        "A gang whose user has other GPUs never has its own for a slice.",
        ("tests/unit/test_pace.py::test_a_gang_at_home_has_a_slice_though_its_user_has_a_share_elsewhere",),
    ),
)
