"""Known-wrong variants. Process images that nodes fetch from each other, or cannot restore, or of GPUs."""

from __future__ import annotations

from tests.variant_kit import Variant

_TESTS = "tests/controller/test_image_fetching.py::"
_CARDS = "tests/unit/test_image_cards.py::"
_ELSEWHERE = "tests/unit/test_restorer_elsewhere.py::"

VARIANTS = (
    Variant(
        "image-of-what-lives",
        "gandiva_slurm/node/handing.py:Hander._claim",
        "if key in self._node.residents:",
        "if False:",
        "A node gives away the image of a job that may yet go on there: two are alive.",
        (_TESTS + "test_what_lives_there_still_is_waited_for",),
    ),
    Variant(
        "image-for-two",
        "gandiva_slurm/node/handing.py:Hander.answer",
        "if given is not None and given.node != question.node:",
        "if False:",
        "Two nodes fetch one image.",
        (_TESTS + "test_one_node_claims_it_and_no_other_has_it",),
    ),
    Variant(
        "image-names-believed",
        "gandiva_slurm/node/images.py:is_plain",
        "return bool(_NAME.fullmatch(name)) and name != MANIFEST",
        "return True",
        "A node reads, or writes, whatever file another names.",
        (
            _TESTS + "test_nothing_but_its_files_can_be_read",
            _TESTS + "test_a_node_that_lies_of_it_leaves_nothing_behind",
        ),
    ),
    Variant(
        "image-stays-claimed",
        "gandiva_slurm/node/handing.py:Hander._claim",
        "timer = asyncio.get_running_loop().call_later(SILENT_S, self._drop, key)",
        "timer = asyncio.get_running_loop().call_later(1e9, self._drop, key)",
        "What a node has claimed and does not fetch lies there for ever.",
        (_TESTS + "test_a_node_that_asks_no_more_has_given_it_up",),
    ),
    Variant(
        "image-never-fetched",
        "gandiva_slurm/node/restorer.py:Restorer._await_image",
        "if not fetching.done():",
        "if False:",
        "A task does not wait for its image to come.",
        (_TESTS + "test_a_task_waits_until_it_is_there_and_begins_anew_where_it_does_not_come",),
    ),
    Variant(
        "image-large-as-small",
        "gandiva_slurm/node/criu.py:bound_s",
        "return LEAST_S + size // SLOWEST",
        "return LEAST_S",
        "A large image is taken for one that hangs, and its job begins anew.",
        (
            "tests/unit/test_images.py::"
            "test_a_bound_grows_with_the_image_and_gandivads_is_longer_than_that_of_what_it_waits_for",
        ),
    ),
    Variant(
        "image-large-given-up",
        "gandiva_slurm/node/restorer.py:Restorer._begin",
        "restoring.most_s(images.size_of(manifest))",
        "restoring.most_s(0)",
        "gandivad gives up a large image that is still being restored.",
        (_ELSEWHERE + "test_a_larger_image_has_longer_until_it_is_taken_for_hanging",),
    ),
    Variant(
        "image-large-not-waited-for",
        "spank/stepd.c:gandiva_stepd_task_init",
        "talk.later_ms = is_restoring ? RESTORE_SILENT_MS : 0;",
        "talk.later_ms = 0;",
        "The plugin gives up a large image that is still being restored.",
        (
            "tests/unit/test_spank_image.py::"
            "test_a_restore_takes_as_long_as_gandivad_says_that_it_goes_on",
        ),
    ),
    Variant(
        "image-runs-before-it-is-known",
        "gandiva_slurm/node/restorer.py:Restorer._take_over",
        "        node.save()\n        if resident.holds:\n            self._slicer.switcher.go(resident)\n",
        "        if resident.holds:\n            self._slicer.switcher.go(resident)\n        node.save()\n",
        "What was restored runs before that is written down: killed there, it repeats steps.",
        (_ELSEWHERE + "test_before_it_runs_it_is_written_down_that_it_was_restored",),
    ),
    Variant(
        "image-given-back-early",
        "gandiva_slurm/node/elsewhere.py:Restore.is_over",
        "return not procs.is_alive(self.first)",
        "return True",
        "An image is given back while what was restored from it lives: two are alive.",
        (_ELSEWHERE + "test_nothing_of_it_lives_when_its_image_is_given_back",),
    ),
    Variant(
        "image-unfit-anew",
        "gandiva_slurm/node/restorer.py:Restorer._not_here",
        "if running.is_damaged or",
        "if True or",
        "A restore that fails is a fresh start, whatever other nodes could.",
        (
            _ELSEWHERE + "test_it_gives_its_gpus_up_and_leaves_when_it_is_told_to",
            _ELSEWHERE + "test_nothing_of_it_lives_when_its_image_is_given_back",
        ),
    ),
    Variant(
        "image-unfit-forever",
        "gandiva_slurm/node/leaving.py:is_unfit",
        "return bool(image.unfit) and node.clock.mono() - image.unfit_ns < UNFIT_NS",
        "return bool(image.unfit)",
        "A job that no other node takes waits for ever where it cannot be restored.",
        (_ELSEWHERE + "test_where_no_other_node_takes_it_within_a_minute_it_begins_anew",),
    ),
    Variant(
        "image-lost-with-gandivad",
        "gandiva_slurm/node/restorer.py:Restorer.take_over",
        "if not resident.image.restoring:",
        "if True:",
        "What a gandivad that was killed was restoring begins anew.",
        (_ELSEWHERE + "test_a_gandivad_that_is_killed_in_the_midst_leaves_the_image_to_another_node",),
    ),
    Variant(
        "image-restored-and-ended",
        "gandiva_slurm/node/restorer.py:Restorer._take_over",
        "image.restoring, image.root = [], ",
        "image.root = ",
        "A gandivad that is killed after a restore has the next one end what was restored.",
        (_ELSEWHERE + "test_one_that_was_restored_is_told_so_again_and_not_ended",),
    ),
    Variant(
        "image-unfit-answered",
        "gandiva_slurm/node/sock.py:Speech._answer",
        "if isinstance(err, Elsewhere) and not is_roots:",
        "if False:",
        "A task that waits to be restored elsewhere begins, without GPUs.",
        (_ELSEWHERE + "test_on_the_socket_of_all_it_gets_no_answer_while_it_waits",),
    ),
    Variant(
        "image-unfit-loop",
        "gandiva_slurm/engine/lifecycle/unrestored.py:_may_leave",
        "return is_heard and is_ours and record.travels.wait_until_ns <= at.now_ns",
        "return True",
        "A job that Slurm does not requeue is told to leave for ever, and never begins anew.",
        ("tests/unit/test_engine_unrestored.py::test_a_requeue_that_slurm_refuses_is_no_loop",),
    ),
    Variant(
        "requeue-forgotten",
        "gandiva_slurm/engine/lifecycle/forgotten.py:take_end",
        "if not was_requeued and not (is_killed and (was_asked or is_waiting)):",
        "if True:",
        "A job that a requeue has killed has ended where slurmctld has forgotten the requeue.",
        ("tests/unit/test_engine_forgotten.py::test_it_is_requeued_once_more_and_goes_on",),
    ),
    Variant(
        "requeue-kills-by-nine-alone",
        "gandiva_slurm/engine/lifecycle/forgotten.py:take_end",
        "event.exit_code in KILLED",
        'event.exit_code == "0:9"',
        "A job that a forgotten requeue has ended by SIGTERM has ended for good.",
        ("tests/unit/test_engine_forgotten.py::test_a_requeue_tells_it_to_terminate_before_it_kills_it",),
    ),
    Variant(
        "image-claimed-before-it-is-written-down",
        "gandiva_slurm/node/restorer.py:Restorer._begin",
        (
            "        resident.image.restoring = running.to_json()\n        self._node.save()\n"
            "        try:\n            images.claim"
        ),
        "        try:\n            images.claim",
        "A gandivad that is killed behind the claim of an image leaves its job to begin anew.",
        (
            "tests/unit/test_restorer_elsewhere.py::"
            "test_a_gandivad_that_is_killed_beside_its_claim_has_written_down_where_the_image_is",
        ),
    ),
    Variant(
        "image-lost-before",
        "gandiva_slurm/node/restorer.py:Restorer.keep_image",
        "if is_there or (found is not None and found[0] != key):",
        "if False:",
        "A task whose gandivad was killed before its restore begins anew.",
        (_ELSEWHERE + "test_a_task_whose_gandivad_was_killed_before_its_restore_waits_too",),
    ),
    Variant(
        "image-unfit-again",
        "gandiva_slurm/engine/lifecycle/placing.py:closed_nodes",
        "if unable and any(could_take(at, record, name) for name in nodes.keys() - unable - closed):",
        "if False:",
        "A job goes back to the node that could not restore it.",
        ("tests/unit/test_engine_unrestored.py::test_it_goes_on_on_the_next_node_and_none_is_tried_twice",),
    ),
    Variant(
        "image-unfit-everywhere",
        "gandiva_slurm/engine/lifecycle/placing.py:closed_nodes",
        "if unable and any(could_take(at, record, name) for name in nodes.keys() - unable - closed):",
        "if unable:",
        "A job that no node could restore is never started again.",
        (
            "tests/unit/test_engine_unrestored.py::test_where_there_is_no_other_node_any_more_it_is_started_anywhere",
        ),
    ),
    Variant(
        "image-original-waits",
        "gandiva_slurm/node/imager.py:Imager._look_at",
        "elif image.is_whole and not self._is_planned(resident):",
        "elif False:",
        "What goes on elsewhere, and is frozen here, holds its requeue up until Slurm kills it.",
        ("tests/unit/test_node_images.py::test_what_goes_on_elsewhere_is_ended_when_slurm_says_so",),
    ),
    Variant(
        "image-original-ended-early",
        "gandiva_slurm/node/leaving.py:end",
        "if any(map(procs.is_told_to_end, tasks)):",
        "if True:",
        "A job is ended here before Slurm has requeued it: it counts as failed.",
        ("tests/unit/test_node_images.py::test_what_goes_on_elsewhere_is_ended_when_slurm_says_so",),
    ),
    Variant(
        "image-of-what-runs-on",
        "gandiva_slurm/node/image_task.py:why_not",
        "if resident.image.is_blind and not node.freezer.groups(resident):",
        "if False:",
        "A program without a client runs on behind its image: what it does is done twice.",
        ("tests/unit/test_kept_images.py::test_one_without_a_client_has_one_where_it_can_be_frozen",),
    ),
    Variant(
        "try-image-any-losses",
        "gandiva_slurm/cli/image_trial.py:compare",
        "if place is None and len(alone) >= len(moved):",
        "if True:",
        "`gandiva try` proves images of a script that computes something else behind them.",
        ("tests/unit/test_image_trial.py::test_losses_that_differ_anywhere_are_the_verdict",),
    ),
    Variant(
        "card-not-proven",
        "gandiva_slurm/node/image_cards.py:_why_not_proven",
        'return "" if is_proven else why',
        'return ""',
        "GPU programs are moved by a driver that nobody has tried.",
        (_CARDS + "test_a_proof_is_of_one_driver_and_one_model",),
    ),
    Variant(
        "card-not-written-down",
        "gandiva_slurm/node/image_cards.py:note_asked",
        "if not away.is_out:",
        "if False:",
        "What the driver keeps of a job is forgotten where no image is made: it stays off its GPU.",
        (_CARDS + "test_what_the_driver_may_keep_is_written_down_before_it_is_asked",),
    ),
    Variant(
        "card-still-open",
        "gandiva_slurm/node/image_cards.py:take_off",
        'if left := next(filter(None, map(imageable.open_card, pids)), ""):',
        'if left := "":',
        "An image is made of processes that have a GPU open.",
        (
            _CARDS
            + "test_a_process_that_has_the_gpu_open_all_the_same_is_named_and_the_driver_keeps_the_rest",
        ),
    ),
    Variant(
        "card-of-any-model",
        "gandiva_slurm/node/image_cards.py:why_not_here",
        "if models != those:",
        "if False:",
        "A GPU program is restored for GPUs of another model.",
        (_CARDS + "test_it_goes_on_on_gpus_of_the_same_model_by_the_same_driver",),
    ),
    Variant(
        "card-without-a-map",
        "gandiva_slurm/node/driver_checkpoint.py:Driver.restore",
        "arguments = ctypes.byref(RestoreArgs(listed, len(pairs))) if pairs else None",
        "arguments = None",
        "The driver is not told which GPU stands for the one that a program was on.",
        (
            "tests/unit/test_driver_checkpoint.py::test_it_comes_back_on_the_gpus_that_stand_for_those_it_was_on",
        ),
    ),
    Variant(
        "card-of-any-type",
        "gandiva_slurm/engine/lifecycle/placing.py:closed_nodes",
        "if each.node.gpu_type != kept} if kept else set[str]()",
        "if each.node.gpu_type != kept} if False else set[str]()",
        "A GPU program is moved to GPUs on which its image cannot go on, and back.",
        ("tests/unit/test_engine_unrestored.py::test_a_gpu_program_goes_on_on_gpus_of_its_type_alone",),
    ),
    Variant(
        "carried-anothers-file",
        "gandiva_slurm/node/put_files.py:_put",
        "if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():",
        "if not stat.S_ISREG(status.st_mode):",
        "A moved job maps a file that another user may change.",
        ("tests/unit/test_carried.py::test_what_is_anothers_or_no_file_stays",),
    ),
    Variant(
        "carried-into-anyones-directory",
        "gandiva_slurm/node/put_files.py:_directory",
        "if not carried.is_safe(os.fstat(below), os.getuid()):",
        "if False:",
        "A moved job's file is put where another user may replace it.",
        ("tests/unit/test_carried.py::test_its_directory_is_its_own",),
    ),
    Variant(
        "carried-over-the-users-file",
        "gandiva_slurm/node/put_files.py:_make_room",
        "if (file.path, status.st_ino, status.st_mtime_ns, status.st_size) in job.left:",
        "if True:",
        "A file of the user's that has the name of a moved job's is lost.",
        (
            "tests/unit/test_carried.py"
            "::test_what_its_user_has_there_is_set_aside_and_what_it_left_itself_is_not",
        ),
    ),
    Variant(
        "carried-as-it-becomes",
        "gandiva_slurm/node/carried.py:copy",
        "if count != file.size or os.fstat(source).st_ino != file.inode:",
        "if False:",
        "A file that is written meanwhile is in an image of processes that have not written it.",
        ("tests/unit/test_carried.py::test_they_are_copied_as_they_stand_and_not_by_a_link",),
    ),
)
