"""Trainings that compile nothing, and start in half the time: torch's compiler is not imported.

An optimizer of torch imports the compiler when it is made, to tell it what it must not look into, and at each
step (`torch._compile`, `torch.optim.optimizer`); DDP imports it to ask what is to become of its buckets. It
takes a second of a processor, as long as torch itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

_NAME = "torch._dynamo"


class _Absent(ModuleType):
    """Stands for the compiler where there is nothing to compile; asked for anything else, it is imported."""

    #: What a process group and DDP ask of it: there is nothing to forget, and nothing is made of buckets.
    trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        """Return the function as it is: nothing looks into it."""
        return function

    def graph_break(self) -> None:
        """Do nothing: there is no graph."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)


def leave_compiler_out() -> None:
    """Keep optimizers and DDP from importing torch's compiler; whatever else needs it imports it as ever.

    A training that compiles its optimizer's step must not call this.
    """
    sys.modules.setdefault(_NAME, _Absent(_NAME))
