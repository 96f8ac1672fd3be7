"""Known-wrong variants. Frameworks without a line: put in once, resumed, and never guessed at."""

from __future__ import annotations

from tests.variant_kit import Variant

_TESTS = "tests/attach/test_attached.py::"
_ITSELF = _TESTS + "test_it_goes_on_by_itself_to_the_last_bit"
_TRAINER = "tests/attach/test_frameworks.py::test_trainer_goes_on_to_the_last_bit"

VARIANTS = (
    Variant(
        "callback-beside-the-scripts-own",
        "gandiva_slurm/client/frameworks.py:_put_in",
        "own = next((one for one in callbacks if _is_ours(one)), None)",
        "own = None",
        "A script that has put the callback in gets a second one.",
        (_ITSELF + "[True-transformers]",),
    ),
    Variant(
        "trainer-not-resumed",
        "gandiva_slurm/client/hf.py:attached",
        'args, options = args[1:], {**options, "resume_from_checkpoint": path}',
        "pass",
        "A Trainer that was moved begins anew.",
        (_ITSELF + "[False-transformers]",),
    ),
    Variant(
        "lightning-not-resumed",
        "gandiva_slurm/client/lightning.py:GandivaCallback.setup",
        '_wrap(trainer._checkpoint_connector, "resume_start", functools.partial(_load, keeper))',
        "pass",
        "What Lightning trains begins anew when it was moved.",
        (_ITSELF + "[False-lightning]",),
    ),
    Variant(
        "framework-of-any-version",
        "gandiva_slurm/client/frameworks.py:why_unknown",
        "if release and release[1] in framework.releases:",
        "if release:",
        "A release that nobody has run with is attached.",
        (_TESTS + "test_unknown_version_is_not_guessed_at",),
    ),
    Variant(
        "framework-by-any-way-to-train",
        "gandiva_slurm/client/frameworks.py:_put_in",
        "why = adapter.why_not(trainer)",
        'why = ""',
        "Shards that are not known are saved by one rank.",
        (_TESTS + "test_ways_to_train_that_are_not_known_are_not_moved",),
    ),
    Variant(
        "second-training-moved",
        "gandiva_slurm/client/keeper.py:Keeper.__init__",
        "is_later = not is_alone and not vault.is_first()",
        "is_later = False",
        "A script that is moved in its second training does its first one over.",
        (_TESTS + "test_second_training_is_not_moved_and_says_so",),
    ),
    Variant(
        "own-later-checkpoint-left-out",
        "gandiva_slurm/client/hf.py:_is_later",
        "return bool(theirs) and _step_of(theirs) > _step_of(ours)",
        "return False",
        "A node that dies takes with it what the script has saved since it was moved.",
        (_TESTS + "test_what_the_script_has_saved_later_is_where_it_goes_on",),
    ),
    Variant(
        "lightnings-later-checkpoint-left-out",
        "gandiva_slurm/client/lightning.py:_load",
        'if keeper.saved is None or _step_of(theirs) > keeper.saved.get("told", {}).get("step", 0):',
        "if keeper.saved is None:",
        "What Lightning has saved when it requeued itself is left for something older.",
        (_TESTS + "test_what_lightning_has_saved_later_is_where_it_goes_on",),
    ),
    Variant(
        "requeueing-off-unasked",
        "gandiva_slurm/client/lightning.py:GandivaCallback.setup",
        "if self._is_asked and keeper.can_save:",
        "if True:",
        "A script that goes on beyond its time limit by Lightning's requeueing ends there.",
        (_TESTS + "test_lightning_requeues_as_the_script_has_it",),
    ),
    Variant(
        "callback-left-behind",
        "gandiva_slurm/client/hf.py:attached",
        "        callback.leave()\n",
        "",
        "A training that failed leaves a rank that says it can be saved.",
        (_TESTS + "test_a_training_that_fails_leaves_the_trainer_as_it_was",),
    ),
    Variant(
        "patience-forgotten",
        "gandiva_slurm/client/hf.py:_put_back",
        'vars(callback).update(state.get("attributes", {}))',
        "pass",
        "A Trainer's EarlyStopping counts anew after each move.",
        (_TESTS + "test_patience_comes_back",),
    ),
    Variant(
        "logs-counted-anew",
        "gandiva_slurm/client/hf.py:_put_back",
        "setattr(trainer, name, value.to(trainer.args.device) if is_tensor else value)",
        "pass",
        "The mean losses that a Trainer logs differ after a move.",
        (_TRAINER + "[as it is]",),
    ),
    Variant(
        "batches-held-read-otherwise",
        "gandiva_slurm/client/hf_reads.py:Reads._noting",
        "rng.put(self._again[0], [])",
        "pass",
        "Data that is drawn as it is read comes out differently in the batches that were held.",
        (_TRAINER + "[drawing, accumulating]",),
    ),
    Variant(
        "workers-generators-left-behind",
        "gandiva_slurm/client/hf_reads.py:Reads._begin_behind",
        'left_out = count if getattr(loader, "num_workers", 0) else min(2, count)',
        "left_out = min(2, count)",
        "Loader workers draw what they drew at the pass's begin.",
        (_TRAINER + "[drawing in workers]",),
    ),
    Variant(
        "streams-second-pass-moved",
        "gandiva_slurm/client/hf.py:GandivaCallback.on_epoch_begin",
        "if self._passes > 1 and keeper.can_save and not has_length(loaders[0]):",
        "if False:",
        "A Trainer that is moved in a stream's second pass ends at once.",
        (_TESTS + "test_stream_is_moved_in_its_first_pass",),
    ),
    Variant(
        "tuners-tries-saved",
        "gandiva_slurm/client/lightning.py:why_not",
        "for tuner in names.intersection(TUNERS):",
        "for tuner in ():",
        "A tuner's tries are taken for the script's first training.",
        (_TESTS + "test_a_tuners_tries_are_no_training",),
    ),
    Variant(
        "unmoved-for-nothing",
        "gandiva_slurm/node/leaving.py:unmoved",
        "if is_movable(resident) or is_imageable(resident) or is_untouched(resident):",
        "if False:",
        "A job that can be moved is said to be not movable.",
        ("tests/unit/test_node_leaving.py::test_its_word_on_why_it_cannot_be_moved_is_told",),
    ),
)
