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
    Variant(
        "over-nodes-at-any-price",
        "gandiva_slurm/policy/elastic.py:_pays_apart",
        "return there is None or",
        "return True or",
        "A job that is no faster on two nodes stays on both.",
        ("tests/unit/test_engine_growing.py::test_what_is_no_faster_on_two_nodes_is_given_back",),
    ),
    Variant(
        "over-nodes-and-bound-to-one",
        "gandiva_slurm/engine/state/sizes.py:note_size",
        "0 if is_any_size else nodes_of(record)",
        "0",
        "One that can go on with as many ranks alone, of two nodes, waits for one with as many GPUs.",
        (
            "tests/unit/test_engine_growing.py::"
            "test_one_that_can_go_on_with_as_many_ranks_alone_gets_both_nodes_again",
        ),
    ),
    Variant(
        "over-nodes-by-the-least",
        "gandiva_slurm/slurm/control.py:spread",
        "{nodes}-{nodes}",
        "{nodes}",
        "Slurm refuses a second node, or gives one that was not asked for.",
        ("tests/unit/test_slurm_resize.py::test_nodes_and_tasks_on_each",),
    ),
    Variant(
        "over-nodes-three-and-one",
        "gandiva_slurm/slurm/control.py:spread",
        "is_bound = nodes > 1 or",
        "is_bound = False and",
        "Slurm starts three of four ranks on one node.",
        ("tests/unit/test_slurm_resize.py::test_nodes_and_tasks_on_each",),
    ),
    Variant(
        "over-nodes-half-of-the-ranks",
        "spank/check.c:gandiva_tasks_in_all",
        "all += tasks * nodes;",
        "all += tasks;",
        "srun starts the ranks of one node of two.",
        ("tests/unit/test_spank_bind.py::test_the_script_of_an_elastic_job_is_told_its_size_of_now",),
    ),
    Variant(
        "over-nodes-for-all",
        "slurm_conf/gandiva_gpus.lua:nodes_asked",
        'if elastic ~= "" and least == 1 and most == 2 then return 1, 2 end',
        "if least == 1 and most == 2 then return 1, 2 end",
        "A job that cannot grow may ask for one node or two.",
        ("tests/unit/test_job_submit_nodes.py::test_other_ranges_are_refused_with_what_would_do",),
    ),
)
