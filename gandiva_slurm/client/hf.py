"""Hugging Face: a Trainer with a GandivaCallback can be moved.

    callback = GandivaCallback()
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.last_checkpoint())

The Trainer writes its own kind of checkpoint, into one of ours, and when it goes on from it skips the batches
that were done. A boundary is the begin of an optimizer step, behind the evaluation of the one before: the
step's batches have been read, and one more. So the random generators are noted before each read (hf_reads).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from types import FrameType
from typing import Any, Dict, Iterator, Optional

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import SaveStrategy, get_last_checkpoint, has_length

from gandiva_slurm.client.hf_reads import Reads
from gandiva_slurm.client.keeper import Keeper
from gandiva_slurm.client.notice import say

#: What the Trainer counts for its logs, and keeps in no checkpoint.
_COUNTED = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")


class GandivaCallback(TrainerCallback):  # type: ignore[misc]
    """Lets a training be parked and saved between two optimizer steps; does nothing outside Gandiva."""

    def __init__(self) -> None:
        """Look for nothing before the training begins."""
        self._keeper: Optional[Keeper] = None
        self._trainer: Any = None
        self._reads: Optional[Reads] = None
        #: Begun in this process.
        self._passes = 0

    def last_checkpoint(self) -> Optional[str]:
        """Return where this job's training was saved, for `trainer.train`; None where it begins."""
        keeper = self._opened()
        if keeper.saved is None:
            return None
        # Some Trainers write more than the checkpoint itself, such as a model's card.
        found = sorted(name for name in os.listdir(keeper.path) if name.startswith("checkpoint-"))
        return os.path.join(keeper.path, *found[:1])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stand between optimizer steps from now on."""
        keeper = self._opened()
        if keeper.saved is not None and keeper.saved["done"] != state.global_step:
            say("begins anew; next: trainer.train(resume_from_checkpoint=callback.last_checkpoint())")
            keeper.saved = None
        keeper.see(kwargs.get("model"), kwargs.get("optimizer"))
        self._trainer = _calling_trainer()
        told: Dict[str, Any] = keeper.saved.get("told", {}) if keeper.saved is not None else {}
        if told:
            _put_back(self._trainer, told)
        if keeper.can_save and self._reads is None:  # it begins again where a batch was too large for memory
            self._reads = Reads(self._trainer, keeper)
            self._reads.begin(told.get("reads", []))
        keeper.go_on()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A pass over the data is begun behind this."""
        keeper, loaders = self._opened(), [kwargs.get("train_dataloader")]
        self._passes += 1
        if self._passes > 1 and keeper.can_save and not has_length(loaders[0]):
            keeper.give_up("its data has no length, and this is not its first pass over it")
        if self._reads is not None:
            self._reads.begin_pass(loaders)
        if keeper.saved is not None:
            keeper.put_began(loaders)
        else:
            keeper.begin_pass(loaders)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stand at the begin of an optimizer step; its batches have been read."""
        keeper = self._opened()
        if keeper.saved is not None:
            keeper.put_now()
        keeper.boundary(state.global_step, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let the next training look for checkpoints of its own."""
        self._opened()
        self.leave()

    def begin_anew(self) -> None:
        """Leave out what was saved."""
        self._opened().saved = None

    def leave(self) -> None:
        """Leave the Trainer as it was, however the training ended."""
        if self._keeper is not None:
            self._keeper.stop()
        if self._reads is not None:
            self._reads.leave()
        self._keeper = self._trainer = self._reads = None
        self._passes = 0

    def _opened(self) -> Keeper:
        if self._keeper is None:
            self._keeper = Keeper("transformers", self._save, self._tell)
        return self._keeper

    def _tell(self) -> Dict[str, Any]:
        found = {name: getattr(self._trainer, name) for name in _COUNTED if hasattr(self._trainer, name)}
        return {"counted": found, "reads": self._reads.noted() if self._reads is not None else []}

    def _save(self, path: str) -> None:
        """Let the Trainer save itself there instead of in its output directory, which is the script's."""
        args = self._trainer.args
        # With a strategy it looks for its best model, behind a barrier; the rank that writes may have failed.
        ours: Dict[str, Any] = {"output_dir": path, "save_strategy": SaveStrategy.NO}
        ours.update(push_to_hub=False, save_only_model=False)
        kept = {name: getattr(args, name) for name in ours}
        vars(args).update(ours)
        try:
            self._trainer._save_checkpoint(self._trainer.model, None)
        finally:
            vars(args).update(kept)


def why_not(trainer: Any) -> str:
    """Return why what this Trainer trains cannot be moved; "" where it can."""
    args = trainer.args
    ways = {
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "FSDP": trainer.is_fsdp_enabled,
        "DataParallel": args.n_gpu > 1,
        "a search for hyperparameters": getattr(trainer, "hp_search_backend", None) is not None,
        "a parallelism_config": getattr(trainer.accelerator, "parallelism_config", None) is not None,
    }
    way = next((name for name, is_on in ways.items() if is_on), "")
    return way and f"it trains by {way}, known are one rank and DistributedDataParallel"


@contextlib.contextmanager
def attached(trainer: Any, own: Any, args: Any, options: Any) -> Iterator[Any]:
    """Attach one `train`, by the script's own callback if there is one; yield what it is to be begun with."""
    callback, skips = own or GandivaCallback(), trainer.args.ignore_data_skip
    if own is None:
        trainer.add_callback(callback)
    try:
        path = callback.last_checkpoint()
        if path is not None:
            theirs = args[0] if args else options.get("resume_from_checkpoint")
            if not _is_later(trainer, theirs, path):
                args, options = args[1:], {**options, "resume_from_checkpoint": path}
                trainer.args.ignore_data_skip = False
            else:
                say(f"goes on from {theirs} after all, which was saved later")
                callback.begin_anew()
        yield args, options
    finally:
        trainer.args.ignore_data_skip = skips
        callback.leave()
        if own is None:
            trainer.remove_callback(callback)


def _is_later(trainer: Any, theirs: Any, ours: str) -> bool:
    """Return True where the script itself has saved the training since, and names that."""
    if theirs is True:
        theirs = get_last_checkpoint(trainer.args.output_dir)
    return bool(theirs) and _step_of(theirs) > _step_of(ours)


def _step_of(path: str) -> int:
    try:
        with open(os.path.join(path, "trainer_state.json"), encoding="utf-8") as file:
            return int(json.load(file)["global_step"])
    except (OSError, ValueError, KeyError):
        return 0


def _put_back(trainer: Any, told: Dict[str, Any]) -> None:
    """Give the Trainer what it counts for its logs, and its callbacks their state, such as a patience."""
    for name, value in told.get("counted", {}).items():
        is_tensor = hasattr(value, "to")
        setattr(trainer, name, value.to(trainer.args.device) if is_tensor else value)
    states: Dict[str, Any] = dict(trainer.state.stateful_callbacks or {})
    for callback in trainer.callback_handler.callbacks:
        state = states.get(type(callback).__name__)
        if isinstance(state, list):  # of several of a kind, in their order
            state = state.pop(0) if state else None
        if isinstance(callback, ExportableState) and state:
            vars(callback).update(state.get("attributes", {}))


def _calling_trainer() -> Any:
    """Find the Trainer that calls this callback, for it hands itself to none."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), Trainer):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None
