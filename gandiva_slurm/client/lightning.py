"""Lightning: with `Trainer(callbacks=[GandivaCallback()])` a training can be moved.

Lightning writes it as `hpc_ckpt_1.ckpt` into a checkpoint of ours and is given that to load when the job is
started again; its own requeueing on a signal is off meanwhile, if it is the script that put the callback in.
A boundary is the top of its batch loop, behind all hooks and validations: no hook of Lightning's is called
there, so the loop is wrapped.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from typing import Any, Iterator, List, Optional, Tuple

import torch

from gandiva_slurm.client.frameworks import FOR_A_TRY
from gandiva_slurm.client.keeper import Keeper
from gandiva_slurm.client.notice import say

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


#: Lightning's ways to train that this was run with.
STRATEGIES: Tuple[str, ...] = ("SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy")

#: Callbacks that run the loop a few times before the training, in the midst of its begin.
TUNERS = frozenset(("LearningRateFinder", "BatchSizeFinder"))


class GandivaCallback(Callback):  # type: ignore[misc]
    """Lets a training be parked and saved between two batches; does nothing outside Gandiva."""

    def __init__(self, is_asked: bool = True) -> None:
        """Look for nothing before a training is set up; `is_asked=False`: the script did not put it in."""
        self._keeper: Optional[Keeper] = None
        self._is_asked = is_asked

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Look for a checkpoint, and stand at the top of the batch loop from now on."""
        if stage != "fit" or "advance" in vars(trainer.fit_loop.epoch_loop):  # where another one stands
            return
        save, tell = functools.partial(_save, trainer), lambda: {"step": trainer.global_step}
        keeper = Keeper(_package(trainer), save, tell)
        self._keeper = None if keeper.is_alone else keeper
        if self._keeper is None:
            return
        _wrap(trainer.fit_loop.epoch_loop, "advance", functools.partial(_stand, trainer, keeper))
        if keeper.saved is not None:
            _wrap(trainer._checkpoint_connector, "resume_start", functools.partial(_load, keeper))
        if self._is_asked and keeper.can_save:
            _disarm(trainer, keeper)
        keeper.go_on()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The first pass over the data is begun behind this, and no hook is nearer to it."""
        keeper = self._keeper
        if keeper is None:
            return
        keeper.see(pl_module, *trainer.optimizers)
        if keeper.saved is None:
            keeper.begin_pass([])
        else:
            keeper.put_began([])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Go to where it was saved, be it in the middle of a pass."""
        keeper = self._keeper
        if keeper is None or keeper.saved is None:
            return
        # A loader with a state has got it back from Lightning.
        if not all(hasattr(one, "load_state_dict") for one in _loaders(trainer)):
            _replay(trainer, keeper, keeper.saved["done"])
        keeper.put_now()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """A later pass is begun behind this; the first one was before."""
        is_first = getattr(trainer.fit_loop, "is_resuming", False)  # 2.5.0 begins each pass anew
        if self._keeper is not None and trainer.current_epoch > 0 and not is_first:
            self._keeper.begin_pass(_loaders(trainer))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave Lightning's loop as it was."""
        if stage == "fit":
            self.leave(trainer)

    def leave(self, trainer: Any) -> None:
        """Leave Lightning's loop as it was, however the training ended."""
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper = None
            vars(trainer.fit_loop.epoch_loop).pop("advance", None)
            vars(trainer._checkpoint_connector).pop("resume_start", None)


def why_not(trainer: Any) -> str:
    """Return why what this Trainer trains cannot be moved; "" where it can."""
    names = {type(callback).__name__ for callback in trainer.callbacks}
    for tuner in names.intersection(TUNERS):
        return f"{tuner} {FOR_A_TRY}"
    strategy = type(trainer.strategy).__name__
    return "" if strategy in STRATEGIES else f"it trains by {strategy}, known are {' and '.join(STRATEGIES)}"


@contextlib.contextmanager
def attached(trainer: Any, own: Any, args: Any, options: Any) -> Iterator[Any]:
    """Attach one `fit`, by the script's own callback if there is one; yield what it is to be begun with."""
    callback = own or GandivaCallback(is_asked=False)
    if own is None:
        trainer.callbacks.append(callback)
    try:
        yield args, options
    finally:
        callback.leave(trainer)
        if own is None and callback in trainer.callbacks:
            trainer.callbacks.remove(callback)


def _package(trainer: Any) -> str:
    """Return the package that its Trainer is of: lightning, or pytorch_lightning."""
    packages = {kind.__module__.split(".")[0] for kind in type(trainer).__mro__}
    return "pytorch_lightning" if "pytorch_lightning" in packages else "lightning"


def _replay(trainer: Any, keeper: Keeper, batches: int) -> None:
    """Leave the first batches of the pass behind."""
    fetcher = trainer.fit_loop._data_fetcher
    if trainer.current_epoch > 0:  # else the pass was begun as it was then, in on_fit_start
        keeper.put_began(_loaders(trainer))
        iter(fetcher)
    # Of a stream it has read one batch ahead. Else Lightning itself sets its count, in a moment.
    source = fetcher if getattr(fetcher, "batches", None) else fetcher.iterator
    for _ in range(batches):
        next(source)


def _wrap(owner: Any, name: str, function: Any) -> None:
    """Let `function`, given the owner's own method first, stand for it."""
    setattr(owner, name, functools.partial(function, functools.partial(getattr(type(owner), name), owner)))


def _stand(trainer: Any, keeper: Keeper, advance: Any, *args: Any) -> Any:
    progress = trainer.fit_loop.epoch_loop.batch_progress
    done = progress.current.completed
    # Gradients of an accumulation are in no checkpoint of Lightning's.
    if done % trainer.accumulate_grad_batches == 0:
        keeper.boundary(progress.total.completed, done)
    return advance(*args)


def _save(trainer: Any, path: str) -> None:
    """Do what trainer.save_checkpoint does, but for its barrier: the first rank, which writes, may fail."""
    checkpoint = trainer._checkpoint_connector.dump_checkpoint(False)
    trainer.strategy.save_checkpoint(checkpoint, _file(path))


def _load(keeper: Keeper, resume_start: Any, theirs: Any = None, **options: Any) -> Any:
    """Load what was saved, whatever the script names; but for what it has saved itself since."""
    if keeper.saved is None or _step_of(theirs) > keeper.saved.get("told", {}).get("step", 0):
        say(f"goes on from {theirs} after all, which was saved later")
        keeper.saved = None
        return resume_start(theirs, **options)
    # It is the user's own file, which may hold whatever the script's callbacks put into it.
    return resume_start(_file(keeper.path), **{name: False for name in options if name == "weights_only"})


def _step_of(path: Any) -> int:
    """Return how far the training had come that a file of Lightning's was saved from; 0: not known."""
    try:
        found = torch.load(path, map_location="meta", mmap=True, weights_only=False)
        return int(found["global_step"])
    except Exception:  # none, no local file, or none of Lightning's: it has a word to say itself
        return 0


def _disarm(trainer: Any, keeper: Keeper) -> None:
    """Let Lightning's signal for a requeue save, and not requeue: two would requeue the same job."""
    environment = trainer._accelerator_connector.cluster_environment
    if not getattr(environment, "auto_requeue", False):
        return
    environment.auto_requeue = False
    number = environment.requeue_signal or signal.SIGUSR1
    handler = signal.getsignal(number)
    is_ours = getattr(handler, "__func__", None) is Keeper.save_soon
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and (is_ours or handler is signal.SIG_DFL):  # which would end the job
        signal.signal(number, keeper.save_soon)
    say(f"Lightning does not requeue this job on {signal.Signals(number).name}: it is saved then")


def _file(path: str) -> str:
    return os.path.join(path, "hpc_ckpt_1.ckpt")


def _loaders(trainer: Any) -> List[Any]:
    given = trainer.train_dataloader
    if isinstance(given, dict):
        return list(given.values())
    return list(given) if isinstance(given, (list, tuple)) else [given]
