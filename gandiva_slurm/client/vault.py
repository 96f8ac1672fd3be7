"""Where a training's checkpoints go and come from: all ranks the same one, each its own part of it."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
from threading import Thread
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from gandiva_slurm.client import checkpoint, rng, start
from gandiva_slurm.client.behind import Kept, OnHost, Pace, check_room, pickling
from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.checkpoint import Saved, Store
from gandiva_slurm.client.errors import BadCheckpoint, NotSaved
from gandiva_slurm.client.facts import differences, facts
from gandiva_slurm.client.identity import find_identity, process_group
from gandiva_slurm.client.notice import say
from gandiva_slurm.client.parts import Part, are_replicas, borrow, check, deal, has_hidden_shards
from gandiva_slurm.client.rank import cannot_be_moved

#: Says to every rank what this one has, and returns what all have.
Exchange = Callable[[Any], List[Any]]

_opened = 0


def is_first() -> bool:
    """Return True while this process has opened none."""
    return _opened == 0


def open_vault(parts: List[Part], lockstep: bool) -> Optional[Vault]:
    """Return the vault of the training that these parts make; None, said once, where it cannot be saved."""
    global _opened
    _opened += 1
    directory, identity = start.checkpoint_dir(), find_identity()
    why = "" if lockstep or identity.world == 1 else "its ranks do not step together"
    why = (
        "its shards are ZeRO's or the first FSDP's; next: torch.distributed.fsdp.fully_shard"
        if has_hidden_shards(parts)
        else why
    )
    if directory is None or why:
        cannot_be_moved(why)
        return None
    script = start.script_name() + (f".{_opened}" if _opened > 1 else "")
    store = Store(directory, script, identity.rank, identity.world, start.job_id(), start.restart_count())
    return Vault(store, parts)


class Vault:
    """Finds, reads and writes the checkpoints of one training."""

    def __init__(self, store: Store, parts: List[Part]) -> None:
        """Nothing is looked for yet."""
        self.store = store
        #: The count that checkpoints of this start begin above.
        self.first_count = 0
        self._parts = parts
        self._saved: Optional[Saved] = None
        #: Writes what a script asked to be saved while it trains on.
        self._writer: Optional[Thread] = None
        #: The boundary saved last, and where.
        self._last: Tuple[int, str] = (0, "")

    def find(self) -> Optional[Dict[str, Any]]:
        """Return what the newest sound checkpoint holds for this rank; None where there is none."""
        exchange = _exchange(self.store.world)
        if os.path.isdir(self.store.directory):
            self._take_over()
        self.first_count = max(exchange(checkpoint.last_count(self.store)))
        try:
            self._saved = self._choose(exchange)
            return self._fitting(exchange)
        except BadCheckpoint as err:
            if os.environ.get("GANDIVA_ON_BAD_CHECKPOINT") != "restart":
                raise BadCheckpoint(f"{err} (GANDIVA_ON_BAD_CHECKPOINT=restart starts anew)") from err
            say(f"{err}; it starts anew, as GANDIVA_ON_BAD_CHECKPOINT says")
            return None

    def read(self) -> Dict[str, Any]:
        """Read the checkpoint found, be it another number of ranks that saved it."""
        saved = self._saved
        assert saved is not None, "there is nothing to read"
        rank = self.store.rank if self.store.rank in saved.markers else 0
        state: Dict[str, Any] = _load(checkpoint.data_path(saved, rank))
        if state["is_borrower"]:
            state["parts"] = borrow(state["parts"], _load(checkpoint.data_path(saved, 0))["parts"])
        state.update(path=saved.path, facts=saved.markers[rank]["facts"], world=len(saved.markers))
        if len(saved.markers) != self.store.world:
            self._deal(state, saved)
        return state

    def say_where(self, state: Optional[Dict[str, Any]], words: str = "") -> None:
        """Say where a training goes on that has found `state`; or that it begins anew, started again."""
        if state is None:
            if start.restart_count() > 0:
                say(f"started again, and begins anew: no checkpoint of it in {self.store.directory}")
            return
        say(": ".join(filter(None, (f"goes on from {state['path']}", words))))
        world, change = self.store.world, differences(state["facts"], facts())
        if state["world"] != world:
            say(f"goes on with {world} ranks, saved by {state['world']}: the same global batches")
        if change:
            say(f"need not go on to the last bit as it would have: {change}")

    def write(self, count: int, state: Dict[str, Any], words: str = "") -> None:
        """Write this rank's part of a checkpoint, and say so with `words`; NotSaved says why not."""
        self.settle()
        self._write(count, lambda out: _dump(state, out), _facts(state), words)

    def write_behind(self, count: int, state: Dict[str, Any], words: str) -> None:
        """Take a copy of a state in host memory and let a thread write it, and say so with `words`.

        Never two at once. It is no daemon: a script that ends waits for it, and is kept alive no longer.
        """
        self.settle()
        copy, found = io.BytesIO(), _facts(state)
        _dump(state, copy)

        def write() -> None:
            with contextlib.suppress(Exception), saying_why_not():
                self._write(count, lambda out: out.write(copy.getbuffer()), found, words)

        self._writer = Thread(target=write, name="gandiva-save")
        self._writer.start()

    def write_parked(self, count: int, state: List[Any], kept: Kept, pace: Pace) -> None:
        """Write the captured state that is in a list, the bytes in `kept` among it; NotSaved says why not."""
        torch = sys.modules.get("torch")
        host = OnHost(torch, kept)
        whole = host.state(state.pop())
        found = _facts(whole)
        try:
            checkpoint.prepare(self.store, count)
            check_room(self.store.directory, host.size)
        except OSError as err:
            raise NotSaved(f"no checkpoint in {self.store.directory}: {err.strerror}") from err
        pickler = pickle if torch is None else pickling(torch, kept)
        # Not said, unlike others: it comes once in some minutes, and the script did not ask for it.
        checkpoint.save(self.store, count, lambda out: _dump(whole, pace.writer(out.write), pickler), found)

    def settle(self) -> None:
        """Wait until nothing is being written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def is_borrower(self) -> bool:
        """Return True where rank 0 saves this rank's weights too."""
        return self.store.rank > 0 and are_replicas(self._parts)

    def _take_over(self) -> None:
        try:
            checkpoint.claim(self.store, is_start=True)
        except (NotSaved, OSError) as err:
            why = getattr(err, "strerror", None) or err
            say(f"the checkpoints in {self.store.directory} cannot be taken over: {why}")

    def _choose(self, exchange: Exchange) -> Optional[Saved]:
        """Return the newest checkpoint that is sound on all ranks."""
        mine = {saved.path: saved for saved in checkpoint.complete(self.store)}
        # A network's file system may list on one node what it does not list on another yet.
        found = {path for paths in exchange(list(mine)) for path in paths}
        if self.first_count > max((checkpoint.place(path)[0] for path in found), default=0):
            say(f"what was saved last in {self.store.directory} is not whole, and is left out")
        for path in sorted(found, key=lambda path: (checkpoint.place(path), path), reverse=True):
            saved = mine.get(path) or checkpoint.look(path)
            fault = checkpoint.fault(saved, self._checked(saved)) if saved else "not all of it is there"
            faults = [fault for fault in exchange(fault) if fault]
            if saved is not None and not faults:
                self._check_kind(saved)
                return saved
            if checkpoint.WRITABLE in faults[0]:  # not to be lost for that
                raise BadCheckpoint(f"the checkpoint {path} is not read: {faults[0]}")
            say(f"the checkpoint {path} is damaged and skipped: {faults[0]}")
        return None

    def _fitting(self, exchange: Exchange) -> Optional[Dict[str, Any]]:
        """Return this rank's state; BadCheckpoint on all ranks where one cannot go on from its own."""
        state, why = None, ""
        try:
            if self._saved is not None:
                state = self.read()
                check(self._parts, state["parts"])
        except BadCheckpoint as err:
            why = str(err)
        except Exception as err:  # what was pickled has no class any more, or its file is gone
            where = self._saved and self._saved.path
            why = f"the checkpoint {where} cannot be loaded: {type(err).__name__}: {err}"
        for found in filter(None, exchange(why)):
            raise BadCheckpoint(found)
        return state

    def _check_kind(self, saved: Saved) -> None:
        if saved.version != checkpoint.VERSION:
            raise BadCheckpoint(
                f"the checkpoint {saved.path} has version {saved.version}, not {checkpoint.VERSION}: "
                "it wants the gandiva-slurm that wrote it"
            )
        then, now = len(saved.markers), self.store.world
        if then != now and not all(marker["facts"].get("elastic") for marker in saved.markers.values()):
            raise BadCheckpoint(
                f"the checkpoint {saved.path} has {then} ranks, and this job has {now}: only a training that "
                "iterates over an ElasticSampler goes on with another number of them"
            )

    def _checked(self, saved: Saved) -> Set[int]:
        """Return the ranks whose data this one reads through, so that all are."""
        if process_group() is None:
            return set(saved.markers)
        return {rank for rank in saved.markers if rank % self.store.world == self.store.rank}

    def _deal(self, state: Dict[str, Any], saved: Saved) -> None:
        """Make a state this rank's that another number of ranks saved."""
        paths = [checkpoint.data_path(saved, rank) for rank in saved.markers]
        deal(self._parts, state["parts"], lambda: [_load(path, mmap=True)["parts"] for path in paths])
        if self.store.rank not in saved.markers:
            state["now"] = rng.derived(state["now"], f"rank {self.store.rank} at {state['count']}")

    def _write(self, count: int, write: Callable[[Any], Any], found: Dict[str, Any], words: str) -> None:
        if self._last[0] != count:  # what is whole is not written over, not even with the same
            self._last = count, checkpoint.save(self.store, count, write, found)
        say(": ".join(filter(None, (f"saved to {self._last[1]}", words))))


@contextlib.contextmanager
def saying_why_not() -> Iterator[None]:
    """Say what keeps a training from being saved, and let it out."""
    try:
        yield
    except Exception as err:
        if not is_from_signal_handler(err):
            say(f"not saved, training goes on: {err}")
        raise


def _exchange(world: int) -> Exchange:
    group = process_group() if world > 1 else None
    if group is None:
        return lambda mine: [mine]

    def exchange(mine: Any) -> List[Any]:
        found: List[Any] = [None] * group.get_world_size()
        group.all_gather_object(found, mine)
        return found

    return exchange


def _dump(state: Any, out: Any, pickler: Any = pickle) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        pickle.dump(state, out)
        return
    options = torch.serialization
    has_option = hasattr(options, "set_crc32_options")  # torch 2.6
    is_summed = has_option and options.get_crc32_options()
    try:
        if is_summed:
            options.set_crc32_options(False)  # half of the time; the file has a checksum of its own
        torch.save(state, out, pickler)
    finally:
        if is_summed:
            options.set_crc32_options(True)


def _facts(state: Dict[str, Any]) -> Dict[str, Any]:
    return {**facts(), "elastic": state.get("is_elastic", False)}


def _load(path: str, mmap: bool = False) -> Any:
    """Load what was saved, by the descriptor that is known to be of a file of this user's."""
    torch = sys.modules.get("torch")
    with checkpoint.open_ours(path) as file:
        if torch is None:
            return pickle.load(file)
        options: Dict[str, Any] = {"map_location": "cpu"}
        where: Any = file
        if mmap:  # which torch does by a path: this one is the descriptor's
            options["mmap"], where = True, f"/proc/self/fd/{file.fileno()}"
        try:
            return torch.load(where, weights_only=True, **options)
        except Exception as err:
            why = str(err).split("\n", 1)[0][:200]
            say(f"{path} holds more than tensors and plain values, and is unpickled whole: {why}")
        file.seek(0)
        return torch.load(where, weights_only=False, **options)
