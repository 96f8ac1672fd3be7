"""Known-wrong variants. The node: the charge and its ledger."""

from __future__ import annotations

from tests.variant_kit import Variant

CRASHES = "tests/property/test_hold_crashes.py::test_no_gpu_second_is_charged_twice_or_lost"

VARIANTS = (
    Variant(
        "charge-by-the-wall",
        "gandiva_slurm/node/clock.py:Clock.correct",
        "max(-SLEW_NS_PER_S, min(SLEW_NS_PER_S, error))",
        "error",
        "The system's clock is set, or its host suspended, and the hold that goes on is charged the step.",
        ("tests/unit/test_node_clock.py::test_a_step_moves_no_hold",),
    ),
    Variant(
        "held-as-told-last",
        "gandiva_slurm/engine/state/held.py:held_ns",
        "return record.held_ns + sum(each.planned_ns for each in sightings if each is not None)",
        "return record.held_ns",
        "A quantum that nodes have not told yet is not charged when the next one is given: a user of few "
        "tickets has two in a row, and half of that is forgiven.",
        ("tests/unit/test_held.py::test_shares_hold_however_late_the_word_of_nodes_is",),
    ),
    Variant(
        "held-counted-twice",
        "gandiva_slurm/engine/state/held.py:follow_plan",
        "since_ns = max(sighting.told_ns, state.followed_ns)",
        "since_ns = state.followed_ns",
        "What a node has told is counted as planned, too.",
        ("tests/unit/test_held.py::test_what_is_not_told_yet_is_held_as_planned",),
    ),
    Variant(
        "held-untold-is-lost",
        "gandiva_slurm/engine/lifecycle/event_handlers.py:resident_gone",
        "record.held_ns += sighting.planned_ns",
        "pass",
        "What a job held last before it ended or moved is charged to nobody.",
        ("tests/unit/test_held.py::test_what_was_not_told_before_the_end_is_kept",),
    ),
    Variant(
        "held-told-as-charged",
        "gandiva_slurm/node/report.py:_resident",
        "gpu_ns=own_ns(node, job, now) * len(job.gpus)",
        "gpu_ns=(counts.held_ns - counts.shared_ns // 2) * len(job.gpus)",
        "A node tells what it charged at the last change, not what is held by now.",
        ("tests/unit/test_node_sharing.py::test_a_report_tells_what_is_held_by_now_though_it_is_charged_later",),
    ),
    Variant(
        "parked-time-charged",
        "gandiva_slurm/node/charging.py:charge",
        "resident.charged_ns = now",
        "pass",
        "Time is charged again with every charge.",
        (
            "tests/unit/test_node_slicer.py::test_an_opportunistic_job_gives_way_to_a_guaranteed_one_at_once_"
            "and_has_what_is_left",
        ),
    ),
    Variant(
        "overrun-not-charged",
        "gandiva_slurm/node/charging.py:charge",
        "over = 0 if start is None else now - max(start, resident.charged_ns)",
        "over = 0",
        "What a gang holds past its quantum is not noted as overrun.",
        ("tests/unit/test_node_span.py::test_what_a_span_holds_after_it_was_told_out_is_past_its_quantum",),
    ),
    Variant(
        "pack-charged-twice",
        "gandiva_slurm/node/charging.py:charge",
        "is_shared = sharer(node, resident) is not None",
        "is_shared = False",
        "Both jobs of a pack are charged the whole of what they share.",
        ("tests/unit/test_node_sharing.py::test_both_of_a_pack_are_charged_half_of_what_both_held",),
    ),
    Variant(
        "refusal-counted-alone",
        "gandiva_slurm/node/charging.py:_count_refused",
        "    if waiting:\n",
        "    if True:\n        waiting = waiting or [resident]\n",
        "A gang that nobody waits for is counted as refusing.",
        ("tests/unit/test_node_refusal.py::test_nothing_counts_while_nobody_waits",),
    ),
    Variant(
        "grant-charges-the-wait",
        "gandiva_slurm/node/switch.py:Switcher.grant",
        "resident.charged_ns, resident.overrun_from_ns = now, None",
        "resident.overrun_from_ns = None",
        "A gang is charged the time it was parked.",
        (
            "tests/unit/test_node_slicer.py::test_an_opportunistic_job_gives_way_to_a_guaranteed_one_at_once_"
            "and_has_what_is_left",
        ),
    ),
    Variant(
        "hold-lost-at-a-restart",
        "gandiva_slurm/node/ledger.py:Ledger.restore",
        'self._closed = [hold for hold in written if hold.seq > data["acked"]]',
        "self._closed = []",
        "Holds that the controller has not heard of are lost when gandivad starts anew.",
        (
            "tests/unit/test_node_ledger.py::test_the_next_daemon_finds_open_and_closed_holds_and_goes_on_"
            "counting",
        ),
    ),
    Variant(
        "hold-number-used-again",
        "gandiva_slurm/node/ledger.py:Ledger.restore",
        "*(hold.seq + 1 for hold in written)",
        "",
        "After a kill two holds have the same number, and one of them is dropped.",
        ("tests/unit/test_node_ledger.py::test_a_kill_between_closing_and_saving_doubles_nothing",),
    ),
    Variant(
        "hold-open-and-closed",
        "gandiva_slurm/node/ledger.py:Ledger.restore",
        "                del self.open[key]\n",
        "                pass\n",
        "A hold that was closed just before a kill is open still, and charged twice.",
        ("tests/unit/test_node_ledger.py::test_a_kill_between_closing_and_saving_doubles_nothing",),
    ),
    Variant(
        "reboot-uses-numbers-again",
        "gandiva_slurm/node/ledger.py:Ledger.restore",
        "            self._next_seq += REBOOT_JUMP\n",
        "",
        "After a reboot numbers that were lost with the disk's cache are used again.",
        ("tests/unit/test_node_ledger.py::test_numbers_jump_after_a_reboot",),
    ),
    Variant(
        "acknowledged-by-another-boot",
        "gandiva_slurm/node/ledger.py:Ledger.acknowledge",
        "if boot != self.boot or not self._closed",
        "if not self._closed",
        "An acknowledgement of another series of numbers drops holds.",
        ("tests/unit/test_node_ledger.py::test_only_this_boots_acknowledgement_counts",),
    ),
    Variant(
        "acknowledged-one-too-many",
        "gandiva_slurm/node/ledger.py:Ledger.acknowledge",
        "if hold.seq > seq]",
        "if hold.seq > seq + 1]",
        "A hold that the controller has not written yet is dropped.",
        ("tests/unit/test_node_ledger.py::test_only_this_boots_acknowledgement_counts",),
    ),
    Variant(
        "torn-hold-stops-the-node",
        "gandiva_slurm/node/ledger.py:Ledger._read",
        "(ValueError, TypeError, KeyError)",
        "KeyError",
        "A torn line in the file of holds keeps gandivad from starting.",
        ("tests/unit/test_node_ledger.py::test_a_torn_line_costs_only_itself",),
    ),
    Variant(
        "shared-hold-not-split",
        "gandiva_slurm/node/ledger.py:Ledger.share",
        "            self.end(key, now_ns)\n",
        "            del self.open[key]\n",
        "What was held until a pack began is lost.",
        ("tests/unit/test_node_ledger.py::test_where_a_mate_comes_or_goes_one_hold_ends_and_the_next_begins",),
    ),
    Variant(
        "hold-beyond-its-park",
        "gandiva_slurm/node/ledger.py:Ledger._as_hold",
        "park_ns = max(0, now_ns - hold.parked_at_ns) if hold.parked_at_ns else 0",
        "park_ns = 0",
        "A hold does not say how much of it was past the order to park.",
        ("tests/unit/test_node_ledger.py::test_a_hold_runs_from_grant_to_release_with_the_park_inside",),
    ),
    Variant(
        "a-hold-is-known-by-its-number-only",
        "gandiva_slurm/accounting/ledger.py:Ledger.record_report",
        "db.executemany(_INSERT_HOLD, holds)",
        "db.executemany(_INSERT_HOLD.split('WHERE')[0], holds)",
        "A node that has lost its state reports its holds under another name, and they are charged again.",
        (
            "tests/unit/test_ledger.py::test_a_hold_that_a_node_ends_again_under_another_name_counts_once",
            CRASHES,
        ),
    ),
    Variant(
        "holds-forgotten-without-a-state",
        "gandiva_slurm/node/ledger.py:Ledger.recover",
        "self._closed = written",
        "self._closed = []",
        "What a node had not reported yet is lost with its state file.",
        (CRASHES,),
    ),
    Variant(
        "open-holds-forgotten-without-a-state",
        "gandiva_slurm/node/ledger.py:Ledger.recover",
        "self._end_all(begun, end_ns)",
        "pass",
        "What jobs held when the state file was lost is never charged.",
        (CRASHES,),
    ),
    Variant(
        "numbers-begin-anew",
        "gandiva_slurm/node/ledger.py:Ledger.recover",
        "self._next_seq = max([0, *(hold.seq for hold in written)]) + REBOOT_JUMP",
        "self._next_seq = 1",
        "Numbers of holds are used twice, and the second of each is taken for the first.",
        (CRASHES,),
    ),
)
