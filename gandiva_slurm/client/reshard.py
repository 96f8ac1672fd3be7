"""Shards for another number of ranks: cut anew out of what each rank saved.

torch.distributed.checkpoint works out which rank's file has which part of a shard, and copies it. It is only
asked to read: its own way of saving has ranks wait for each other, which they may not while they hold.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Callable, Dict, List, Tuple

from gandiva_slurm.client.errors import BadCheckpoint
from gandiva_slurm.client.shards import Path, is_shard, local

#: Of one tensor what ranks saved, by where in the whole it begins.
Chunks = Dict[Tuple[int, ...], Any]
_NAME = "tensor"


def reshard(thing: Any, saved: Dict[str, Any], everyone: Callable[[], List[Dict[str, Any]]]) -> None:
    """Replace in the `saved` state of a module or optimizer what is not this rank's shard by what is.

    `everyone` gives that state as each rank saved it. BadCheckpoint: the whole has another shape now.
    """
    likes = _likes(thing, saved)
    cut = [path for path, like in likes.items() if is_shard(like) or path in saved["layout"]]
    states = everyone() if cut else []
    for path in cut:  # one at a time: a device may have no room for all of it twice
        shape = _shape(path, likes[path], saved)
        here = _read(likes[path], shape, _chunks(path, states))
        _leaf(saved, path[:-1])[path[-1]] = local(here).cpu()


def _read(like: Any, shape: Any, chunks: Chunks) -> Any:
    """Return a tensor like a parameter, or like this rank's shard of it, filled out of the chunks."""
    from torch.distributed.checkpoint.state_dict_loader import load

    dtype = next(iter(chunks.values())).dtype
    found = {_NAME: sys.modules["torch"].empty_like(like, dtype=dtype)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that each rank reads for itself
        load(found, storage_reader=_Reader(shape, dtype, chunks), no_dist=True)
    return found[_NAME]


def _likes(thing: Any, saved: Dict[str, Any]) -> Dict[Path, Any]:
    """Return the parameter that each tensor of a saved state is formed after."""
    if hasattr(thing, "named_parameters"):
        values = dict(thing.named_parameters(remove_duplicate=False))
        both = [(kind, name) for kind in ("weights", "grads") for name in saved[kind]]
        return {path: values[path[1]] for path in both if path[1] in values}
    if not hasattr(thing, "param_groups"):
        return {}
    params = [value for group in thing.param_groups for value in group["params"]]
    kept = saved["state"]["state"].items()
    likes = {("state", "state", n, key): params[n] for n, state in kept for key in state if n < len(params)}
    return {path: like for path, like in likes.items() if getattr(_leaf(saved, path), "ndim", 0)}


def _shape(path: Path, like: Any, saved: Dict[str, Any]) -> Any:
    then = tuple(saved["layout"][path][0] if path in saved["layout"] else _leaf(saved, path).shape)
    if then != tuple(like.shape):
        now = tuple(like.shape)
        raise BadCheckpoint(f"{path[-1]} has changed since it was saved: its shape was {then} and is {now}")
    return like.shape


def _chunks(path: Path, states: List[Dict[str, Any]]) -> Chunks:
    found = {}
    for state in states:
        value = _leaf(state, path)
        _, offsets = state["layout"].get(path, ((), (0,) * value.ndim))
        if value.numel():
            found[tuple(offsets)] = value
    return found


def _leaf(state: Any, path: Path) -> Any:
    for key in path:
        state = state[key]
    return state


class _Reader:
    """What torch.distributed.checkpoint wants of a StorageReader, over one tensor whose chunks are here."""

    def __init__(self, shape: Any, dtype: Any, chunks: Chunks) -> None:
        """Keep the whole tensor's shape, and its chunks."""
        self._shape = shape
        self._dtype = dtype
        self._chunks = chunks

    def read_metadata(self) -> Any:
        """Say what there is."""
        from torch.distributed.checkpoint import metadata

        size = type(self._shape)
        places = [
            metadata.ChunkStorageMetadata(size(offsets), value.shape)
            for offsets, value in self._chunks.items()
        ]
        properties = metadata.TensorProperties(dtype=self._dtype)
        return metadata.Metadata({_NAME: metadata.TensorStorageMetadata(properties, self._shape, places)})

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool) -> None:
        """There is nothing to set up."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Agree."""
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        """Agree."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Copy what overlaps."""
        for item in plan.items:
            source = self._chunks[tuple(item.storage_index.offset)]
            for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths)):  # noqa: B905 (3.8)
                source = source.narrow(dim, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(source)
            planner.commit_tensor(item, target)
        done = sys.modules["torch"].futures.Future()
        done.set_result(None)
        return done
