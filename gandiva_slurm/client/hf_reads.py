"""What a Trainer of Hugging Face's has read ahead: how the generators stood before each read.

At its boundary it holds the batches of a whole optimizer step, and accelerate's loader one more; a data set
or a collator that draws random numbers drew for those, between what the model drew. On the way back the
loader skips what was done, and the batches that were held are read once more, each from where the generators
stood. Loader workers have generators of their own, which stand right only if all batches are read again.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterator, List

from gandiva_slurm.client import rng
from gandiva_slurm.client.keeper import Keeper
from gandiva_slurm.client.loop import wrapped


class Reads:
    """Stands around a Trainer's reading of batches, from `begin` on until it is told to `leave`."""

    def __init__(self, trainer: Any, keeper: Keeper) -> None:
        """Note nothing yet."""
        self._trainer, self._keeper = trainer, keeper
        self._module: Any = sys.modules["transformers.trainer"]
        self._skip = sys.modules["accelerate"].skip_first_batches
        self._own: Any = None
        self._loaders: List[Any] = []
        #: How the generators stood before each read of this optimizer step, the last one before it in front.
        self._noted: List[Dict[str, Any]] = []
        #: As it was saved, still to be read again.
        self._again: List[Dict[str, Any]] = []

    def begin(self, noted: List[Dict[str, Any]]) -> None:
        """Note from now on; first go back to where it was `noted`, if it was."""
        self._again = list(noted)
        if self._again:
            self._module.skip_first_batches = self._begin_behind
        read, self._own = self._trainer.get_batch_samples, vars(self._trainer).get("get_batch_samples")
        self._trainer.get_batch_samples = lambda batches, *args: read(self._noting(batches), *args)

    def begin_pass(self, loaders: List[Any]) -> None:
        """A pass over the data begins behind this."""
        self._loaders, self._noted = loaders, []

    def noted(self) -> List[Dict[str, Any]]:
        """Return what `begin` wants to have, of the boundary that is now."""
        return list(self._noted)

    def leave(self) -> None:
        """Leave the Trainer as it was."""
        self._module.skip_first_batches = self._skip
        vars(self._trainer).pop("get_batch_samples", None)
        if self._own is not None:
            self._trainer.get_batch_samples = self._own

    def _noting(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of one optimizer step."""
        del self._noted[:-1]
        while True:
            if self._again:
                rng.put(self._again[0], [])
            self._noted.append(self._again.pop(0) if self._again else rng.capture([]))
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    def _begin_behind(self, loader: Any, count: int) -> Any:
        """Return the loader for a pass of which this number of batches is done."""
        self._module.skip_first_batches = self._skip
        # The loader reads one ahead: of two reads that are left out, the second makes it hold the right one.
        left_out = count if getattr(loader, "num_workers", 0) else min(2, count)
        rest = loader if left_out == count else self._skip(loader, count - left_out)
        held, self._again = self._again[0], self._again[1:]
        self._noted = [held]

        def batches(items: Any) -> Iterator[Any]:
            self._keeper.put_began(self._loaders)
            found = iter(items)
            for number in range(1, left_out + 1):
                if 1 < number == left_out:
                    rng.put(held, [])
                next(found, None)
            rng.put(self._noted[-1], [])  # of the read that is under way
            yield from found

        return wrapped(rest, batches)
