"""Where a training's checkpoints go and come from: all ranks the same one, each its own part of it."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, Callable, Dict, List, Optional

from gandiva_slurm.client import checkpoint, start
from gandiva_slurm.client.checkpoint import Saved, Store
from gandiva_slurm.client.errors import BadCheckpoint, NotSaved
from gandiva_slurm.client.facts import differences, facts
from gandiva_slurm.client.identity import find_identity, process_group
from gandiva_slurm.client.notice import say
from gandiva_slurm.client.parts import Part, are_replicas, borrow, check, has_hidden_shards

#: Says to every rank what this one has, and returns what all have.
Exchange = Callable[[Any], List[Any]]

_opened = 0


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
        say(f"this training is not saved and cannot be moved: {why}")
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

    def find(self) -> Optional[Dict[str, Any]]:
        """Return what the newest sound checkpoint holds for this rank; None where there is none."""
        exchange = _exchange(self.store.world)
        if os.path.isdir(self.store.directory):
            self._take_over()
        self.first_count = max(exchange(checkpoint.last_count(self.store)))
        try:
            self._saved = self._choose(exchange)
            state = None if self._saved is None else self.read()
            if state is not None:
                check(self._parts, state["parts"])
        except BadCheckpoint as err:
            if os.environ.get("GANDIVA_ON_BAD_CHECKPOINT") != "restart":
                raise BadCheckpoint(f"{err} (GANDIVA_ON_BAD_CHECKPOINT=restart starts anew)") from err
            say(f"{err}; it starts anew, as GANDIVA_ON_BAD_CHECKPOINT says")
            return None
        return state

    def read(self) -> Dict[str, Any]:
        """Read the checkpoint found."""
        saved, rank = self._saved, self.store.rank
        assert saved is not None, "there is nothing to read"
        state: Dict[str, Any] = _load(checkpoint.data_path(saved, rank))
        if state["is_borrower"]:
            state["parts"] = borrow(state["parts"], _load(checkpoint.data_path(saved, 0))["parts"])
        return {**state, "path": saved.path, "facts": saved.markers[rank]["facts"]}

    def write(self, count: int, state: Dict[str, Any]) -> str:
        """Write this rank's part of a checkpoint; return its directory. NotSaved says why not."""
        return checkpoint.save(self.store, count, lambda out: _dump(state, out), facts())

    def is_borrower(self) -> bool:
        """Return True where rank 0 saves this rank's weights too."""
        return self.store.rank > 0 and are_replicas(self._parts)

    def _take_over(self) -> None:
        try:
            checkpoint.claim(self.store, is_start=True)
        except (NotSaved, OSError) as err:
            say(f"the checkpoints in {self.store.directory} cannot be taken over: {err}")

    def _choose(self, exchange: Exchange) -> Optional[Saved]:
        """Return the newest checkpoint that is sound on all ranks."""
        mine = {saved.path: saved for saved in checkpoint.complete(self.store)}
        everywhere = set.intersection(*map(set, exchange(list(mine))))
        ranks = {self.store.rank} if process_group() else set(range(self.store.world))
        for path in [path for path in mine if path in everywhere]:
            saved = mine[path]
            self._check_kind(saved)
            faults = [fault for fault in exchange(checkpoint.fault(saved, ranks)) if fault]
            if not faults:
                return saved
            say(f"the checkpoint {path} is damaged and skipped: {faults[0]}")
        return None

    def _check_kind(self, saved: Saved) -> None:
        if saved.version != checkpoint.VERSION:
            raise BadCheckpoint(
                f"the checkpoint {saved.path} has version {saved.version}, not {checkpoint.VERSION}: "
                "it wants the gandiva-slurm that wrote it"
            )
        if len(saved.markers) != self.store.world:
            then, now = len(saved.markers), self.store.world
            raise BadCheckpoint(f"the checkpoint {saved.path} has {then} ranks, and this job has {now}")


def what_changed(state: Dict[str, Any]) -> str:
    """Return what differs from the process that saved, in words; "" where nothing that matters does."""
    return differences(state["facts"], facts())


def _exchange(world: int) -> Exchange:
    group = process_group() if world > 1 else None
    if group is None:
        return lambda mine: [mine]

    def exchange(mine: Any) -> List[Any]:
        found: List[Any] = [None] * group.get_world_size()
        group.all_gather_object(found, mine)
        return found

    return exchange


def _dump(state: Any, out: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.save(state, out)
    else:
        pickle.dump(state, out)


def _load(path: str) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.load(path, map_location="cpu", weights_only=False)
    with open(path, "rb") as file:
        return pickle.load(file)
