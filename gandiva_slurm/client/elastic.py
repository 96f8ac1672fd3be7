"""Trainings that go on with another number of ranks: global batches, dealt out to however many there are.

An epoch is one order of its samples, cut into global batches; neither depends on the number of ranks. Every
rank computes its part of each, in pieces of a bounded size, and weighs its losses so that what
DistributedDataParallel or FSDP2 make of the gradients, their average over the ranks, is the global batch's.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sized

from gandiva_slurm.client.errors import BadCheckpoint
from gandiva_slurm.client.identity import find_identity


class Piece(NamedTuple):
    """What a rank computes at once: samples `start` to `stop` of the epoch's order.

    The mean of their losses, times `share`, summed up over a global batch's pieces and averaged over the
    ranks, is its mean. A rank for which none is left gets a sample of another's, with a share of 0.
    """

    start: int
    stop: int
    share: float
    #: The rank's last one of its global batch, and the samples of the epoch that are done behind that.
    is_last: bool
    done: int


class Deal(NamedTuple):
    """How global batches are dealt out: at most `most` samples at once to each rank of the world."""

    global_batch: int
    most: int
    world: int

    def rounds(self, samples: int) -> int:
        """Return how many pieces each rank gets of so many samples from the beginning of an epoch."""
        whole, rest = divmod(samples, self.global_batch)
        at_once = self.world * self.most
        return whole * -(-self.global_batch // at_once) + -(-rest // at_once)

    def pieces(self, rank: int, samples: int, done: int = 0) -> Iterator[Piece]:
        """Yield a rank's pieces of an epoch behind the `done` samples; their sizes differ by one at most.

        Each rank gets equally many of each global batch: of all of its pieces in turn, every world-th.
        """
        for begin in range(done, samples, self.global_batch):
            size = min(self.global_batch, samples - begin)
            parts = self.rounds(size) * self.world
            for part in range(rank, parts, self.world):
                start, stop = (begin + size * n // parts for n in (part, part + 1))
                share = (stop - start) * self.world / size
                if not share:
                    start, stop = begin, begin + 1
                yield Piece(start, stop, share, part + self.world >= parts, begin + size)


class ElasticSampler:
    """Batches of indices for `DataLoader(dataset, batch_sampler=...)`, for any number of ranks.

    `global_batch` samples make one step of the optimizer, whatever the number of ranks; a rank computes at
    most `max_per_rank` of them at once. The order is DistributedSampler's: by seed and `set_epoch`.
    """

    def __init__(
        self,
        dataset: Sized,
        global_batch: int,
        max_per_rank: Optional[int] = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        """Find out rank and world: make it once the process group is there, where there is one."""
        most = global_batch if max_per_rank is None else max_per_rank
        if min(global_batch, most) < 1:
            raise ValueError("ElasticSampler: global_batch and max_per_rank are 1 or more")
        identity = find_identity()
        self.epoch = 0
        self.deal, self.rank = Deal(global_batch, most, identity.world), identity.rank
        #: What must be the same in all starts.
        self.order = {"samples": len(dataset), "global_batch": global_batch, "shuffle": shuffle, "seed": seed}
        self._done = 0  # samples that the next pass leaves out

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as is due in this epoch, from the next pass on; to be called on all ranks alike."""
        self.epoch = epoch

    def leave_out(self, done: int) -> None:
        """Begin the next pass behind so many samples; there are more."""
        self._done = done

    def pieces(self, done: int) -> Iterator[Piece]:
        """Yield this rank's pieces of a pass that is begun behind so many samples.

        It is under way when its first item is there, no earlier: loaders ask their sampler twice, or late.
        """
        self._done = 0
        yield from self.deal.pieces(self.rank, self.order["samples"], done)

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch."""
        return self.deal.rounds(self.order["samples"])

    def __iter__(self) -> Iterator[List[int]]:
        """Begin a pass: the indices of piece after piece."""
        indexes = self._indexes()
        dealt = self.deal.pieces(self.rank, self.order["samples"], self._done)
        return (indexes[piece.start : piece.stop] for piece in dealt)

    def _indexes(self) -> List[int]:
        if not self.order["shuffle"]:
            return list(range(self.order["samples"]))
        import torch

        generator = torch.Generator()
        generator.manual_seed(self.order["seed"] + self.epoch)
        order: List[int] = torch.randperm(self.order["samples"], generator=generator).tolist()
        return order


def sampler_of(loader: Any) -> Optional[ElasticSampler]:
    """Return the ElasticSampler that a loader's batches come from; None where there is none."""
    sampler = getattr(loader, "batch_sampler", None)
    return sampler if isinstance(sampler, ElasticSampler) else None


def position(loader: Any, done: int) -> Optional[Dict[str, Any]]:
    """Return where a pass stands, for another start to find; None where it has to count its batches."""
    sampler = sampler_of(loader)
    return None if sampler is None else {"done": done, "order": sampler.order, "deal": tuple(sampler.deal)}


def batches_done(loader: Any, saved: Optional[Dict[str, Any]], batches: int) -> int:
    """Return how many batches of a pass are done here, `batches` having been where it was saved.

    BadCheckpoint where the data has changed since.
    """
    sampler = sampler_of(loader)
    if saved is None:
        return batches
    if sampler is None:
        raise BadCheckpoint("the loops have changed since it was saved: this loader had an ElasticSampler")
    for name, then in saved["order"].items():
        if sampler.order[name] != then:
            change = f"{name} was {then} and is {sampler.order[name]}"
            raise BadCheckpoint(f"the ElasticSampler has changed since it was saved: {change}")
    return sampler.deal.rounds(saved["done"])


def begin_behind(loader: Any, saved: Optional[Dict[str, Any]]) -> Optional[Iterator[Any]]:
    """Begin a pass behind the samples that are done, reading none of them.

    None where ranks have the same parts as then: what reading them drew is to be drawn again.
    """
    sampler = sampler_of(loader)
    if saved is None or sampler is None or tuple(sampler.deal) == saved["deal"]:
        return None
    if saved["done"] >= sampler.order["samples"]:
        return iter(())
    sampler.leave_out(saved["done"])
    items: Iterator[Any] = iter(loader)
    return items
