"""Every random number generator a training loop draws from: what they stand at, and putting them back."""

from __future__ import annotations

import random
import sys
from typing import Any, Dict, List, Sequence

from gandiva_slurm.client import accelerator


def capture(loaders: Sequence[Any]) -> Dict[str, Any]:
    """Return the state of Python's, numpy's and torch's generators, and of those the loaders own."""
    state: Dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        state["numpy"] = _plain(numpy.random.get_state())
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        state["cuda"] = {n: accelerator.of(torch).get_rng_state(n) for n in _devices()}
        state["generators"] = [generator.get_state() for generator in _generators(torch, loaders)]
    state["sampler_epochs"] = [sampler.epoch for sampler in _samplers(loaders)]
    return state


def put(state: Dict[str, Any], loaders: Sequence[Any]) -> None:
    """Let every generator stand where `capture` found it."""
    random.setstate(state["python"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        cuda = accelerator.of(torch)
        for device, cuda_state in state["cuda"].items():
            if device < cuda.device_count():
                cuda.set_rng_state(cuda_state, device)
        for generator, stand in zip(_generators(torch, loaders), state["generators"]):  # noqa: B905 (3.8)
            generator.set_state(stand)
    for sampler, epoch in zip(_samplers(loaders), state["sampler_epochs"]):  # noqa: B905 (3.8)
        sampler.set_epoch(epoch)


def _plain(stand: Any) -> Any:
    """Return how numpy's generator stands in plain values, which are read without unpickling classes."""
    return (stand[0], stand[1].tolist(), *stand[2:]) if isinstance(stand, tuple) else stand


def derived(state: Dict[str, Any], words: str) -> Dict[str, Any]:
    """Return a `state` for a rank that was not there: streams of its own, by the state and `words` alone."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    stand = repr(state["python"]).encode() + words.encode()
    if "torch" in state:
        stand += state["torch"].numpy().tobytes()
    own = random.Random(stand)
    seed, fresh = own.getrandbits(32), {**state, "python": own.getstate()}
    if numpy is not None and "numpy" in state:
        fresh["numpy"] = numpy.random.RandomState(seed).get_state()
    if torch is not None and "torch" in state:
        fresh["torch"] = torch.Generator().manual_seed(seed).get_state()
        seeded = {n: torch.Generator(f"{accelerator.kind()}:{n}").manual_seed(seed) for n in _devices()}
        fresh["cuda"] = {n: generator.get_state() for n, generator in seeded.items()}
    return fresh


def _devices() -> List[int]:
    """Return the devices in use; asking an unused one would initialise it."""
    cuda = accelerator.in_use()
    if cuda is None:
        return []
    current = cuda.current_device()
    return [n for n in range(cuda.device_count()) if n == current or cuda.memory_allocated(n)]


def _generators(torch: Any, loaders: Sequence[Any]) -> List[Any]:
    found = (getattr(thing, "generator", None) for thing in _things(loaders))
    return _once(thing for thing in found if isinstance(thing, torch.Generator))


def _samplers(loaders: Sequence[Any]) -> List[Any]:
    return [
        thing
        for thing in _things(loaders)
        if callable(getattr(thing, "set_epoch", None)) and isinstance(getattr(thing, "epoch", None), int)
    ]


def _things(loaders: Sequence[Any]) -> List[Any]:
    """Return the loaders, their samplers and their samplers' samplers, each once."""
    found: List[Any] = []
    for loader in loaders:
        batches = getattr(loader, "batch_sampler", None)
        inner = getattr(batches, "batch_sampler", None)  # accelerate deals one sampler's batches to its ranks
        found += [loader, getattr(loader, "sampler", None), batches]
        found += [getattr(batches, "sampler", None), getattr(inner, "sampler", None)]
    return _once(thing for thing in found if thing is not None)


def _once(things: Any) -> List[Any]:
    return list({id(thing): thing for thing in things}.values())
