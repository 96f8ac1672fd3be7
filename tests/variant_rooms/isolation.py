"""Known-wrong variants. Nodes that may be cut off: what works there, what stands still, what ends."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "lease-any-word-for-the-whole-silence",
        "gandiva_slurm/slicing/lease.py:may_work",
        "told.shown + bounds.kept_back)",
        "told.shown + bounds.silence + bounds.kept_back)",
        "What Slurm showed once lets a job work for as long as if Slurm heard the node.",
        ("tests/unit/test_isolation_explore.py::test_no_two_incarnations_work_and_none_stands_still_for_ever",),
    ),
    Variant(
        "lease-heard-again-is-enough",
        "gandiva_slurm/slicing/lease.py:was_not_given_up",
        "now - heard < bounds.silence // 2",
        "True",
        "A node that Slurm had given up goes on when it is heard again.",
        ("tests/unit/test_isolation_explore.py::test_no_two_incarnations_work_and_none_stands_still_for_ever",),
    ),
    Variant(
        "lease-others-speak-for-slurm",
        "gandiva_slurm/slicing/lease.py:is_nobodys",
        "last_heard < heard + bounds.silence",
        "True",
        "Other nodes that hear Slurm keep a job alive that it may have requeued.",
        ("tests/unit/test_isolation_explore.py::test_nodes_that_hear_slurm_do_not_speak_for_it",),
    ),
    Variant(
        "isolation-nothing-is-frozen",
        "gandiva_slurm/node/isolation.py:Isolation.watch",
        "if not may_work and not resident.halted_ns:",
        "if False:",
        "A node that hears nobody lets its jobs run on, though the site asks for a bound.",
        ("tests/node/test_isolation.py::test_a_gandivad_that_starts_again_knows_how_long_the_node_was_not_heard",),
    ),
    Variant(
        "isolation-what-cannot-be-asked-is-away",
        "gandiva_slurm/node/isolation.py:Isolation._ask_slurm",
        "if is_up is None:",
        "if False:",
        "A node without scontrol is taken for cut off.",
        ("tests/node/test_isolation.py::test_a_node_that_hears_nobody_lets_its_jobs_run_on",),
    ),
    Variant(
        "isolation-no-requeue-frozen",
        "gandiva_slurm/node/isolation.py:Isolation._concerned",
        "if r.is_requeueable and not r.is_ending",
        "if not r.is_ending",
        "A job that Slurm starts nowhere else is frozen.",
        ("tests/node/test_isolation.py::test_a_job_that_may_not_be_requeued_runs_on_beside_one_that_may",),
    ),
    Variant(
        "isolation-old-plans-wake",
        "gandiva_slurm/node/planning.py:Planning._hear",
        "min(now, plan.echo_ns)",
        "now",
        "A plan that was under way since before the node was cut off lets its jobs go on.",
        ("tests/node/test_isolation.py::test_an_old_plan_lets_nothing_go_on",),
    ),
    Variant(
        "isolation-silence-begins-anew",
        "gandiva_slurm/node/saved.py:read_job",
        'row.get("heard_ns", time.monotonic_ns())',
        "time.monotonic_ns()",
        "A gandivad that is started again waits for the whole silence once more.",
        ("tests/node/test_isolation.py::test_a_gandivad_that_starts_again_knows_how_long_the_node_was_not_heard",),
    ),
    Variant(
        "isolation-some-nodes-are-all",
        "gandiva_slurm/node/isolation.py:Isolation._ask",
        "if peers.are_all and len(answers) == len(peers.named):",
        "if answers:",
        "One node that answers speaks for all others.",
        ("tests/node/test_isolation.py::test_where_no_node_hears_slurm_a_job_works_on_if_all_were_asked",),
    ),
    Variant(
        "isolation-nobody-keeps-its-word",
        "gandiva_slurm/node/binding.py:Admission._refuse_stale",
        "if promised < key.restart and",
        "if False and",
        "A newer incarnation begins while another node may still work on the older.",
        ("tests/node/test_isolation.py::test_a_newer_incarnation_waits_for_as_long_as_another_node_was_promised",),
    ),
    Variant(
        "isolation-frozen-have-turns",
        "gandiva_slurm/node/jobs.py:Resident.may_have_turns",
        "not self.is_ending and not self.halted_ns",
        "not self.is_ending",
        "A job that was frozen for want of a word from Slurm has its next turn all the same.",
        ("tests/node/test_isolation.py::test_a_job_stands_still_until_slurm_shows_it_there",),
    ),
    Variant(
        "isolation-superseded-lives-on",
        "gandiva_slurm/node/isolation.py:Isolation._take",
        "elif resident.registered_ns < begin:",
        "elif False:",
        "A job that Slurm does not show on its node any more stays there, frozen.",
        ("tests/node/test_isolation.py::test_a_job_that_slurm_shows_anew_ends_with_its_slurmstepd",),
    ),
)
