"""Pauses within a step: a rank that runs a part of the time only is looked at after each layer, too.

Without them its share holds over whole steps: within one that takes long it runs at full rate, and slows down
every step of the job beside it. A layer here is a module without modules of its own: after its forward, and
before its backward. Nothing of the script's is touched: torch calls us, and goes on.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any, Callable, List, Optional

from gandiva_slurm.client.guards import is_fit_to_park

#: Called between two layers of a step.
Pause = Callable[[], None]


class Layers:
    """Torch's hooks on all modules, while they are wanted."""

    def __init__(self, pause: Pause) -> None:
        """Nothing is hooked yet."""
        self._pause = pause
        self._handle: Any = None
        self._owner: Optional[int] = None

    def watch(self) -> None:
        """Call `pause` after each layer from now on; this thread's forward, and any backward.

        Not where anything was compiled: a compiled module would be compiled anew for the hook.
        """
        module = sys.modules.get("torch.nn.modules.module")
        register = getattr(module, "register_module_forward_hook", None)
        if register is None or _has_compiled():
            self.leave()
        elif self._handle is None:
            self._owner = get_ident()
            self._handle = register(self._after_forward)

    def leave(self) -> None:
        """Call it no more; a graph that is under way says nothing either."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        if module._modules or get_ident() != self._owner:
            return
        for tensor in _tensors(output):
            node = getattr(tensor, "grad_fn", None)
            if node is not None:
                node.register_prehook(self._before_backward)
                break
        self._step_aside()

    def _before_backward(self, gradients: Any) -> None:
        self._step_aside()

    def _step_aside(self) -> None:
        if self._handle is not None and is_fit_to_park():
            self._pause()

    # torch.compile must call the hooks, not trace into them.
    _after_forward._torchdynamo_disable = True  # type: ignore[attr-defined]
    _before_backward._torchdynamo_disable = True  # type: ignore[attr-defined]


def _tensors(output: Any) -> List[Any]:
    """Return what a layer returned, one or several."""
    if isinstance(output, dict):
        return list(output.values())
    return list(output) if isinstance(output, (tuple, list)) else [output]


def _has_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters.get("frames"))
