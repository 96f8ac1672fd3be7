"""PipeSwitch's way back for tier `torch`: layers arrive in the order they compute in, and begin meanwhile.

Off unless GANDIVA_LAYERED is 1, for it is right only where parameters are read by calling their modules, as
`gandiva try` finds out. A layer's call waits for its parameters, an optimizer's step, and whatever runs
without gradients, for all; gradients and what belongs to no layer are there before the script goes on.
Source: PipeSwitch (OSDI 2020).
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Set, Tuple

#: Copies are begun together until they are so many bytes: each has a price of its own.
GROUP_BYTES = 16 << 20


class Group(NamedTuple):
    """What is copied together, and the modules that wait for it."""

    moved: List[Any]
    modules: Set[int]


def is_wanted() -> bool:
    """Return True where the user asks for it, and nothing was compiled: compiled code calls no modules."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return os.environ.get("GANDIVA_LAYERED") == "1" and not (dynamo and dynamo.counters.get("frames"))


def split(moved: Sequence[Any], things: Sequence[Any], torch: Any) -> Tuple[List[Any], List[Group]]:
    """Return what must be there first, and the groups that may come later, in the order of the layers.

    `moved` have a storage and a size; `things` are modules as they first ran, and optimizers.
    """
    left = {one.storage._cdata: one for one in moved}
    first = [left.pop(key) for key in _synced(things, torch) if key in left]
    groups: List[Group] = []
    for module in (thing for thing in things if isinstance(thing, torch.nn.Module)):
        tensors = [*module._parameters.values(), *module._buffers.values()]
        _add(groups, [left.pop(key) for key in _storages(tensors, torch) if key in left], id(module))
    for optimizer in (thing for thing in things if isinstance(thing, torch.optim.Optimizer)):
        state = [value for kept in optimizer.state.values() for value in kept.values()]
        _add(groups, [left.pop(key) for key in _storages(state, torch) if key in left], 0)
    return first + list(left.values()), groups


def _synced(things: Sequence[Any], torch: Any) -> List[int]:
    """Return the storages of buffers that DistributedDataParallel sends around before any layer computes."""
    gangs = [thing for thing in things if isinstance(thing, torch.nn.parallel.DistributedDataParallel)]
    return _storages([value for gang in gangs for value in gang.buffers()], torch)


def _add(groups: List[Group], found: List[Any], module: int) -> None:
    if not found:
        return
    if not groups or sum(one.size for one in groups[-1].moved) >= GROUP_BYTES:
        groups.append(Group([], set()))
    groups[-1].moved.extend(found)
    groups[-1].modules.add(module)


def _storages(tensors: Sequence[Any], torch: Any) -> List[int]:
    """Return the storages of plain tensors, each once; what is wrapped is not looked into."""
    plain = [tensor for tensor in tensors if type(tensor) in (torch.Tensor, torch.nn.Parameter)]
    plain = [tensor for tensor in plain if tensor.layout is torch.strided]
    return list(dict.fromkeys(tensor.untyped_storage()._cdata for tensor in plain))


class Arrival:
    """Groups that are on their way; `end` is called when all are there."""

    def __init__(self, torch: Any, device: Any, end: Callable[[], None]) -> None:
        """Nothing is on its way yet."""
        self._torch, self._device, self._end = torch, device, end
        #: By module: what its calls wait for.
        self._marks: Dict[int, Any] = {}
        self._last: Any = None
        #: What is copied to: given back by the script meanwhile, it would be another's when a copy comes.
        self._kept: Sequence[Group] = ()
        self._hooks: List[Any] = []

    def begin(self, groups: Sequence[Group], copy: Callable[[Group], None]) -> None:
        """Begin to copy the groups, one after the other."""
        modules, optimizers = self._torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
        self._hooks = [
            modules.register_module_forward_pre_hook(self._before_forward),
            optimizers.register_optimizer_step_pre_hook(lambda *_: self.finish()),
        ]
        self._kept = groups
        marks = self._device.begin_copies([functools.partial(copy, group) for group in groups])
        for group, mark in zip(groups, marks):  # noqa: B905 (3.8)
            self._marks.update((module, mark) for module in group.modules)
        self._last = marks[-1]

    def finish(self) -> None:
        """Wait until all is there."""
        if self._last is None:
            return
        self._device.settle(self._last)
        last, self._last, self._marks, self._kept = self._last, None, {}, ()
        self._device.wait_for(last)
        while self._hooks:
            self._hooks.pop().remove()
        self._end()

    def _before_forward(self, module: Any, args: Any) -> None:
        is_plain = module.training and self._torch.is_grad_enabled()
        if self._last is None:
            return
        if not is_plain or self._device.is_there(self._last):
            self.finish()
            return
        # At each call, not at the first alone: a later one may be on another stream.
        mark = self._marks.get(id(module))
        if mark is not None:
            self._device.wait_for(mark)
