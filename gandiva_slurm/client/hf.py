"""Hugging Face: a Trainer with a GandivaCallback can be moved.

    callback = GandivaCallback()
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.last_checkpoint())

The Trainer writes its own kind of checkpoint, into one of ours, and when it goes on from it skips the batches
that were done. A boundary is the begin of an optimizer step, behind the evaluation of the one before.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, Optional

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import SaveStrategy

from gandiva_slurm.client.keeper import Keeper
from gandiva_slurm.client.notice import say


class GandivaCallback(TrainerCallback):  # type: ignore[misc]
    """Lets a training be parked and saved between two optimizer steps; does nothing outside Gandiva."""

    def __init__(self) -> None:
        """Look for nothing before the training begins."""
        self._keeper: Optional[Keeper] = None
        self._trainer: Any = None

    def last_checkpoint(self) -> Optional[str]:
        """Return where this job's training was saved, for `trainer.train`; None where it begins."""
        keeper = self._opened()
        return None if keeper.saved is None else os.path.join(keeper.path, *os.listdir(keeper.path)[:1])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stand between optimizer steps from now on."""
        keeper = self._opened()
        if keeper.saved is not None and keeper.saved["done"] != state.global_step:
            say("begins anew; next: trainer.train(resume_from_checkpoint=callback.last_checkpoint())")
            keeper.saved = None
        keeper.see(kwargs.get("model"), kwargs.get("optimizer"))
        self._trainer = _calling_trainer()
        keeper.go_on()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A pass over the data is begun behind this."""
        keeper, loaders = self._opened(), [kwargs.get("train_dataloader")]
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
        self._opened().stop()
        self._keeper = self._trainer = None

    def _opened(self) -> Keeper:
        if self._keeper is None:
            self._keeper = Keeper(self._save)
        return self._keeper

    def _save(self, path: str) -> None:
        """Let the Trainer save itself there instead of in its output directory, which is the script's."""
        args = self._trainer.args
        # With a strategy it looks for its best model, behind a barrier; the rank that writes may have failed.
        ours = {"output_dir": path, "push_to_hub": False, "save_strategy": SaveStrategy.NO}
        kept = {name: getattr(args, name) for name in ours}
        vars(args).update(ours)
        try:
            self._trainer._save_checkpoint(self._trainer.model, None)
        finally:
            vars(args).update(kept)


def _calling_trainer() -> Any:
    """Find the Trainer that calls this callback, for it hands itself to none."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), Trainer):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None
