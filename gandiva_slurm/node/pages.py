"""Control pages, the daemon's side: memfds made and sealed here, used by descriptor only (ADR 0006).

A mapped page could be truncated by its user and would then kill the daemon; a sealed one read by pread
cannot. Nothing in a rank's lines is believed: all that is read are numbers, acted upon only where they
match a command.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterable

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.procs import ProcId, open_pidfd
from gandiva_slurm.wire import page as wire

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
#: All words that are ever looked at, in one read.
_WORDS = 80
_FORMAT = struct.Struct(f"={_WORDS}Q")
_WORD = struct.Struct("=Q")
_STAMPS = struct.Struct(f"={wire.STAMPS}Q")
#: Words that are moments of the rank's even clock.
_TIMES = frozenset({wire.W_BEAT, wire.W_WAKE_BY, wire.W_LAST_NS, wire.W_FIRST_NS})
#: x86-64, aarch64 and every newer port of Linux number it so.
_SYS_PIDFD_GETFD = 438


class Page:
    """One rank's page. `fd` is a file description of our own: flags the rank sets on its do not reach it.

    `shift_ns`: how far the rank's even clock is ahead of ours, in a time namespace (ADR 0054). What is read
    and written here is by ours.
    """

    def __init__(self, fd: int, shift_ns: int = 0) -> None:
        self.fd = fd
        self.shift_ns = shift_ns

    @classmethod
    def make(
        cls,
        key: JobKey,
        rank: int,
        world: int,
        now_ns: int,
        shift_ns: int = 0,
        owner: tuple[int, int] | None = None,
    ) -> Page:
        """Return a new page, sealed, with the node's lines filled: nobody is asked to park.

        `owner`: uid and gid that it is to have, where an image of it may be restored as that user.
        """
        fd = os.memfd_create("gandiva-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        page = cls(fd, shift_ns)
        if owner is not None:
            os.fchown(fd, *owner)
        os.ftruncate(fd, wire.PAGE_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        page.write(
            [
                (wire.W_VERSION, wire.VERSION),
                (wire.W_INCARNATION, incarnation(key)),
                (wire.W_RANK, rank),
                (wire.W_WORLD, world),
                (wire.W_AT2, wire.NEVER),
                (wire.W_WORD, wire.word(0, wire.CMD_RUN)),
                (wire.W_AT, wire.NEVER),
                (wire.W_BEAT, now_ns),
                (wire.W_MAGIC, wire.MAGIC),
            ]
        )
        return page

    @classmethod
    def take_back(cls, proc: ProcId, remote_fd: int, key: JobKey, shift_ns: int = 0) -> Page | None:
        """Return the page a rank still has open under `remote_fd`; None when it is not the page we made."""
        pidfd = open_pidfd(proc)
        if pidfd is None:
            return None
        try:
            fd = _pidfd_getfd(pidfd, remote_fd)
        finally:
            os.close(pidfd)
        if fd is None:
            return None
        try:
            # Seals first: only a memfd has them, and only of a memfd is it known that reading it cannot
            # block.
            if not _is_sealed(fd) or os.fstat(fd).st_size != wire.PAGE_BYTES:
                return None
            page = cls(reopen(fd), shift_ns)
        except OSError:
            return None
        finally:
            os.close(fd)
        words = page.read()
        if words[wire.W_MAGIC] != wire.MAGIC or words[wire.W_INCARNATION] != incarnation(key):
            page.close()
            return None
        return page

    def read(self) -> tuple[int, ...]:
        """Return the page's words."""
        data = os.pread(self.fd, _FORMAT.size, 0)
        words = _FORMAT.unpack(data) if len(data) == _FORMAT.size else (0,) * _WORDS
        if not self.shift_ns:
            return words
        ours = list(words)
        for index in _TIMES:
            ours[index] = max(0, words[index] - self.shift_ns) if words[index] else 0
        return tuple(ours)

    def stamps(self) -> tuple[int, ...]:
        """Return when its newest boundaries were, by our clock, in no order; 0 where none was."""
        data = os.pread(self.fd, _STAMPS.size, wire.W_STAMPS * wire.WORD_BYTES)
        found = _STAMPS.unpack(data) if len(data) == _STAMPS.size else ()
        return tuple(max(0, stamp - self.shift_ns) for stamp in found)

    def write(self, words: Iterable[tuple[int, int]]) -> None:
        """Write (index, value) one after the other, in this order."""
        for index, value in words:
            value += self.shift_ns if index in _TIMES and value else 0
            os.pwrite(self.fd, _WORD.pack(value & wire.NEVER), index * wire.WORD_BYTES)

    def close(self) -> None:
        """Close our descriptor; the rank keeps its own."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def reopen(fd: int) -> int:
    """Return a second file description of the same memory: what is passed on shares no flags with ours."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def incarnation(key: JobKey) -> int:
    """The page's INCARNATION word."""
    return key.job_id << 32 | (key.restart & 0xFFFFFFFF)


def error_text(words: tuple[int, ...]) -> str:
    """Return the rank's error text, made printable."""
    return _text(words, wire.ERROR_OFFSET, wire.ERROR_BYTES)


def unmoved_text(words: tuple[int, ...]) -> str:
    """Return why the rank's training cannot be moved, made printable; "" where nothing is told."""
    return _text(words, wire.UNMOVED_OFFSET, wire.UNMOVED_BYTES)


def _text(words: tuple[int, ...], offset: int, size: int) -> str:
    first, count = offset // wire.WORD_BYTES, size // wire.WORD_BYTES
    raw = struct.pack(f"={count}Q", *words[first : first + count])
    text = raw.split(b"\0", 1)[0].decode(errors="replace")
    return "".join(char if char.isprintable() else " " for char in text)


def _is_sealed(fd: int) -> bool:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False


def _pidfd_getfd(pidfd: int, remote_fd: int) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    number, flags = ctypes.c_long(_SYS_PIDFD_GETFD), ctypes.c_uint(0)
    fd = libc.syscall(number, ctypes.c_int(pidfd), ctypes.c_int(remote_fd), flags)
    return fd if fd >= 0 else None
