"""Known-wrong variants. The node: its half of the park protocol."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "commit-before-all-hold",
        "gandiva_slurm/node/park.py:Gang._tick_aiming",
        "if all(holding):",
        "if any(holding):",
        "Ranks are told to release as soon as one of them holds.",
        (
            "tests/unit/test_park_explore.py::test_hold_then_commit_never_deadlocks_and_never_releases_"
            "early[two ranks, one step more for one]",
        ),
    ),
    Variant(
        "parked-before-all-released",
        "gandiva_slurm/node/park.py:Gang._tick_committing",
        "if any(living and not _has_answered(view, gen)",
        "if all(living and not _has_answered(view, gen)",
        "A gang counts as parked when the first rank has released.",
        ("tests/unit/test_park.py::test_parked_when_all_have_released",),
    ),
    Variant(
        "failed-rank-counts-as-parked",
        "gandiva_slurm/node/park.py:Gang._tick_committing",
        "if view[W_STATE] != PARKED]",
        "if view[W_STATE] not in (PARKED, FAILED)]",
        "A gang with a rank that could not release counts as parked.",
        ("tests/unit/test_park.py::test_rank_that_does_not_release_resumes_all_once_all_have_answered",),
    ),
    Variant(
        "hold-of-another-boundary",
        "gandiva_slurm/node/park.py:stands_at",
        "(view[W_STATE], view[W_STATE_GEN], view[W_STATE_SEQ]) == (state, gen, seq)",
        "(view[W_STATE], view[W_STATE_GEN]) == (state, gen)",
        "A rank that holds at another boundary than the aimed one counts as holding.",
        ("tests/unit/test_park.py::test_commit_needs_an_exact_match",),
    ),
    Variant(
        "hold-of-another-park",
        "gandiva_slurm/node/park.py:stands_at",
        "(view[W_STATE], view[W_STATE_GEN], view[W_STATE_SEQ]) == (state, gen, seq)",
        "(view[W_STATE], view[W_STATE_SEQ]) == (state, seq)",
        "A rank that still holds for an older order counts as holding.",
        ("tests/unit/test_park.py::test_commit_needs_an_exact_match",),
    ),
    Variant(
        "resume-while-others-release",
        "gandiva_slurm/node/park.py:Gang.resume",
        'if self.phase == "committing" and self.world > 1:',
        "if False:",
        "A gang is told to run while some of its ranks still release.",
        ("tests/unit/test_park.py::test_resume_while_committing_waits_for_all_to_release",),
    ),
    Variant(
        "generation-used-again",
        "gandiva_slurm/node/park.py:Gang._next",
        "+ 1\n",
        "+ 0\n",
        "An order has the number of the one before it.",
        ("tests/unit/test_park.py::test_aim_is_ahead_of_the_fastest_rank_and_at_is_written_last",),
    ),
    Variant(
        "rank-passed-unseen",
        "gandiva_slurm/node/park.py:Gang._miss",
        "if view[W_SEQ] > stand.seq or view[W_MISSED_GEN] == stand.gen:",
        "if False:",
        "A rank that has passed the aimed boundary is waited for.",
        ("tests/unit/test_park.py::test_miss_aims_anew_further_ahead",),
    ),
    Variant(
        "reaims-for-ever",
        "gandiva_slurm/node/park.py:Gang._tick_aiming",
        "if self.stand.tries >= self.max_reaims:",
        "if False:",
        "A park that is missed is aimed again without end.",
        ("tests/unit/test_park.py::test_after_the_last_miss_the_gang_runs",),
    ),
    Variant(
        "ended-rank-waited-for",
        "gandiva_slurm/node/park.py:ended_rank",
        "if not living or view[W_STATE] == DONE:",
        "if view[W_STATE] == DONE:",
        "A rank that was killed is waited for at the boundary.",
        ("tests/unit/test_park.py::test_end_of_a_rank_calls_the_park_off",),
    ),
    Variant(
        "half-parked-gang-adopted",
        "gandiva_slurm/node/park.py:Gang.adopt",
        "all(view[W_STATE] == PARKED for view in views)",
        "any(view[W_STATE] == PARKED for view in views)",
        "A new gandivad takes a gang with one parked rank for parked.",
        ("tests/unit/test_park.py::test_partly_parked_gang_is_resumed",),
    ),
    Variant(
        "margin-nothing",
        "gandiva_slurm/node/pace.py:Pace.margin",
        "min(2 + 2 * self.spread_ns // fastest_ns, WIDEST_MARGIN)",
        "0",
        "A gang is aimed at the boundary where its fastest rank stands already.",
        ("tests/unit/test_park_pace.py::test_margin",),
    ),
    Variant(
        "margin-without-the-nodes-delay",
        "gandiva_slurm/node/pace.py:Pace.margin",
        "2 + 2 * self.spread_ns // fastest_ns",
        "2",
        "A gang is aimed as near however late its node writes.",
        ("tests/unit/test_park_pace.py::test_margin",),
    ),
    Variant(
        "margin-from-the-slowest-rank",
        "gandiva_slurm/node/park.py:Gang._aim",
        "seq = max(min(view[W_SEQ], SANE_SEQ) for view in views)",
        "seq = min(min(view[W_SEQ], SANE_SEQ) for view in views)",
        "A gang is aimed ahead of its slowest rank, behind its fastest.",
        ("tests/unit/test_park.py::test_aim_is_ahead_of_the_fastest_rank_and_at_is_written_last",),
    ),
    Variant(
        "part-holds-with-one-rank",
        "gandiva_slurm/node/park_part.py:PartGang._tick_aiming",
        "elif all(holding):",
        "elif any(holding):",
        "A node says that its part holds when one of its ranks does.",
        ("tests/unit/test_park_part.py::test_the_boundary_and_the_word_to_release_come_from_outside",),
    ),
    Variant(
        "part-commits-unasked",
        "gandiva_slurm/node/park_part.py:PartGang.commit",
        (
            "        if self.phase != HOLDING:\n            return []\n        self.stand = self.stand._"
            "replace(phase=\"committing\")"
        ),
        '        self.stand = self.stand._replace(phase="committing")',
        "A node lets the ranks of its part release although one has gone on.",
        (
            "tests/unit/test_park_part.py::test_a_rank_that_leaves_its_hold_loses_it_and_nobody_is_told_to_"
            "release",
        ),
    ),
    Variant(
        "part-hold-not-checked",
        "gandiva_slurm/node/park_part.py:PartGang._check_hold",
        "if ended or gone:",
        "if ended:",
        "A rank that left its hold is not noticed before the commit.",
        (
            "tests/unit/test_park_part.py::test_a_rank_that_leaves_its_hold_loses_it_and_nobody_is_told_to_"
            "release",
        ),
    ),
    Variant(
        "part-aims-behind-a-rank",
        "gandiva_slurm/node/park_part.py:PartGang.aim",
        "if max(seqs) > at:",
        "if False:",
        "A node takes an aim that one of its ranks has passed.",
        ("tests/unit/test_park_part.py::test_an_aim_behind_a_rank_is_lost_at_once",),
    ),
    Variant(
        "part-runs-while-others-release",
        "gandiva_slurm/node/park_part.py:PartGang.resume",
        (
            "        if self.phase == \"committing\":\n            self.stand = self.stand._replace(run_"
            "wanted=True)\n            return []\n"
        ),
        "",
        "Ranks are told to train while others on their node still release.",
        ("tests/unit/test_park_part.py::test_after_the_word_it_goes_on_only_when_all_have_answered",),
    ),
)
