"""Known-wrong variants. Images that are not made after all: how criu is ended, and what is let go when."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "image-of-what-stays",
        "gandiva_slurm/node/imager.py:Imager._why_over",
        'return "" if resident.image.is_kept or resident.leave.is_told else "it is not to leave any more"',
        'return ""',
        "A job whose move was given up has no turns until its dump is done.",
        (
            "tests/unit/test_kept_images.py::"
            "test_a_dump_whose_move_was_given_up_is_ended_and_the_job_has_its_turns",
        ),
    ),
    Variant(
        "criu-killed-at-its-bound",
        "gandiva_slurm/node/imaging.py:_undo",
        "if left_s <= 0:",
        "if True:",
        "criu is killed with its own code in the processes that it has stopped: some die of it.",
        ("tests/unit/test_dump_ends.py::test_criu_that_takes_too_long_undoes_its_dump",),
    ),
    Variant(
        "criu-of-a-killed-maker-lives",
        "gandiva_slurm/node/imaging.py:_undo",
        "procs.send(proc, signal.SIGKILL)",
        "pass",
        "criu that hangs is there for ever, with the processes of a job stopped.",
        ("tests/unit/test_dump_ends.py::test_criu_that_does_not_end_by_itself_is_killed",),
    ),
    Variant(
        "criu-dies-of-a-full-disk",
        "gandiva_slurm/node/imaging.py:_run",
        "restore_signals=False",
        "restore_signals=True",
        "criu that may write no more is killed by SIGXFSZ, and undoes nothing.",
        ("tests/unit/test_dump_ends.py::test_criu_that_takes_too_long_undoes_its_dump",),
    ),
    Variant(
        "criu-of-a-short-node-is-not-ended",
        "gandiva_slurm/node/imaging.py:_limit",
        "contextlib.suppress(OSError, subprocess.SubprocessError)",
        "contextlib.suppress(subprocess.TimeoutExpired)",
        "Where no process can be started the guard fails, and all jobs of the node stand still.",
        ("tests/unit/test_dump_ends.py::test_where_nothing_can_be_started_it_is_killed_in_the_end",),
    ),
    Variant(
        "frozen-while-criu-works",
        "gandiva_slurm/node/switch.py:Switcher.shut",
        "resident.is_trusted or resident.image.is_in_hand",
        "resident.is_trusted",
        "A gandivad that is started anew freezes a job that criu has in hand: it cannot undo its dump.",
        (
            "tests/unit/test_dump_ends.py::"
            "test_a_gandivad_that_is_started_anew_does_not_freeze_what_criu_has_in_hand",
        ),
    ),
    Variant(
        "images-off-and-still",
        "gandiva_slurm/node/imager.py:Imager.run",
        "await self._give_up()",
        "pass",
        "A job of which an image was begun has no turns any more where the site turns images off.",
        ("tests/unit/test_dump_ends.py::test_where_images_are_off_now_no_job_stands_still_for_one",),
    ),
    Variant(
        "guard-leaves-what-criu-stopped",
        "gandiva_slurm/node/guard.py:_thaw_job",
        "has_image or (row",
        "(row",
        "What criu has left stopped stands still for ever where gandivad died before it was written down.",
        ("tests/unit/test_dump_ends.py::test_the_guard_continues_what_a_killed_maker_s_criu_has_left_stopped",),
    ),
    Variant(
        "image-there-and-running",
        "gandiva_slurm/node/unmade.py:put_away",
        "    for gone in",
        "    return\n    for gone in",
        "A job runs on while its image is there still, and goes back when that is restored.",
        ("tests/unit/test_dump_ends.py::test_a_store_that_refuses_keeps_one_job_still_and_no_other",),
    ),
    Variant(
        "criu-of-a-killed-maker-is-not-awaited",
        "gandiva_slurm/node/image_state.py:Image.is_in_hand",
        "procs.is_alive(self.maker) or bool(criu.left_by(self.maker))",
        "procs.is_alive(self.maker)",
        "criu leaves a job stopped behind the look for what is, and it stands still.",
        ("tests/unit/test_dump_ends.py::test_a_job_is_not_let_go_while_the_criu_of_a_killed_maker_works",),
    ),
    Variant(
        "image-broke-of-what-is-attached",
        "gandiva_slurm/engine/lifecycle/unrestored.py:note_unrestored",
        "if measured.framework or measured.is_movable:",
        "if measured.framework:",
        "A job of which no image is made any more is requeued when it dies of a trap of its own.",
        ("tests/unit/test_engine_forgotten.py::test_one_that_is_attached_since_is_in_no_image",),
    ),
    Variant(
        "image-broke-and-ended",
        "gandiva_slurm/engine/lifecycle/forgotten.py:take_end",
        "is_broken = _is_broken(record, event)",
        "is_broken = False",
        "A job that a killed criu has taken along has ended for good.",
        ("tests/unit/test_engine_forgotten.py::test_what_a_killed_criu_has_killed_is_requeued",),
    ),
    Variant(
        "image-broke-for-ever",
        "gandiva_slurm/engine/lifecycle/forgotten.py:_is_broken",
        "was_parked = record.state in (states.SUSPENDED, states.CHECKPOINTING) and not travels.signalled_ns",
        "was_parked = True",
        "A job that dies of a trap of its own is requeued for ever.",
        ("tests/unit/test_engine_forgotten.py::test_any_other_trap_is_the_job_s_own",),
    ),
)
