"""Known-wrong variants. Gangs over nodes: rounds and orders."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "span-commits-early",
        "gandiva_slurm/engine/span_park.py:SpanMove.answered",
        "return self._next(now_ns) if self._done.issuperset(self._targets) else []",
        "return self._next(now_ns)",
        "The controller goes a step on as soon as one node has answered.",
        ("tests/unit/test_span_park.py::test_park_holds_then_commits_then_frees",),
    ),
    Variant(
        "span-yes-is-enough",
        "gandiva_slurm/engine/span_park.py:SpanMove.answered",
        "if is_ok and self._is_there(order):",
        "if is_ok:",
        "A node's yes is believed though its part stands elsewhere.",
        ("tests/unit/test_span_park.py::test_a_yes_that_shows_another_boundary_is_a_miss",),
    ),
    Variant(
        "span-other-boundary",
        "gandiva_slurm/engine/span_park.py:SpanMove._is_there",
        " and (order.what != AIM or part.at == order.at)",
        "",
        "A part that holds at another boundary counts as holding.",
        ("tests/unit/test_span_park.py::test_a_yes_that_shows_another_boundary_is_a_miss",),
    ),
    Variant(
        "span-lost-commit-is-freed",
        "gandiva_slurm/engine/span_park.py:SpanMove._failed",
        "if self.stage in (COMMIT, FREEZE):\n            return self._back(why, now_ns)",
        "if self.stage in (COMMIT, FREEZE):\n            return self._next(now_ns)",
        "GPUs are given on although a node did not say that its ranks have released.",
        ("tests/unit/test_span_park.py::test_silence_before_free_takes_everything_back",),
    ),
    Variant(
        "span-commits-half-held",
        "gandiva_slurm/engine/span_park.py:SpanMove._failed",
        "return self._back(why, now_ns) if is_lost else self._aim_again(code, why, now_ns)",
        "return self._enter(COMMIT, self.nodes, now_ns)",
        "Ranks are told to release although a part missed the boundary.",
        ("tests/unit/test_span_park.py::test_a_miss_aims_further_ahead_and_the_sixth_gives_up",),
    ),
    Variant(
        "span-aims-at-the-fastest-now",
        "gandiva_slurm/engine/span_park.py:SpanMove._aim",
        "self.at = max(part.max_seq for part in parts) + self.margin",
        "self.at = max(part.max_seq for part in parts)",
        "A span is aimed at the boundary where its fastest rank stands already.",
        ("tests/unit/test_span_park.py::test_park_holds_then_commits_then_frees",),
    ),
    Variant(
        "span-goes-half-cleared",
        "gandiva_slurm/engine/span_park.py:SpanMove._failed",
        "            return self._unreserve(why, now_ns)\n",
        "            return self._enter(GO, self._targets, now_ns)\n",
        "A span starts on the nodes whose GPUs are clear, without the others.",
        ("tests/unit/test_span_park.py::test_all_come_in_together_or_none",),
    ),
    Variant(
        "span-waits-for-ever",
        "gandiva_slurm/engine/span_park.py:SpanMove.tick",
        "if now_ns - self.marks[-1].at_ns > self._deadline_ns():",
        "if False:",
        "A span that does not release is waited for without end.",
        ("tests/unit/test_span_park.py::test_an_order_that_takes_too_long_is_given_up",),
    ),
    Variant(
        "span-old-answer-counts",
        "gandiva_slurm/engine/span_park.py:SpanMove._close",
        "if order.number == number]",
        "if True]",
        "The answer to an earlier order counts as that to the newest.",
        ("tests/unit/test_span_park.py::test_the_answer_to_an_order_that_was_sent_again_does_not_count",),
    ),
    Variant(
        "span-margin-without-the-way",
        "gandiva_slurm/engine/span_park.py:margin",
        "+ rtt_ns + spread_ns",
        "",
        "The margin does not count the way of an order.",
        ("tests/unit/test_span_park.py::test_a_miss_aims_further_ahead_and_the_sixth_gives_up",),
    ),
    Variant(
        "span-charge-unbounded",
        "gandiva_slurm/engine/central.py:Domain._owe",
        "held = min(max(row.held_ns - (before.held_ns if before else 0), 0), bound_ns)",
        "held = max(row.held_ns - (before.held_ns if before else 0), 0)",
        "A node may say that a job held more time than has passed.",
        (
            "tests/unit/test_engine_central.py::test_what_was_held_before_the_first_answer_is_not_charged_"
            "nor_more_than_time_has_passed",
        ),
    ),
    Variant(
        "span-crossed-for-ever",
        "gandiva_slurm/engine/central.py:Domain._kept",
        " and key not in crossed",
        "",
        "Two spans that hold half of each other's GPUs wait for ever.",
        ("tests/unit/test_engine_central.py::test_of_two_that_cross_the_later_one_is_told_out",),
    ),
    Variant(
        "span-torn-stays-torn",
        "gandiva_slurm/engine/central.py:Domain._why_kept",
        'return self._silent(key) or "some of its parts hold their GPUs: the others follow"',
        'return ""',
        "A span of which some parts hold their GPUs is not seen through.",
        ("tests/unit/test_engine_central.py::test_half_on_is_made_whole_before_anything_else",),
    ),
    Variant(
        "span-leaves-unsaved",
        "gandiva_slurm/engine/central.py:Domain._has_saved",
        "all(part.has_saved for part in parts)",
        "any(part.has_saved for part in parts)",
        "A span of which one node's ranks have saved themselves counts as saved.",
        ("tests/unit/test_engine_central.py::test_one_of_which_half_has_saved_itself_comes_in_again",),
    ),
    Variant(
        "span-with-a-rank-missing",
        "gandiva_slurm/engine/domains.py:has_all_ranks",
        "return sorted(rank for part in parts for rank in part.ranks) == list(range(world))",
        "return True",
        "A span is aimed although some of its ranks have not come yet.",
        ("tests/unit/test_engine_central.py::test_what_cannot_be_parked_stays_and_says_why",),
    ),
    Variant(
        "span-domains-not-joined",
        "gandiva_slurm/engine/domains.py:find_domains",
        "domains.append(frozenset(job.nodes).union(*touched))",
        "domains.append(frozenset(job.nodes))",
        "Nodes that two spans join are decided for apart.",
        ("tests/property/test_central_properties.py::test_everybody_runs_again_within_a_bound",),
    ),
    Variant(
        "refusal-never-over",
        "gandiva_slurm/engine/refusal.py:Refusal.is_over",
        "return is_pressed or (",
        "return False and (",
        "A gang that refuses to park is borne for ever.",
        (
            "tests/unit/test_engine_refusal.py::test_time_that_is_refused_begins_with_the_first_failure_and_"
            "ends_with_a_park",
        ),
    ),
    Variant(
        "refusal-frozen-at-once",
        "gandiva_slurm/engine/refusal.py:Refusal.is_over",
        "self.refused_ns >= bound_ns and",
        "",
        "A gang is frozen at its first failed park.",
        (
            "tests/unit/test_engine_refusal.py::test_time_that_is_refused_begins_with_the_first_failure_and_"
            "ends_with_a_park",
        ),
    ),
    Variant(
        "refusal-frozen-again-at-once",
        "gandiva_slurm/engine/refusal.py:Refusal.is_over",
        " and self.served_ns >= self.frozen_ns",
        "",
        "A gang that was frozen is frozen again before it has held as long.",
        (
            "tests/unit/test_engine_refusal.py::test_after_a_freeze_it_is_asked_once_and_holds_as_long_as_it_"
            "was_frozen",
        ),
    ),
)
