"""Tensors that are one rank's shard of a larger one (DTensor: FSDP2), saved and put back as such.

Each rank saves what lies with it, and where in the whole that is, and gets it back; nothing is gathered.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Tuple

#: The keys that lead to a tensor in nested dicts.
Path = Tuple[Any, ...]


def is_shard(value: Any) -> bool:
    """Return True for a DTensor; its module is not imported for it."""
    return type(value).__name__ == "DTensor"


def local(value: Any) -> Any:
    """Return what lies with this rank of a shard, of everything in a state dict; the rest as it is."""
    if isinstance(value, dict):
        return {key: local(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(local(inner) for inner in value) if type(value) in (list, tuple) else value
    return value.detach().to_local() if is_shard(value) else value


def layout(value: Any, path: Path = ()) -> Dict[Path, Any]:
    """Return the whole's shape, and where in it what lies here begins, of every shard in nested dicts."""
    if isinstance(value, dict):
        return {key: at for name, inner in value.items() for key, at in layout(inner, (*path, name)).items()}
    if not is_shard(value):
        return {}
    offsets = [tuple(chunk.offsets) for chunk in value.__create_chunk_list__()]
    return {path: (tuple(value.shape), *offsets[:1])}


def as_shard(value: Any, model: Any) -> Any:
    """Return a local tensor as the shard that belongs to `model`, where that is one and of its form."""
    if not is_shard(model) or not hasattr(value, "shape") or value.shape != model.to_local().shape:
        return value
    here = value.to(model.to_local().device)
    return type(model).from_local(
        here, model.device_mesh, model.placements, run_check=False, shape=model.shape, stride=model.stride()
    )


def put_weights(module: Any, saved: Any) -> None:
    """Copy a local state dict into a sharded module."""
    torch = sys.modules["torch"]
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if hasattr(value, "copy_"):
                local(value).copy_(saved[name])


def put_optimizer(optimizer: Any, saved: Any) -> None:
    """Give an optimizer its local state, with the shards of its parameters' kind."""
    values = [value for group in optimizer.param_groups for value in group["params"]]
    state = {
        index: {key: as_shard(value, values[index]) for key, value in kept.items()}
        for index, kept in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": state})
