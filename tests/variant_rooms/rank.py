"""Known-wrong variants. The rank: its half of the park protocol."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "rank-parks-by-itself",
        "gandiva_slurm/client/machine.py:_arrived",
        "return _entered(place, HOLD, gen, seq, now_ns), WAIT",
        "return _entered(place, RELEASING, gen, seq, now_ns), RELEASE",
        "A rank releases its GPU at the aimed boundary without waiting for the others.",
        (
            "tests/unit/test_park_explore.py::test_hold_then_commit_never_deadlocks_and_never_releases_"
            "early[two ranks, one step more for one]",
        ),
    ),
    Variant(
        "rank-acknowledges-and-trains-on",
        "gandiva_slurm/client/machine.py:_holding",
        "return (left(place), GO) if silent else (place, WAIT)",
        "return place, GO",
        "A rank says that it holds and trains on until the order to release comes.",
        (
            "tests/unit/test_park_explore.py::test_hold_then_commit_never_deadlocks_and_never_releases_"
            "early[two ranks, one step more for one]",
        ),
    ),
    Variant(
        "rank-holds-at-any-boundary",
        "gandiva_slurm/client/machine.py:_arrived",
        "if command == CMD_AIM and order.at == seq:",
        "if command == CMD_AIM and order.at <= seq:",
        "A rank that has passed the aimed boundary holds at the next one instead of telling of the miss.",
        ("tests/unit/test_client_machine.py::test_advance",),
    ),
    Variant(
        "rank-never-leaves-a-hold",
        "gandiva_slurm/client/machine.py:_holding",
        "return (left(place), GO) if silent else (place, WAIT)",
        "return place, WAIT",
        "A rank that holds waits for a dead node for ever.",
        (
            "tests/unit/test_park_explore.py::test_hold_then_commit_never_deadlocks_and_never_releases_"
            "early[two ranks, coordinator dies]",
        ),
    ),
    Variant(
        "rank-parked-for-ever",
        "gandiva_slurm/client/machine.py:_parked",
        "or (overdue and silent)",
        "",
        "A parked rank waits for a dead node for ever.",
        ("tests/unit/test_client_machine.py::test_parked_rank_restores_itself",),
    ),
    Variant(
        "rank-wakes-while-the-node-lives",
        "gandiva_slurm/client/machine.py:_parked",
        "(overdue and silent)",
        "overdue",
        (
            "A parked rank takes its GPU back at its wake-by time though its node lives and gave it to "
            "another job."
        ),
        ("tests/unit/test_client_machine.py::test_parked_rank_restores_itself",),
    ),
    Variant(
        "rank-releases-for-another-park",
        "gandiva_slurm/client/machine.py:_holding",
        "if gen == place.gen and command == CMD_COMMIT:",
        "if command == CMD_COMMIT:",
        "A rank releases on the word of another park than the one it holds for.",
        ("tests/unit/test_client_machine.py::test_advance",),
    ),
    Variant(
        "rank-heeds-an-old-order-again",
        "gandiva_slurm/client/machine.py:_arrived",
        "if gen == place.served:",
        "if gen == place.served and command == CMD_AIM:",
        "A rank that has done with a park releases again on the same order.",
        ("tests/unit/test_client_machine.py::test_advance",),
    ),
    Variant(
        "rank-shows-its-state-first",
        "gandiva_slurm/client/machine.py:publish",
        (
            "    if after.state != before.state:\n        words.append((W_STATE, after.state))\n    return "
            "tuple(words)"
        ),
        (
            "    if after.state != before.state:\n        words.insert(0, (W_STATE, after.state))\n    "
            "return tuple(words)"
        ),
        "A rank shows its new state beside the number of the park before.",
        ("tests/unit/test_client_machine.py::test_publish_writes_state_last",),
    ),
    Variant(
        "rank-fails-and-says-parked",
        "gandiva_slurm/client/machine.py:failed",
        "state=FAILED",
        "state=PARKED",
        "A rank that could not release says that it has parked, and trains on.",
        ("tests/unit/test_client_machine.py::test_failed_park_is_not_tried_again",),
    ),
    Variant(
        "capture-is-no-miss",
        "gandiva_slurm/client/machine.py:pass_by",
        "return place._replace(state=RUN, missed=gen)",
        "return place",
        "A rank that cannot park here (it captures a graph) does not tell its node that the aim is lost.",
        ("tests/unit/test_client_machine.py::test_unfit_boundary_is_passed_by",),
    ),
    Variant(
        "stop-parks-while-capturing",
        "gandiva_slurm/client/stop.py:Stop.obey",
        "if not is_fit_to_park():",
        "if False:",
        "A rank parks in the middle of the capture of a CUDA graph.",
        ("tests/unit/test_client_rank.py::test_unfit_boundary_is_not_parked_at",),
    ),
    Variant(
        "stop-interrupted-without-memory",
        "gandiva_slurm/client/stop.py:Stop._abandon",
        "self.tier.restore_at_last()",
        "pass",
        "A script's signal handler that interrupts a park trains on without its memory.",
        ("tests/unit/test_client_rank.py::test_a_park_that_is_interrupted_takes_the_memory_back_first",),
    ),
    Variant(
        "stop-released-though-save-failed",
        "gandiva_slurm/client/stop.py:Stop._release",
        "            self._move(machine.failed(self.place))\n            return False\n",
        "            return True\n",
        "A rank whose save failed says that it has parked.",
        ("tests/unit/test_client_rank.py::test_failed_release_trains_on_and_says_why",),
    ),
    Variant(
        "stop-saves-in-every-park",
        "gandiva_slurm/client/stop.py:Stop._release",
        " if asked == TIER_REQUEUE else None",
        "",
        "An attached training writes a checkpoint in every park, not only when it is to be moved.",
        (
            "tests/unit/test_client_rank.py::test_only_a_park_that_asks_for_it_saves_and_a_failed_save_is_no_"
            "park",
        ),
    ),
    Variant(
        "restore-failure-trains-on",
        "gandiva_slurm/client/stop.py:Stop._restore",
        "            self._move(machine.still_parked(self.place))\n            return False",
        "            return True",
        "A rank that could not take its GPU memory back trains on.",
        ("tests/unit/test_client_rank.py::test_failed_restore_stays_parked_and_is_tried_again",),
    ),
    Variant(
        "boundary-from-any-thread",
        "gandiva_slurm/client/rank.py:Rank.boundary",
        "if get_ident() != self.owner and not self._take_thread():",
        "if self.owner is None and not self._take_thread():",
        "Boundaries of every thread count, so that a rank parks while another thread is in mid-step.",
        ("tests/unit/test_client_rank.py::test_other_threads_pass_no_boundary",),
    ),
    Variant(
        "fork-is-a-rank",
        "gandiva_slurm/client/rank.py:Rank.disarm",
        "self.owner, self.stop, self.words = _NOBODY, None, _private_words()",
        "self.stop = None",
        "A forked child of a rank writes boundaries on its parent's page.",
        ("tests/unit/test_client_rank.py::test_forked_child_of_a_rank_is_no_rank",),
    ),
    Variant(
        "client-error-reaches-the-script",
        "gandiva_slurm/client/rank.py:Rank._leave_hot_path",
        "            self._retire(err)",
        "            raise",
        "An error of the client ends the user's training.",
        ("tests/unit/test_client_rank.py::test_our_own_error_never_reaches_the_script",),
    ),
    Variant(
        "no-goodbye",
        "gandiva_slurm/client/rank.py:Rank.finish",
        "self.words[W_STATE] = DONE",
        "pass",
        "A rank that ends does not say that no boundary will come any more.",
        ("tests/unit/test_client_process.py::test_interrupt_ends_a_parked_script_as_it_ends_any",),
    ),
    Variant(
        "nested-step-is-a-boundary",
        "gandiva_slurm/client/optimizers.py:StepWatch.after",
        "        if depth and self._is_nested(sys._getframe(1)):\n            return\n",
        "",
        "A step nested in another step counts as a boundary.",
        ("tests/unit/test_hook_torch.py::test_boundaries",),
    ),
    Variant(
        "step-in-backward-is-a-boundary",
        "gandiva_slurm/client/optimizers.py:StepWatch.after",
        " and self._backward_id() == -1",
        "",
        "A step inside backward counts as a boundary.",
        ("tests/unit/test_hook_torch.py::test_boundaries",),
    ),
)
