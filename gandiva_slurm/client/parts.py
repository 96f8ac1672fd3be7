"""What a training consists of besides its loop: models, optimizers, schedulers, scalers, each with its state.

Anything with `state_dict` and `load_state_dict` will do. Of a model more is kept than its state dict holds:
buffers that are not persistent, gradients (a checkpoint may fall between two of one accumulation), and which
parameters are frozen and which modules evaluate. Ranks of DistributedDataParallel have equal weights: rank 0
saves them for all.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, NamedTuple

from gandiva_slurm.client.errors import BadCheckpoint
from gandiva_slurm.client.reshard import reshard
from gandiva_slurm.client.shards import as_shard, is_shard, layout, local, put_optimizer, put_weights


class Part(NamedTuple):
    """One object of the script, and what to call it in a sentence."""

    name: str
    thing: Any


def parts_of(kind: str, given: Any) -> List[Part]:
    """Name what the script gave as its `kind`: nothing, one object, or a list or dict of them."""
    if isinstance(given, dict):
        named = [Part(f"{kind} {key!r}", thing) for key, thing in given.items()]
    elif isinstance(given, (list, tuple)):
        named = [Part(f"{kind} {number}", thing) for number, thing in enumerate(given)]
    else:
        named = [Part(kind, given)]
    named = [part for part in named if part.thing is not None]
    for part in named:
        if not (hasattr(part.thing, "state_dict") and hasattr(part.thing, "load_state_dict")):
            kind = type(part.thing).__name__
            raise TypeError(f"attach: the {part.name} is a {kind}, which has no state_dict")
    return named


def has_hidden_shards(parts: List[Part]) -> bool:
    """Return True where ranks hold shards that their state dicts gather (ZeRO, the first FSDP)."""
    kinds = {kind.__name__ for part in parts for kind in type(part.thing).__mro__}
    return bool(kinds & {"FullyShardedDataParallel", "ZeroRedundancyOptimizer"})


def are_replicas(parts: List[Part]) -> bool:
    """Return True when every model is DistributedDataParallel: all ranks have the same weights."""
    models = [part.thing for part in parts if _is_module(part.thing)]
    return bool(models) and all(_is_ddp(model) for model in models)


def capture(parts: List[Part], is_borrower: bool) -> Dict[str, Any]:
    """Return the state of every part; a borrower leaves out what it will take from rank 0."""
    return {part.name: _state(part.thing, is_borrower) for part in parts}


def borrow(own: Dict[str, Any], lent: Dict[str, Any]) -> Dict[str, Any]:
    """Return a borrower's state, completed by rank 0's."""
    whole = {}
    for name, state in own.items():
        missing = {key: lent[name][key] for key, value in state.items() if value is None}
        whole[name] = {**state, **missing}
    return whole


def deal(parts: List[Part], saved: Dict[str, Any], everyone: Callable[[], List[Dict[str, Any]]]) -> None:
    """Make a state saved by another number of ranks this rank's: shards are cut anew out of everyone's."""
    for part in parts:
        if part.name in saved:
            thing, name = part.thing.module if _is_ddp(part.thing) else part.thing, part.name
            reshard(thing, saved[name], lambda name=name: [state[name] for state in everyone()])  # type: ignore[misc]


def check(parts: List[Part], saved: Dict[str, Any]) -> None:
    """BadCheckpoint unless every part can take its state; nothing is changed."""
    for name in sorted({part.name for part in parts} ^ set(saved)):
        now = "no longer" if name in saved else "only now"
        raise BadCheckpoint(f"the script has changed since it was saved: attach() gets the {name} {now}")
    for part in parts:
        change = _change(part.thing, saved[part.name])
        if change:
            raise BadCheckpoint(f"the {part.name} has changed since it was saved: {change}")


def put(parts: List[Part], saved: Dict[str, Any]) -> None:
    """Give every part its state; models first, for optimizers look at their parameters."""
    for part in sorted(parts, key=lambda part: not _is_module(part.thing)):
        try:
            _put(part.thing, saved[part.name])
        except (ValueError, KeyError, RuntimeError, TypeError, AttributeError) as err:
            raise BadCheckpoint(f"the {part.name} does not take its saved state: {err}") from err


def _torch() -> Any:
    return sys.modules.get("torch")


def _is_module(thing: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(thing, torch.nn.Module)


def _is_optimizer(thing: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(thing, torch.optim.Optimizer)


def _is_ddp(thing: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(thing, torch.nn.parallel.DistributedDataParallel)


def _state(thing: Any, is_borrower: bool) -> Dict[str, Any]:
    if _is_module(thing):
        return _module_state(thing, is_borrower)
    state = None if is_borrower and _is_optimizer(thing) else thing.state_dict()
    return {"kind": type(thing).__name__, "state": local(state), "layout": layout({"state": state})}


def _module_state(model: Any, is_borrower: bool) -> Dict[str, Any]:
    module = model.module if _is_ddp(model) else model
    grads = {name: value.grad for name, value in module.named_parameters() if value.grad is not None}
    weights = None if is_borrower else module.state_dict()
    # After a backward in no_sync(), each rank has gradients of its own.
    has_same_grads = is_borrower and getattr(model, "require_forward_param_sync", False)
    return {
        "weights": local(weights),
        "buffers": local(dict(module.named_buffers())),
        "grads": None if has_same_grads else local(grads),
        "layout": layout({"weights": weights, "grads": grads}),
        "frozen": [name for name, value in module.named_parameters() if not value.requires_grad],
        "evaluating": [name for name, child in module.named_modules() if not child.training],
    }


def _change(thing: Any, saved: Dict[str, Any]) -> str:
    if _is_module(thing):
        module = thing.module if _is_ddp(thing) else thing
        return _difference(_shapes(saved["weights"]), _shapes(local(module.state_dict())))
    then, now = saved.get("kind"), type(thing).__name__
    if then not in (None, now):
        return f"it was a {then} and is a {now}"
    return _difference(_groups(saved["state"]), _groups(thing.state_dict())) if _is_optimizer(thing) else ""


def _shapes(weights: Dict[str, Any]) -> Dict[str, str]:
    tensors = {name: value for name, value in weights.items() if hasattr(value, "shape")}
    return {name: f"{value.dtype} {list(value.shape)}" for name, value in tensors.items()}


def _groups(state: Dict[str, Any]) -> Dict[str, str]:
    groups = state["param_groups"]
    return {f"group {n}": f"{len(group['params'])} parameters" for n, group in enumerate(groups)}


def _difference(then: Dict[str, str], now: Dict[str, str]) -> str:
    for name in [*then, *now]:
        if then.get(name) != now.get(name):
            return f"{name} was {then.get(name, 'not there')} and is {now.get(name, 'not there')}"
    return ""


def _put(thing: Any, saved: Dict[str, Any]) -> None:
    if _is_module(thing):
        _put_module(thing.module if _is_ddp(thing) else thing, saved)
    elif _is_optimizer(thing):
        put_optimizer(thing, saved["state"])
    else:
        thing.load_state_dict(saved["state"])


def _put_module(module: Any, saved: Dict[str, Any]) -> None:
    if any(is_shard(value) for value in module.parameters()):
        put_weights(module, saved["weights"])
    else:
        module.load_state_dict(saved["weights"])
    with _torch().no_grad():
        for name, buffer in module.named_buffers():
            if name in saved["buffers"]:
                local(buffer).copy_(saved["buffers"][name])
    for name, value in module.named_parameters():
        grad = saved["grads"].get(name)
        value.grad = None if grad is None else as_shard(grad.to(value.device), value)
        value.requires_grad_(name not in saved["frozen"])
    for name, child in module.named_modules():
        child.training = name not in saved["evaluating"]
