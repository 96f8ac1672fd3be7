"""Control pages: sealed, taken back from a living process, and proof against what a user may do to them."""

import errno
import fcntl
import mmap
import os
import subprocess
import sys

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import procs
from gandiva_slurm.node.pages import Page, error_text, reopen
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.wire import page as wire

KEY = JobKey(7, 1)


@pytest.fixture
def page():
    page = Page.make(KEY, 1, 2, 12345)
    yield page
    page.close()


@pytest.fixture
def child(page):
    """A process that has the page open, as a rank would."""
    given = reopen(page.fd)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(given,))
    os.close(given)
    yield ProcId(process.pid, procs.read_proc(process.pid).start), given
    process.kill()
    process.communicate()


def test_a_new_page_asks_nobody_to_park(page):
    words = page.read()
    assert words[wire.W_MAGIC] == wire.MAGIC and words[wire.W_VERSION] == wire.VERSION
    assert (words[wire.W_RANK], words[wire.W_WORLD]) == (1, 2)
    assert words[wire.W_AT] == words[wire.W_AT2] == wire.NEVER
    assert words[wire.W_BEAT] == 12345
    assert words[wire.W_INCARNATION] == 7 << 32 | 1


def test_its_holder_maps_it_and_cannot_change_its_size(page):
    theirs = reopen(page.fd)
    with mmap.mmap(theirs, wire.PAGE_BYTES) as memory:
        memory[wire.W_SEQ * 8 : wire.W_SEQ * 8 + 8] = (99).to_bytes(8, sys.byteorder)
    assert page.read()[wire.W_SEQ] == 99
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(theirs, size)
    os.close(theirs)


def test_flags_its_holder_sets_do_not_reach_the_daemon(page):
    theirs = reopen(page.fd)
    fcntl.fcntl(theirs, fcntl.F_SETFL, os.O_APPEND)
    page.write([(wire.W_BEAT, 5)])
    assert page.read()[wire.W_BEAT] == 5
    os.close(theirs)


def test_values_of_more_than_a_word_are_cut(page):
    page.write([(wire.W_WAKE_BY, (1 << 64) + 3)])
    assert page.read()[wire.W_WAKE_BY] == 3


def test_a_page_is_taken_back_from_its_process(page, child):
    proc, fd = child
    again = Page.take_back(proc, fd, KEY)
    again.write([(wire.W_BEAT, 77)])
    assert page.read()[wire.W_BEAT] == 77
    again.close()


@pytest.mark.parametrize("wrong", ["start", "fd", "key", "pipe"])
def test_what_is_not_that_page_is_not_taken(child, wrong):
    proc, fd = child
    if wrong == "start":
        proc = ProcId(proc.pid, proc.start + 1)
    number = {"fd": 900, "pipe": 0}.get(wrong, fd)
    before = len(os.listdir("/proc/self/fd"))
    assert Page.take_back(proc, number, JobKey(7, 2) if wrong == "key" else KEY) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_unsealed_memory_file_is_not_taken():
    with open(os.memfd_create("forged", 0), "r+b") as forged:
        forged.write(wire.MAGIC.to_bytes(8, sys.byteorder).ljust(wire.PAGE_BYTES, b"\0"))
        forged.flush()
        argv = [sys.executable, "-c", "input()"]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=(forged.fileno(),))
        proc = ProcId(process.pid, procs.read_proc(process.pid).start)
        assert Page.take_back(proc, forged.fileno(), KEY) is None
        process.kill()
        process.communicate()


def test_error_text_is_made_printable(page):
    os.pwrite(page.fd, b"out of\x1b[2J memory\0rest", wire.ERROR_OFFSET)
    assert error_text(page.read()) == "out of [2J memory"


def test_a_closed_page_is_closed_once(page):
    fd = page.fd
    page.close()
    page.close()
    with pytest.raises(OSError) as caught:
        os.fstat(fd)
    assert caught.value.errno == errno.EBADF
