"""A training whose loop a framework drives: the framework saves and loads it, the keeper says when and where.

Into each checkpoint goes what the framework writes, and beside it, rank by rank, what it leaves out: how the
random generators stood when the pass over the data was begun, and when it was saved.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Optional

from gandiva_slurm.client import checkpoint, rng, start, vault
from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.checkpoint import Store
from gandiva_slurm.client.errors import NotSaved
from gandiva_slurm.client.notice import say
from gandiva_slurm.client.rank import cannot_be_moved, this_rank
from gandiva_slurm.client.vault import saying_why_not
from gandiva_slurm.wire.page import KIND_HOOK, KIND_RUN, KIND_STEPS

_ALONE = "neither GANDIVA_SOCKET nor GANDIVA_CHECKPOINT_DIR here: the callback does nothing"
#: Within a checkpoint, what the framework wrote.
_PART = "framework"


class Keeper:
    """Boundaries and checkpoints of such a training on this rank; `saved` is where it goes on, or None."""

    def __init__(
        self, framework: str, save: Callable[[str], None], tell: Callable[[], Dict[str, Any]] = dict
    ) -> None:
        """Look for a checkpoint.

        `framework` is one of wire.page's. `save` lets it write one into a directory, which it makes; on all
        ranks, of which one may fail: none may wait for another behind its own part. `tell` gives what else is
        to be kept of a rank, which `saved` has under "told".
        """
        self._framework, self._save_into, self._tell = framework, save, tell
        self._rank = this_rank()
        is_alone = self._rank is None and start.checkpoint_dir() is None
        # What the script has trained before is in no checkpoint of this one's.
        is_later = not is_alone and not vault.is_first()
        if is_later:
            cannot_be_moved("it is not the script's first training")
        self._vault = None if is_alone or is_later else vault.open_vault([], lockstep=True)
        self.is_alone = self._vault is None and self._rank is None
        self.saved: Optional[Dict[str, Any]] = self._vault.find() if self._vault is not None else None
        self._count = self._vault.first_count if self._vault is not None else 0
        self._total: Optional[int] = None
        self._done = 0
        self._loaders: List[Any] = []
        self._began: Optional[Dict[str, Any]] = None
        self._is_save_wanted = False
        if is_alone:
            say(_ALONE)
        elif self._vault is not None:
            self._vault.say_where(self.saved)

    @property
    def can_save(self) -> bool:
        """True where this training is saved when it is to be."""
        return self._vault is not None

    @property
    def path(self) -> str:
        """The directory that the framework wrote what was saved into."""
        assert self.saved is not None, "nothing was saved"
        return os.path.join(self.saved["path"], _PART)

    def go_on(self) -> None:
        """Mark the boundaries of this process from now on."""
        if self._rank is not None and self._vault is not None:
            self._rank.claim(KIND_RUN, self._save, framework=self._framework)
            self._rank.tell_unmoved("")
        elif self._rank is not None:
            self._rank.claim(KIND_STEPS)

    def stop(self) -> None:
        """The framework's loop is over: the optimizers' steps are the boundaries again."""
        if self._rank is not None:
            self._rank.kind = KIND_STEPS  # which may be claimed back
            self._rank.claim(KIND_HOOK)

    def give_up(self, why: str) -> None:
        """Be parked as ever from now on, and not saved any more."""
        self._vault = None
        cannot_be_moved(why)
        if self._rank is not None:
            self._rank.kind = KIND_HOOK  # which may be claimed back
            self._rank.claim(KIND_STEPS)

    def see(self, *things: Any) -> None:
        """Note what the script trains with."""
        for thing in things:
            if self._rank is not None and thing is not None:
                self._rank.see(thing)

    def begin_pass(self, loaders: List[Any]) -> None:
        """A pass over the data begins, now."""
        self._loaders = loaders
        self._began = rng.capture(loaders) if self._vault is not None else None

    def put_began(self, loaders: List[Any]) -> None:
        """Let the random generators stand as when the pass was begun in which it was saved."""
        assert self.saved is not None, "nothing was saved"
        self._loaders, self._began = loaders, self.saved["began"]
        rng.put(self.saved["began"], loaders)

    def put_now(self) -> None:
        """Let the random generators stand as when it was saved: it has come back there."""
        assert self.saved is not None, "nothing was saved"
        rng.put(self.saved["now"], self._loaders)
        self.saved = None

    def boundary(self, total: int, done: int = 0) -> None:
        """Stand at the top of the loop, mini-batches done: `total` in the training, `done` in this pass."""
        if self._total is None and self._rank is not None and self._rank.kind == KIND_RUN:
            self._rank.begin_at(total)
        mini_batches = total - self._total if self._total is not None else 0
        self._total, self._done = total, done
        self._count += 1
        if self._is_save_wanted:
            self._save_as_asked()
        if self._rank is not None:
            self._rank.boundary(mini_batches)

    def save_soon(self, *_: Any) -> None:
        """Save at the next boundary; a signal handler, too."""
        self._is_save_wanted = True

    def _save_as_asked(self) -> None:
        self._is_save_wanted = False
        try:
            self._save()
        except Exception as err:
            if is_from_signal_handler(err):
                raise

    def _save(self) -> None:
        """Save what is here at this boundary; whatever keeps it from that is said, and raised."""
        with saying_why_not():
            self._write()

    def _write(self) -> None:
        store = self._vault
        if store is None or self.saved is not None:
            raise NotSaved("the training has not come back yet to where it was saved")
        now = rng.capture(self._loaders)
        self._let_framework_write(store.store)
        state = {
            "done": self._done,
            "is_borrower": False,
            "parts": {},
            "now": now,
            "began": self._began,
            "told": self._tell(),
        }
        store.write(self._count, state)

    def _let_framework_write(self, store: Store) -> None:
        path = os.path.join(checkpoint.path_of(store, self._count), _PART)
        try:
            checkpoint.prepare(store, self._count)
            self._save_into(path)
        except OSError as err:
            raise NotSaved(f"no checkpoint in {path}: {err.strerror or err}") from err
        for directory, _, files in os.walk(path):
            for name in files:
                _sync(os.path.join(directory, name))


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
