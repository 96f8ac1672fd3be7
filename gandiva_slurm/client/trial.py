"""Under `gandiva try` and `gandiva doctor`: note down what the script computes, and what it consists of.

Every backward's loss is appended to a file, bit for bit, one a line; behind it SAVED where it is one of a
training that can be saved, and before the first of a process BEGIN. After some optimizer steps the facts are
written beside it. Installed by the hook where GANDIVA_TRIAL names the file.
"""

from __future__ import annotations

import json
import sys
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, List

from gandiva_slurm.client import accelerator, device, nccl
from gandiva_slurm.client.identity import find_identity
from gandiva_slurm.client.rank import this_rank
from gandiva_slurm.wire.page import KIND_RUN

#: Marks in the file of losses.
BEGIN, SAVED = "begin\n", " saved"

#: The facts are written when so many optimizer steps have been made.
FACTS_AFTER = 10
#: Which framework it is that trains, by what is imported of us when it does (client/frameworks.py).
_ADAPTERS = {"gandiva_slurm.client.hf": "transformers", "gandiva_slurm.client.lightning": "lightning"}


def watch(module: ModuleType, path: str) -> None:
    """Note losses and facts of this process; `module` is torch.optim.optimizer."""
    autograd = module.torch.autograd
    autograd.backward = _noted(autograd.backward, path)
    optimizers: List[Callable[[], Any]] = []
    steps = [0]

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        steps[0] += 1
        if all(known() is not optimizer for known in optimizers):
            optimizers.append(weakref.ref(optimizer))
        if steps[0] == FACTS_AFTER:
            with open(_of_rank(path) + ".facts", "w", encoding="utf-8") as file:
                json.dump(_facts(module.torch, [known() for known in optimizers]), file)

    after._torchdynamo_disable = True  # type: ignore[attr-defined]
    module.register_optimizer_step_post_hook(after)


def _of_rank(path: str) -> str:
    """Return this rank's file; launchers tell the rank in ways of their own, so ask late."""
    return f"{path}.{find_identity().rank}"


def _noted(backward: Callable[..., None], path: str) -> Callable[..., None]:
    out: List[Any] = []

    def noted(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if not out:
            out.append(open(_of_rank(path), "a", buffering=1, encoding="ascii"))  # noqa: SIM115 - as long as the script
            out[0].write(BEGIN)
        rank = this_rank()
        mark = SAVED if rank is not None and rank.kind == KIND_RUN else ""
        first = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
        out[0].write(float(first.detach().double().sum()).hex() + mark + "\n")
        backward(tensors, *args, **kwargs)

    return noted


def _facts(torch: Any, optimizers: List[Any]) -> Dict[str, Any]:
    known = [optimizer for optimizer in optimizers if optimizer is not None]
    cuda = accelerator.in_use()
    return {
        "optimizers": [_of_optimizer(torch, optimizer) for optimizer in known],
        "live": cuda.memory_allocated() if cuda else 0,
        "peak": cuda.max_memory_allocated() if cuda else 0,
        "device": cuda.get_device_name() if cuda else "",
        "threads": torch.get_num_threads(),
        "benchmark": bool(cuda and torch.backends.cudnn.benchmark),
        "torch": str(torch.__version__),
        "torch_threads": _threads_in_torch(),
        "gang": nccl.gang(),
        "graphs": bool(cuda and device.has_pools(cuda)),
        "framework": next((_ADAPTERS[name] for name in _ADAPTERS if name in sys.modules), ""),
    }


def _of_optimizer(torch: Any, optimizer: Any) -> Dict[str, Any]:
    values = [value for group in optimizer.param_groups for value in group["params"]]
    state = [thing for kept in optimizer.state.values() for thing in kept.values() if torch.is_tensor(thing)]
    return {
        "name": type(optimizer).__name__,
        "tensors": len(values),
        "parameter_bytes": sum(value.numel() * value.element_size() for value in values),
        "state_bytes": sum(thing.numel() * thing.element_size() for thing in state),
    }


def _threads_in_torch() -> int:
    """Count the other threads that are inside torch now: memory cannot be taken from under them."""
    mine = sys._getframe()
    return sum(_is_in_torch(frame) for frame in sys._current_frames().values() if frame is not mine) - 1


def _is_in_torch(frame: Any) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("torch."):
            return True
        frame = frame.f_back
    return False
