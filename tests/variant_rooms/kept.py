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
        "exchanges-missed",
        "gandiva_slurm/policy/moves/exchange.py:Exchange._most",
        "gain * unit if gain > 0 else 0.0",
        "0.0",
        "Jobs do not exchange GPU types, though both would gain.",
        ("tests/unit/test_exchange.py::test_the_greater_gain_has_the_fast_type",),
    ),
)
