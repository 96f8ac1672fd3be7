"""Known-wrong variants. What policies and the engine keep between questions, or leave out."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "plan-types-of-before",
        "gandiva_slurm/policy/placement/seating.py:Seating.as_they_are",
        "if not self._is_turn:",
        "if True:",
        "Where all jobs run, none of them ever comes to a better GPU type.",
        ("tests/sim/test_kept.py::test_results_are_those_of_one_that_forgets[gavel_poisson200_s0-0-at-once]",),
    ),
    Variant(
        "placements-of-before",
        "gandiva_slurm/engine/engine.py:Engine._places",
        "if known is None or known[0] != key:",
        "if known is None:",
        "Nodes are told for ever what they were told of a job first.",
        ("tests/sim/test_kept.py::test_results_are_those_of_one_that_forgets[gavel_poisson200_s0-8-by-the-engine]",),
    ),
    Variant(
        "plan-takes-a-gangs-own-node-for-less-than-it-is",
        "gandiva_slurm/policy/placement/apart.py:SpareNodes.tightest",
        "for index in by_count[count] if index not in own",
        "for index in by_count[count]",
        "A gang in pieces is told a node that has more room than another.",
        ("tests/property/test_apart.py::test_a_node_is_found_as_a_walk_over_all_finds_it",),
    ),
    Variant(
        "plan-packs-at-a-loss",
        "gandiva_slurm/policy/packing/pairs.py:_offers_of",
        "if gain <= 0:",
        "if False:",
        "A job has a guest beside it though both together are worth less than it alone.",
        ("tests/property/test_apart.py::test_pairs_are_those_of_all_offers",),
    ),
    Variant(
        "exchanges-missed",
        "gandiva_slurm/policy/moves/exchange.py:Exchange._most",
        "gain * unit if gain > 0 else 0.0",
        "0.0",
        "Jobs do not exchange GPU types, though both would gain.",
        ("tests/unit/test_exchange.py::test_the_greater_gain_has_the_fast_type",),
    ),
)
