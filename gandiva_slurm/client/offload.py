"""The tier `torch`: a parked rank's device memory is copied to the host, storage by storage, and released.

Tensors keep their identity; only the bytes behind them go and come back, so that views, optimizer state and
buckets stay what they are. Nothing is let go before everything is copied; whatever fails is undone.
"""

from __future__ import annotations

import math
import time
from typing import Any, Dict, Iterable, Iterator, List, Sequence, Tuple

from gandiva_slurm.client import copying, layered
from gandiva_slurm.client.copying import Moved
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.guards import refuse_other_threads
from gandiva_slurm.client.host import Slabs
from gandiva_slurm.client.roots import Roots, Seen
from gandiva_slurm.client.signals import Deferral
from gandiva_slurm.client.tiers import DRAIN_S, Released
from gandiva_slurm.wire.page import TIER_TORCH

#: Longest that copying may take, one way: less than a node waits for a park (30 s by default).
COPY_S = 20.0
#: Between two tries to put back what had been let go.
AGAIN_S = 0.1


class TorchTier:
    """Moves a training's memory off the device and back."""

    number = TIER_TORCH

    def __init__(self, torch: Any, device: Any, seen: Seen) -> None:
        """Try the whole way with a few bytes first; Refused where this torch cannot do it."""
        self.device = device
        self.host = Slabs(device.allocate)
        #: Bytes copied by the newest release.
        self.copied = 0
        self._torch = torch
        self._roots = Roots(torch, device, seen)
        self._moved: List[Moved] = []
        #: How many of the moved have been let go and are not back yet.
        self._gone = 0
        self._signals = Deferral()
        self._seen = seen
        self._arrival = layered.Arrival(torch, device, self._give_back)
        self._probe()

    def is_called(self) -> bool:
        """Return True when a signal waits for its handler, which needs the memory."""
        return self._signals.is_called()

    def kept(self) -> Dict[int, Moved]:
        """Return what is on the host, by its storage."""
        return {one.storage._cdata: one for one in self._moved}

    def release(self, drain_s: float = DRAIN_S) -> Released:
        """Copy everything out, then let it go; on any error everything is as before. Refused says why not."""
        self._arrival.finish()
        self.device.begin(time.monotonic() + drain_s)
        refuse_other_threads()
        live, peak = self.device.live(), self.device.peak()
        self._offload(self._roots.find(self.device.asked(live)))
        return Released(max(0, live - self.device.live()), self.device.held(), peak)

    def restore(self) -> None:
        """Allocate everything and copy it back; on any error what was missing is missing still."""
        moved, first = self._moved, len(self._moved) - self._gone
        taken = first
        try:
            for one in moved[first:]:
                with self.device.allocating(one.stream):
                    one.storage.resize_(one.size)
                taken += 1
            at_once, later = self._split(moved[first:])
            self._copy(at_once, is_out=False)
            self.device.drain(time.monotonic() + COPY_S)
            if later:
                self._arrival.begin(later, lambda group: self._copy(group.moved, is_out=False))
        except BaseException:
            for one in moved[first:taken]:
                one.storage.resize_(0)
            self.device.empty_cache()
            raise
        self._moved, self._gone = [], 0
        if not later:
            self._give_back()

    def restore_at_last(self) -> None:
        """Restore, however often it takes: without its memory the script must not go on."""
        while self._gone:
            try:
                self.restore()
            except Exception:
                if not self._gone:
                    raise  # the script's own signal handler did
                time.sleep(AGAIN_S)
        self._arrival.finish()

    def _offload(self, storages: List[Any]) -> None:
        try:
            self._copy_out(storages)
            self._signals.begin()
            self._let_go()
        except BaseException:
            self._undo()
            raise

    def _copy_out(self, storages: List[Any]) -> None:
        deadline = time.monotonic() + COPY_S
        sizes = [int(storage.nbytes()) for storage in storages]
        self.copied = sum(sizes)
        self.host.make_room(self.copied)
        # The small ones side by side, and last: groups of them are made up while the large ones cross.
        sized = list(zip(storages, sizes))  # noqa: B905 (3.8)
        for is_small in (False, True):
            part = [one for one in sized if (one[1] <= copying.SMALL_BYTES) is is_small]
            self._copy(self._placed(part), is_out=True, deadline=deadline)
        try:
            self.device.drain(deadline)
        except TimeoutError:
            raise Refused(f"copying it to the host took longer than {COPY_S:g} s") from None

    def _placed(self, sized: Sequence[Tuple[Any, int]]) -> Iterator[Moved]:
        """Give each storage its place on the host, just before it is copied."""
        for storage, size in sized:
            flat = copying.flat(self._torch, storage, size)
            one = Moved(storage, size, self.host.take(size), flat, self.device.stream_of(storage))
            self._moved.append(one)
            yield one

    def _let_go(self) -> None:
        # From the last to the first, so that those that are gone are always the list's end.
        for one in reversed(self._moved):
            one.storage.resize_(0)
            self._gone += 1
        self.device.empty_cache()

    def _undo(self) -> None:
        self.restore_at_last()
        self._moved = []
        self._give_back()

    def _split(self, moved: List[Moved]) -> Tuple[List[Moved], List[layered.Group]]:
        """Return what is copied before the script goes on, and what arrives later: as a rule nothing."""
        if not (layered.is_wanted() and self.device.is_one()):
            return moved, []
        # What is another stream's is there first: that stream waits for no layer.
        ours = [one for one in moved if one.stream is None]
        first, groups = layered.split(ours, [known() for known in list(self._seen.values())], self._torch)
        return first + [one for one in moved if one.stream is not None], groups

    def _give_back(self) -> None:
        self.host.give_back()
        self._signals.end()

    def _copy(self, moved: Iterable[Moved], is_out: bool, deadline: float = math.inf) -> None:
        for _ in copying.copy(self._torch, moved, is_out):
            if time.monotonic() > deadline:
                raise Refused(f"copying it to the host took longer than {COPY_S:g} s")

    def _probe(self) -> None:
        torch = self._torch
        want = torch.arange(512, dtype=torch.int32)
        tensor = want.to(self.device.kind, copy=True)
        try:
            self._offload([tensor.untyped_storage()])
            is_gone = tensor.untyped_storage().nbytes() == 0
            self.restore()
            is_whole = bool((tensor.cpu() == want).all())
        except (AttributeError, TypeError, RuntimeError) as err:
            raise Refused(f"this torch cannot do it ({type(err).__name__}: {err})") from err
        if not (is_gone and is_whole):
            raise Refused("this torch did not release memory when it was tried, or not give it back")
