"""Frameworks without a line: a Trainer is saved and goes on, though its script knows nothing of us.

`install` is called when a module with a Trainer in it has just been imported (client/hook). It stands around
the one method that trains, `train` or `fit`; what overrides that and drives a loop of its own is left alone.
Nothing is guessed at: what was not run with is parked like any script, and said to be not movable (ADR 0043).
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Callable, Dict, NamedTuple, Tuple

from gandiva_slurm.client.errors import BadCheckpoint
from gandiva_slurm.client.rank import cannot_be_moved

#: Why a training is not moved that is none yet: another begins behind it.
FOR_A_TRY = "trains for a try, and starts again from where it began"
#: How to begin a training: with which arguments, positional and by name.
Arguments = Tuple[Tuple[Any, ...], Dict[str, Any]]


class Framework(NamedTuple):
    """Who has a Trainer, what trains, where its callbacks are, and which of our modules knows it."""

    package: str
    method: str
    callbacks: str
    adapter: str
    #: those that this was run with
    releases: Tuple[str, ...]


_LIGHTNING = ("fit", "callbacks", "lightning", ("2.5", "2.6"))
#: By the module that the Trainer is in.
FRAMEWORKS = {
    "transformers.trainer": Framework(
        "transformers", "train", "callback_handler.callbacks", "hf", ("5.23", "5.24")
    ),
    "lightning.pytorch.trainer.trainer": Framework("lightning", *_LIGHTNING),
    "pytorch_lightning.trainer.trainer": Framework("pytorch_lightning", *_LIGHTNING),
}


def install(module: ModuleType) -> None:
    """Stand around the method of this module's Trainer that trains, once."""
    framework = FRAMEWORKS[module.__name__]
    trains = getattr(module.Trainer, framework.method)
    if not hasattr(trains, "_gandiva_attaches"):
        setattr(module.Trainer, framework.method, _attaching(framework, trains))


def why_unknown(framework: Framework) -> str:
    """Return why a release of a framework is left alone, "" where it is one of those run with."""
    version = str(getattr(sys.modules[framework.package], "__version__", "of unknown version"))
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\.post\d+)?", version)
    if release and release[1] in framework.releases:
        return ""
    return f"{framework.package} {version}, known are {', '.join(framework.releases)}"


def _attaching(framework: Framework, trains: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(trains)
    def training(trainer: Any, *args: Any, **options: Any) -> Any:
        with contextlib.ExitStack() as stack:
            args, options = _put_in(framework, trainer, stack, (args, options))
            return trains(trainer, *args, **options)

    training._gandiva_attaches = True  # type: ignore[attr-defined]
    return training


def _put_in(
    framework: Framework, trainer: Any, stack: contextlib.ExitStack, given: Arguments
) -> Arguments:
    """Attach a training for as long as `stack` is open; return what it is to be begun with."""
    callbacks = operator.attrgetter(framework.callbacks)(trainer)
    own = next((one for one in callbacks if _is_ours(one)), None)
    why = why_unknown(framework)
    try:
        adapter = import_module(f"gandiva_slurm.client.{framework.adapter}") if not why else None
        if adapter is not None:
            why = adapter.why_not(trainer)
        if adapter is not None and not why:
            begin: Arguments = stack.enter_context(adapter.attached(trainer, own, *given))
            return begin
    except BadCheckpoint:
        raise
    except Exception as err:
        why = f"the client failed ({type(err).__name__}: {err})"
    if own is None:  # else the script's own word stands
        cannot_be_moved(why)
    return given


def _is_ours(callback: Any) -> bool:
    return any(kind.__module__.startswith("gandiva_slurm.client.") for kind in type(callback).__mro__)
