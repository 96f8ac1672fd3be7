"""Known-wrong variants. Placement, packing and elastic sizes."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "no-way-for-one-that-stays",
        "gandiva_slurm/policy/shares/rounds.py:Round.make_way",
        "if len(found) > len(runs):",
        "if False:",
        "A job that could move stays on the GPUs of one that cannot, beside idle ones.",
        (
            "tests/property/test_immovable.py::"
            "test_the_neighbour_that_can_move_makes_way_though_its_turn_is_always_first",
        ),
    ),
    Variant(
        "one-that-stays-keeps-others-from-idle-gpus",
        "gandiva_slurm/policy/shares/rounds.py:Round.fill",
        "for job in unseated if job.can_migrate):",
        "for job in unseated):",
        "A job that waits for GPUs that it cannot leave keeps others from idle ones to the turn's end.",
        (
            "tests/property/test_immovable.py::"
            "test_one_that_waits_for_its_gpus_keeps_no_other_from_idle_ones_of_its_turn",
        ),
    ),
    Variant(
        "jobs-moved-off-for-one-that-finds-no-room",
        "gandiva_slurm/policy/shares/rounds.py:Round.make_way",
        "if len(found) > len(runs):",
        "if True:",
        "A job that could move is taken off for one that cannot, though no GPUs are left for it.",
        ("tests/unit/test_rounds.py::test_none_makes_way_where_it_would_find_no_gpus",),
    ),
    Variant(
        "sharing-for-good-not-told",
        "gandiva_slurm/engine/lifecycle/moves_told.py:told_shared",
        "if others:",
        "if False:",
        "`gandiva why` does not say what would let a job leave the GPUs that it shares.",
        (
            "tests/unit/test_crowding.py::"
            "test_one_that_cannot_be_moved_is_told_with_how_many_it_shares_and_what_would_help",
        ),
    ),
    Variant(
        "cells-not-told-to-policies",
        "gandiva_slurm/engine/apply/picture.py:Picture.__init__",
        "[parts_of(cells, kind, gpus) for _, kind, gpus, *_ in self.key],",
        "(),",
        "On a cluster all GPUs of a node are taken for equally near.",
        ("tests/unit/test_cells_live.py::test_a_gang_takes_a_whole_switch_and_not_the_first_gpus_that_are_free",),
    ),
    Variant(
        "cell-asked-for-is-forgotten",
        "gandiva_slurm/engine/apply/picture.py:_cell",
        "return need.cell if need.cell in CELLS else NODE",
        "return NODE",
        "A gang that asks for a switch has any GPUs of a node.",
        ("tests/unit/test_cells_live.py::test_gangs_are_as_near_as_they_ask_through_the_engine",),
    ),
    Variant(
        "gang-that-is-apart-stops-all-plans",
        "gandiva_slurm/engine/apply/picture.py:Picture._job",
        "job.cell = NODE",
        "pass",
        "A job that lived on two switches before these were told makes each plan a fault.",
        ("tests/unit/test_cells_live.py::test_a_job_that_was_there_before_cells_were_told_stays_and_stops_nobody",),
    ),
    Variant(
        "cpus-ignored",
        "gandiva_slurm/policy/placement/sites.py:Site.is_large_enough",
        "and (not self.cpus or need.cpus <= self.cpus)",
        "",
        "A job is placed on a node with fewer CPUs than it asks for.",
        (
            "tests/unit/test_placement.py::"
            "test_sizes_are_respected_and_what_slurm_does_not_tell_bounds_nothing",
        ),
    ),
    Variant(
        "gpu-type-ignored",
        "gandiva_slurm/policy/placement/sites.py:Site.may_take",
        "and (not need.types or self.gpu_type in need.types)",
        "",
        "A job is placed on a GPU type it does not accept.",
        ("tests/unit/test_placement.py::test_type_and_partition_are_respected",),
    ),
    Variant(
        "partition-ignored",
        "gandiva_slurm/policy/placement/sites.py:Site.may_take",
        "return bool(right_partition) and",
        "return",
        "A job is placed on a node outside its partition.",
        ("tests/unit/test_placement.py::test_type_and_partition_are_respected",),
    ),
    Variant(
        "duty-grows-at-a-loss",
        "gandiva_slurm/policy/packing/duty.py:next_duty",
        "if loss > allowed:",
        "if False:",
        "An opportunistic job's duty grows though the guaranteed one is harmed.",
        ("tests/unit/test_duty.py::test_the_guaranteed_one_keeps_its_bound_and_the_other_runs",),
    ),
    Variant(
        "pair-book-learns-nothing",
        "gandiva_slurm/policy/packing/pairs.py:PairBook.learn",
        "(total + sum(both), count + 1)",
        "(total, count)",
        "What a pair came to is not remembered.",
        ("tests/unit/test_packing.py::test_models_that_never_paid_are_not_tried_with_everybody",),
    ),
    Variant(
        "pair-below-the-floor-stays",
        "gandiva_slurm/policy/packing/pairs.py:PairBook._stay",
        "and pays(both, self.floor)",
        "",
        "A pair that does not pay stays packed.",
        ("tests/unit/test_packing.py::test_an_old_pair_stays_only_when_it_pays",),
    ),
    Variant(
        "opportunistic-starves",
        "gandiva_slurm/policy/packing/classes.py:Classes.promote",
        "if has_room or waited_ns >= MOST_PATIENCE_NS:",
        "if has_room:",
        "An opportunistic job whose user has more than the user's share waits for ever.",
        ("tests/unit/test_classes.py::test_beyond_its_users_share_it_is_promoted_only_after_very_long",),
    ),
    Variant(
        "guest-where-a-host-is-slowed",
        "gandiva_slurm/policy/packing/classes.py:Guard._kept",
        "if both[0] >= KEEPS * alone and both[1] > 0",
        "if both[1] > 0",
        "A guest stays beside a guaranteed host that it slows down.",
        ("tests/unit/test_classes.py::test_a_pair_that_slows_the_guaranteed_job_is_undone_at_once",),
    ),
    Variant(
        "closest-is-any",
        "gandiva_slurm/policy/placement/topology.py:closest",
        "fitting = [group for group in below.values() if len(group) >= count]",
        "fitting = [list(items)]",
        "A gang is spread over the machine though one socket has room.",
        ("tests/unit/test_topology.py::test_the_lowest_common_ancestor_is_found_whenever_there_is_one",),
    ),
    Variant(
        "seats-by-luck",
        "gandiva_slurm/policy/placement/seats.py:_seat_type",
        "sorted(guests, key=lambda guest: (guest.rank, not guest.is_bound))",
        "guests",
        "Of two gangs that both need one node the first to come always has it.",
        ("tests/unit/test_seats.py::test_where_not_all_fit_whole_the_lower_rank_has_its_place",),
    ),
    Variant(
        "types-by-luck",
        "gandiva_slurm/policy/moves/exchange.py:Exchange._keep",
        "(s.rank, -s.size, s.job_id)",
        "(-s.size, s.job_id)",
        "Of two jobs that take one GPU type alone the first to come always has it.",
        ("tests/unit/test_exchange.py::test_of_those_that_take_one_type_alone_the_lowest_rank_has_it",),
    ),
    Variant(
        "pairs-tried-for-a-moment",
        "gandiva_slurm/policy/packing/pairs.py:PairBook._stay",
        "host.job_id in bench.on_trial",
        "False",
        "Two that are tried together are taken apart before they are measured.",
        ("tests/unit/test_packing.py::test_a_pair_stays_together_until_it_is_measured",),
    ),
    Variant(
        "unknown-gpus-all-the-first",
        "gandiva_slurm/engine/lifecycle/placing.py:_least_lived_on",
        "key=lambda gpu: (living[gpu], gpu)",
        "key=lambda gpu: gpu",
        "Jobs found running on a node that says nothing are all thought to be on its first GPU.",
        (
            "tests/unit/test_engine_recovery.py::"
            "test_running_jobs_of_a_silent_node_are_given_gpus_of_their_own",
        ),
    ),
    Variant(
        "newcomer-on-a-home-of-others",
        "gandiva_slurm/policy/placement/seating.py:Seating._off_homes",
        "homes.isdisjoint(gpus)",
        "True",
        "A newcomer takes a GPU on which another lives, who then moves, while others are free.",
        ("tests/unit/test_seating.py::"
         "test_a_newcomer_keeps_off_the_home_of_a_job_that_is_not_picked_yet",),
    ),
    Variant(
        "gang-without-a-seat-stops-all-plans",
        "gandiva_slurm/policy/placement/seating.py:Seating.anywhere",
        "found.get(job_id, ())",
        "found.get(job_id, seats[job_id])",
        "A gang in pieces that finds no seat has the whole plan fail.",
        ("tests/unit/test_apart.py::test_one_that_has_no_seat_stops_none_of_the_others",),
    ),
    Variant(
        "gang-goes-together-over-others",
        "gandiva_slurm/policy/placement/seating.py:Seating.anywhere",
        "if are_near and found.keys() >= seats.keys():",
        "if are_near:",
        "A gang in pieces goes to one node, and another job loses its GPUs by it.",
        ("tests/unit/test_apart.py::test_one_does_not_go_where_another_would_lose_its_seat",),
    ),
    Variant(
        "gang-goes-together-where-it-may-not-be",
        "gandiva_slurm/policy/placement/apart.py:Apart._node_for",
        "barred = self._barred(job)",
        "barred = frozenset[int]()",
        "A gang in pieces is to go to a node that is closed to it, and keeps others from going together.",
        ("tests/unit/test_apart.py::test_where_one_may_not_be_it_keeps_none_from_going",),
    ),
)
