"""Known-wrong variants. Rounds: they wait for no look at Slurm, are missed by nodes, and hand passes over."""

from __future__ import annotations

from tests.variant_kit import Variant

_NODE = "tests/unit/test_node_turns.py"
_ENGINE = "tests/unit/test_engine_rounds.py"
_CONTROLLER = "tests/controller/test_controller_rounds.py"

VARIANTS = (
    Variant(
        "rounds-wait-for-slurm",
        "gandiva_slurm/controller/loop.py:Controller._is_round_due",
        "return is_asked and",
        "return False and is_asked and",
        "Turns change when a look at Slurm has come, not when a quantum ends.",
        (f"{_CONTROLLER}::test_turns_go_on_while_a_look_at_slurm_takes_long",),
    ),
    Variant(
        "rounds-start-jobs",
        "gandiva_slurm/engine/apply/decider.py:Decider.decide",
        "        if is_round:",
        "        if False:",
        "What a round asks of Slurm may be answered by a look that is older.",
        (f"{_ENGINE}::test_a_round_starts_and_moves_nothing",),
    ),
    Variant(
        "rounds-are-never-late",
        "gandiva_slurm/node/leading.py:look",
        "if late is not None and late <= now:",
        "if False:",
        "A node whose controller hangs goes on as it was told last for three quanta and ten seconds.",
        (f"{_NODE}::test_without_the_next_turn_the_node_goes_by_its_own_stride",),
    ),
    Variant(
        "rounds-late-turn-counts-at-once",
        "gandiva_slurm/node/leading.py:is_led",
        "is_alone = led.missed == led.turn or now < led.alone_until_ns",
        "is_alone = led.missed == led.turn",
        "A turn that comes a little late has hands change twice.",
        (f"{_NODE}::test_a_late_turn_counts_when_the_quantum_of_the_nodes_own_is_over",),
    ),
    Variant(
        "rounds-one-quantum-alone",
        "gandiva_slurm/node/leading.py:is_led",
        "is_alone = led.missed == led.turn or now < led.alone_until_ns",
        "is_alone = now < led.alone_until_ns",
        "After a quantum of its own a node obeys a plan that is over again.",
        (f"{_NODE}::test_without_the_next_turn_the_node_goes_by_its_own_stride",),
    ),
    Variant(
        "rounds-told-again-are-longer",
        "gandiva_slurm/node/leading.py:hear",
        "plan.turn_left_ms * MS",
        "max(0, plan.turn_left_ms) * MS",
        "Each time a plan is told again its turn begins anew.",
        (f"{_NODE}::test_a_turn_told_again_is_no_other_turn",),
    ),
    Variant(
        "rounds-passes-not-taken-over",
        "gandiva_slurm/slicing/local.py:LocalStride.adopt",
        "book.adopt(users, jobs)",
        "pass",
        "Users who were ahead when the controller died are not any more.",
        (f"{_NODE}::test_the_nodes_own_stride_begins_where_the_policy_stood",),
    ),
    Variant(
        "rounds-passes-fall",
        "gandiva_slurm/slicing/stride.py:PassBook.adopt",
        "start = max(",
        "start = min(",
        "Passes that are taken over fall.",
        ("tests/unit/test_stride.py::test_members_stand_as_far_apart_as_they_are_told_and_none_falls",),
    ),
    Variant(
        "rounds-passes-are-levelled",
        "gandiva_slurm/slicing/stride.py:PassBook.adopt",
        "account.value, account.debt = start + leads[name], leads[name]",
        "account.value = start + leads[name]",
        "Of what a user was ahead a round is left at the node's next quantum.",
        ("tests/unit/test_stride.py::test_what_was_told_is_owed_whatever_a_round_is",),
    ),
    Variant(
        "rounds-passes-by-the-nodes-tickets",
        "gandiva_slurm/engine/engine.py:Engine._passes",
        "self._user_tickets.get(group, 0)",
        "place.tickets",
        "A user whose jobs live on two nodes pays twice for what it is ahead.",
        (f"{_ENGINE}::test_nodes_hear_how_far_users_and_jobs_are_ahead_in_passes_of_all_their_tickets",),
    ),
)
