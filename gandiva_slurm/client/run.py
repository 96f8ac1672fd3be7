"""`attach(...)`: a training that can be saved at any boundary, and goes on from there in another process.

The script says what it consists of and lets `run.epochs` and `run.steps` drive its loops. Between two of
their items the script's own state is consistent: there a checkpoint may be taken (ADR 0022). A script that is
started again runs to the place where it was saved without training, and gets everything back there.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from gandiva_slurm.client import elastic, rng, start
from gandiva_slurm.client import parts as parts_of_training
from gandiva_slurm.client.behind import Writing
from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.errors import BadCheckpoint, NotSaved
from gandiva_slurm.client.loop import StepsIterator, wrapped
from gandiva_slurm.client.notice import say
from gandiva_slurm.client.parts import Part, parts_of
from gandiva_slurm.client.rank import Rank, this_rank
from gandiva_slurm.client.vault import Vault, open_vault, saying_why_not
from gandiva_slurm.wire.page import KIND_RUN, KIND_STEPS

_ALONE = "neither GANDIVA_SOCKET nor GANDIVA_CHECKPOINT_DIR here: nothing is saved, the script runs as it is"

#: Phase (which loop over `epochs`), epoch, loop (which over `steps` in it), batches done.
Place = Tuple[int, int, int, int]

_on_save: List[Callable[[], Any]] = []
_on_load: List[Callable[[Any], None]] = []
_has_loaded = False


def attach(
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    lockstep: bool = True,
) -> Run:
    """Say what the training consists of: each one object, or a list or dict of them.

    `loader` is the one that `steps` iterates over, for where steps gets something around it. Call it on every
    rank, once the model is wrapped. `lockstep=False`: ranks that do not step together; they are not moved.
    Where this job has a checkpoint it is loaded; BadCheckpoint says why one that is there does not fit.
    """
    kinds = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    parts = [part for kind, given in kinds.items() for part in parts_of(kind, given)]
    loaders = loader.values() if isinstance(loader, dict) else loader
    loaders = list(loaders) if isinstance(loader, (dict, list, tuple)) else [loader]
    rank = this_rank()
    is_alone = rank is None and start.checkpoint_dir() is None
    if is_alone:
        say(_ALONE)
    if rank is not None:
        for part in parts:
            rank.see(part.thing)
    run = Run(parts, [one for one in loaders if one is not None])
    run.go_under(rank, None if is_alone else open_vault(parts, lockstep))
    return run


def on_save(function: Callable[[], Any]) -> Callable[[], Any]:
    """Let `function` give what else is to be saved: anything that can be pickled. A decorator, too."""
    _on_save.append(function)
    return function


def on_load(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Let `function` have back what the on_save function registered as its counterpart, in order, gave.

    It is called once, where the training goes on. A decorator, too.
    """
    _on_load.append(function)
    return function


def restarted() -> bool:
    """Return True when this is not the job's first start, or a checkpoint was loaded."""
    return _has_loaded or start.restart_count() > 0


class Run:
    """The loops of one training; `epoch` and `batch` say where it is, in the whole of it."""

    def __init__(self, parts: List[Part], loaders: List[Any]) -> None:
        """Begin at the beginning, alone."""
        self.epoch = 0
        #: Mini-batches done in this pass: `enumerate(run.steps(loader), run.batch)` counts on where it was.
        self.batch = 0
        #: Of an ElasticSampler's batch: what its mean loss weighs; whether the optimizer's step is due.
        self.share, self.is_last = 1.0, True
        self._parts = parts
        self._loaders = loaders
        self._rank: Optional[Rank] = None
        self._vault: Optional[Vault] = None
        self._phase, self._loop = 0, 0
        #: Where to run to without training; None once there.
        self._target: Optional[Place] = None
        #: Boundaries since the training began.
        self._count = 0
        #: Mini-batches since it began; None where a checkpoint of an older release does not say.
        self._trained: Optional[int] = 0
        self._is_save_wanted = False
        #: How the random generators stood at the epoch's head, and when its pass was begun.
        self._head: Optional[Dict[str, Any]] = None
        self._began: Optional[Dict[str, Any]] = None
        #: The pass under way and what it iterates over.
        self._pass: Callable[[], Optional[StepsIterator]] = lambda: None
        self._iterable: Any = None
        #: Whether another number of ranks could go on, and the samples of this pass that are done.
        self._is_elastic = bool(loaders) and all(elastic.sampler_of(one) for one in loaders)
        self._done = 0
        #: Where in its samples the pass is to go on, as `elastic.position` told.
        self._samples: Optional[Dict[str, Any]] = None

    def epochs(self, count: int) -> Iterator[int]:
        """Iterate over the numbers of those epochs, of `count` in all, that are not finished."""
        self._phase += 1
        epoch = self._first_epoch(count)
        self._stand_before(epoch)
        while epoch < count:
            yield epoch
            epoch += 1
            self._stand_before(epoch)
            self._boundary(0)

    def steps(self, iterable: Iterable[Any]) -> Any:
        """Iterate over `iterable`; each item is a mini-batch, done when the next one is asked for.

        `len()` and attributes are those of `iterable`. A pass in which the script was moved is replayed up
        to where it was, once.
        """
        target = self._target
        is_target = target is not None and target[:3] == (self._phase, self.epoch, self._loop + 1)
        batches = target[3] if is_target and target else 0
        self.batch = elastic.batches_done(iterable, self._samples, batches) if is_target else 0
        return wrapped(iterable, self._begin)

    def save(self) -> None:
        """Save at the next boundary, though Gandiva does not ask; to be called on all ranks alike.

        It is written while the training goes on.
        """
        self._is_save_wanted = True

    def go_under(self, rank: Optional[Rank], vault: Optional[Vault]) -> None:
        """Let a rank mark the boundaries and a vault keep the checkpoints; load the newest there is."""
        global _has_loaded
        self._rank, self._vault = rank, vault
        saved = vault.find() if vault is not None else None
        #: Above all that is there: no save is written into what another start left half done.
        self._count = vault.first_count if vault is not None else 0
        if saved is not None:
            _has_loaded = True
            parts_of_training.put(self._parts, saved["parts"])
            self._target, self._samples = saved["place"], saved.get("samples")
            self._trained = saved.get("trained")
        if vault is not None:
            vault.say_where(saved, _words(saved["place"]) if saved else "")

    def _first_epoch(self, count: int) -> int:
        if self._target is None:
            return 0
        phase, epoch = self._target[:2]
        if self._phase > phase:
            raise _lost(self._target)
        return epoch if self._phase == phase else count

    def _stand_before(self, epoch: int) -> None:
        """Stand at the head of an epoch; where it was saved there, it is back."""
        self.epoch, self._loop, self.batch = epoch, 0, 0
        self.share, self.is_last = 1.0, True
        self._iterable = self._began = None
        if self._target == (self._phase, epoch, 0, 0):
            self._come_back(self._read(), self._loaders)
        elif self._target is not None and self._target[:2] == (self._phase, epoch):
            # What the script draws before its loop comes out as it did then.
            rng.put(self._read()["head"], self._loaders)
        self._head = rng.capture(self._loaders) if self._vault is not None else None

    def _begin(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Begin a pass over what `steps` was given."""
        under_way = self._pass()
        if under_way is not None and not under_way.is_over:
            say("a run.steps() inside another is handed through: only the outer one's mini-batches count")
            return iter(iterable)
        self._is_elastic = elastic.sampler_of(iterable) is not None
        self.share, self.is_last, self._done = 1.0, True, 0
        self._claim()
        self._loop, self.batch = self._loop + 1, 0
        items = StepsIterator(self._items(iterable), self._boundary)
        self._pass = weakref.ref(items)
        return items

    def _items(self, iterable: Iterable[Any]) -> Iterator[Any]:
        here, sources = (self._phase, self.epoch, self._loop), [iterable, *self._loaders]
        if self._target is None:
            self._iterable = iterable
            self._began = rng.capture(sources) if self._vault is not None else None
            return self._dealt(iter(iterable))
        if here < self._target[:3]:
            return iter(())
        if here > self._target[:3]:
            raise _lost(self._target)
        saved, self._iterable = self._read(), iterable
        self._began = saved["began"]
        self.batch = elastic.batches_done(iterable, self._samples, self._target[3])
        self._done = self._samples["done"] if self._samples else 0
        rng.put(saved["began"], sources)
        items = elastic.begin_behind(iterable, self._samples)
        if items is None:
            items = _fast_forward(iterable, self.batch, saved["loader"])
        self._come_back(saved, sources)
        return self._dealt(items)

    def _dealt(self, items: Iterator[Any]) -> Iterator[Any]:
        """Tell with each item of an ElasticSampler's pass what it is of its global batch."""
        sampler = elastic.sampler_of(self._iterable)
        return items if sampler is None else map(self._take, items, sampler.pieces(self._done))

    def _take(self, item: Any, piece: elastic.Piece) -> Any:
        self.share, self.is_last, self._done = piece.share, piece.is_last, piece.done
        return item

    def _claim(self) -> None:
        if self._rank is not None and self._vault is not None:
            is_first = self._rank.kind != KIND_RUN
            self._rank.claim(KIND_RUN, self._save, self._is_elastic, capture=self._capture)
            if is_first:
                self._rank.begin_at(self._trained)
        elif self._rank is not None:
            self._rank.claim(KIND_STEPS)

    def _read(self) -> Dict[str, Any]:
        assert self._vault is not None, "only a vault gives a target"
        return self._vault.read()

    def _come_back(self, saved: Dict[str, Any], loaders: List[Any]) -> None:
        """Be as it was saved, to the last bit: what the script did on its way here counts for nothing."""
        self._target = None
        parts_of_training.put(self._parts, saved["parts"])
        rng.put(saved["now"], loaders)
        for function, state in zip(_on_load, saved["user"]):  # noqa: B905 (3.8)
            function(state)

    def _boundary(self, mini_batches: int = 1) -> None:
        self.batch += mini_batches
        if not self.is_last:
            return  # within a global batch no rank's gradients are worth anything to another
        self._count += 1
        if self._trained is not None:
            self._trained += mini_batches
        if self._is_save_wanted:
            self._save_as_asked()
        if self._rank is not None:
            self._rank.boundary(mini_batches)

    def _save_as_asked(self) -> None:
        self._is_save_wanted = False
        try:
            self._save(is_behind=True)
        except Exception as err:
            if is_from_signal_handler(err):
                raise

    def _save(self, is_behind: bool = False) -> None:
        """Save what is here at this boundary; whatever keeps it from that is said, and raised."""
        vault, place = self._vault, (self._phase, self.epoch, self._loop, self.batch)
        if vault is None:
            return
        with saying_why_not():
            write = vault.write_behind if is_behind else vault.write
            write(self._count, self._state(place, vault), _words(place))

    def _capture(self) -> Writing:
        """Return what writes this boundary's state, from the host's memory, while the training is parked."""
        vault, place = self._vault, (self._phase, self.epoch, self._loop, self.batch)
        if vault is None:
            raise NotSaved("nothing of it is saved any more")
        # In a list, out of which it is taken: nothing is to keep its tensors when the training goes on.
        state, count = [self._state(place, vault)], self._count
        return lambda kept, pace: vault.write_parked(count, state, kept, pace)

    def _state(self, place: Place, vault: Vault) -> Dict[str, Any]:
        if self._target is not None:
            raise NotSaved("the script has not come back yet to where it was saved")
        is_borrower, iterable = vault.is_borrower(), self._iterable
        loaders = [one for one in [iterable, *self._loaders] if one is not None]
        return {
            "place": place,
            "count": self._count,
            "trained": self._trained,
            "is_borrower": is_borrower,
            "is_elastic": self._is_elastic,
            "parts": parts_of_training.capture(self._parts, is_borrower),
            "now": rng.capture(loaders),
            "head": self._head,
            "began": self._began,
            "loader": _state_of(iterable),
            "samples": elastic.position(iterable, self._done),
            "user": [function() for function in _on_save],
        }


def _fast_forward(iterable: Iterable[Any], batches: int, state: Any) -> Iterator[Any]:
    """Begin a pass and leave its first `batches` behind, be it all: samplers draw at their end, too."""
    if state is not None and _is_stateful(iterable):
        iterable.load_state_dict(state)  # type: ignore[attr-defined]
        return iter(iterable)
    items = iter(iterable)
    for number in range(batches):
        try:
            next(items)
        except StopIteration:
            raise BadCheckpoint(
                f"the data has changed since it was saved: {number} mini-batches, and {batches} were done"
            ) from None
    return items


def _is_stateful(iterable: Any) -> bool:
    return hasattr(iterable, "state_dict") and hasattr(iterable, "load_state_dict")


def _state_of(iterable: Any) -> Any:
    """Return a loader's own state; None where it has none and is replayed."""
    try:
        return iterable.state_dict() if _is_stateful(iterable) else None
    except Exception:
        return None  # accelerate's loaders have the method, and mostly nothing behind it


def _words(place: Place) -> str:
    _, epoch, _, batch = place
    return f"epoch {epoch}, mini-batches done: {batch}"


def _lost(target: Place) -> BadCheckpoint:
    return BadCheckpoint(f"the script's loops have changed since it was saved: it passed by {_words(target)}")
