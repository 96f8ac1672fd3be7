"""node.carried: files of one node alone that go along with an image, and are put where they were."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.node import carried
from gandiva_slurm.node.carried import Carried, NotCarried

ME, GID = os.getuid(), os.getgid()
NOBODY = 65534
AS_ROOT = pytest.mark.skipif(ME != 0, reason="root puts files where another user's process is")
Start = Callable[..., int]
WAIT = "print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def own() -> Iterator[Path]:
    """A directory that each node has its own of."""
    with tempfile.TemporaryDirectory(dir="/tmp") as found:
        Path(found).chmod(0o777)
        yield Path(found)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program that does this and waits; returns its pid. All end with the test."""
    made: list[subprocess.Popen[str]] = []

    def begin(text: str, user: int = ME) -> int:
        words = [
            sys.executable,
            "-c",
            f"import mmap, os, sys\n{text}\nprint('ready', flush=True); sys.stdin.read()",
        ]
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
            user=user if user != ME else None,
        )  # fmt: skip
        made.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process.pid

    yield begin
    for process in made:
        process.kill()
        process.communicate()


MAPPED = "m = mmap.mmap(os.open({0!r}, os.O_RDWR), 5)"
#: All that was opened is closed again: only the mapping is there.
MAPPED_ALONE = MAPPED + "; os.closerange(3, 99)"


@pytest.mark.parametrize(
    ("text", "is_written"),
    [
        ("f = open({0!r})", False),
        ("f = open({0!r}, 'a')", True),
        ("f = open({0!r}, 'r+')", True),
        (MAPPED_ALONE, True),
        ("m = mmap.mmap(os.open({0!r}, os.O_RDONLY), 5, prot=mmap.PROT_READ); os.closerange(3, 99)", False),
    ],
)
def test_what_it_has_open_or_mapped_is_found(own: Path, start: Start, text: str, is_written: bool) -> None:
    file = own / "a file"
    file.write_text("12345")
    file.chmod(0o640)
    (found,) = carried.find([start(text.format(str(file)))], ME)
    assert (found.path, found.mode, found.is_written) == (str(file), 0o640, is_written)
    assert bool(carried.why_not_kept([found])) is is_written


def test_what_is_deleted_or_seen_by_all_nodes_is_not(own: Path, start: Start) -> None:
    gone = f"f = open({str(own / 'gone')!r}, 'w'); os.unlink(f.name); g = open('/etc/passwd')"
    assert carried.find([start(gone)], ME) == []
    (own / "left").write_text("x")
    pid = start(f"f = open({str(own / 'left')!r})")
    assert len(carried.find([pid], ME)) == 1 and carried.find([pid], ME, (f"{own}/",)) == []


@pytest.mark.parametrize("made", ["link", "fifo", "other", "large", "many", "run"])
def test_what_is_not_its_own_small_file_is_refused(
    own: Path, start: Start, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    file, user = own / "file", ME
    file.write_text("12345")
    if made == "link":
        os.link(file, own / "second")
    elif made == "fifo":
        file.unlink()
        os.mkfifo(file)
    elif made == "other":
        user = ME + 1
    elif made == "large":
        monkeypatch.setattr(carried, "MOST_BYTES", 4)
    elif made == "many":
        monkeypatch.setattr(carried, "MOST_FILES", 0)
    else:
        monkeypatch.setattr(carried, "_CARRIED", ("/dev/shm/",))
    pid = start(f"f = os.open({str(file)!r}, os.O_RDWR)")
    with pytest.raises(NotCarried, match=r"only this node has|MiB there"):
        carried.find([pid], user)


@AS_ROOT
def test_what_another_program_has_open_is_refused_where_it_is_written(own: Path, start: Start) -> None:
    file = own / "shared"
    file.write_text("12345")
    file.chmod(0o666)
    start(f"f = open({str(file)!r})", NOBODY)
    reads, writes = (start(f"f = open({str(file)!r}, {mode!r})") for mode in ("r", "r+"))
    assert len(carried.find([reads], ME)) == 1
    with pytest.raises(NotCarried, match="and so does another program"):
        carried.find([writes], ME)


def stored(place: Path, text: str, path: Path, mode: int = 0o640) -> list[list[Any]]:
    """A file of an image, as its manifest tells of it."""
    (place / "carried-0").write_text(text)
    return carried.facts([Carried(str(path), mode, 1_000_000, True, 0, 0)])


def put(place: Path, told: list[list[Any]]) -> str:
    """Put it where this process sees it, as nobody."""
    return carried.put(os.getpid(), str(NOBODY), NOBODY, place, told)


@AS_ROOT
@pytest.mark.parametrize("there", ["nothing", "no directory", "an empty file", "the same"])
def test_a_file_is_put_where_it_was(own: Path, tmp_path: Path, there: str) -> None:
    path = own / "deep/er/file" if there == "no directory" else own / "it's $(here) file"
    if there in ("an empty file", "the same"):
        path.write_text("" if there == "an empty file" else "12345")
        os.chown(path, NOBODY, NOBODY)
    assert put(tmp_path, stored(tmp_path, "12345", path)) == ""
    status = path.stat()
    assert (path.read_text(), status.st_uid) == ("12345", NOBODY)
    if there != "the same":
        assert (status.st_mode & 0o777, status.st_mtime) == (0o640, 1_000_000)


@AS_ROOT
@pytest.mark.parametrize(
    "there", ["another", "of root's", "a link", "a link to nothing", "a fifo", "a directory"]
)
def test_what_is_there_is_never_written_over(own: Path, tmp_path: Path, there: str) -> None:
    """A hostile user puts something there meanwhile: what is put is put with that user's rights alone."""
    path, other = own / "file", tmp_path / "root's"
    other.write_text("")
    if there in ("another", "of root's"):
        path.write_text("54321" if there == "another" else "")
        path.chmod(0o600)
    elif there.startswith("a link"):
        path.symlink_to(other if there == "a link" else tmp_path / "none")
    elif there == "a fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = sorted(own.iterdir())
    assert "cannot be put here" in put(tmp_path, stored(tmp_path, "12345", path))
    assert sorted(own.iterdir()) == before and other.read_text() == "" and not (tmp_path / "none").exists()
    if there == "another":
        assert path.read_text() == "54321"


@AS_ROOT
def test_a_full_disk_leaves_nothing_behind(own: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k,mode=777", "none", str(own)], check=True)
    try:
        why = put(tmp_path, stored(tmp_path, "x" * 100_000, own / "file"))
        assert "No space left" in why and not any(own.iterdir())
    finally:
        subprocess.run(["umount", str(own)], check=True)


@AS_ROOT
def test_what_was_written_is_removed_and_what_has_taken_its_place_is_not(own: Path) -> None:
    texts = {"written": "r+", "read": "r", "replaced": "r+", "roots": "r+"}
    for name in texts:
        (own / name).write_text("x")
        if name != "roots":
            os.chown(own / name, NOBODY, NOBODY)
    own.chmod(0o1777)
    files = [
        Carried(
            str(own / name), 0o600, 0, mode == "r+", (own / name).stat().st_dev, (own / name).stat().st_ino
        )
        for name, mode in texts.items()
    ]
    (own / "new").write_text("another's")
    (own / "new").rename(own / "replaced")
    carried.remove(str(NOBODY), NOBODY, files)
    assert sorted(path.name for path in own.iterdir()) == ["read", "replaced", "roots"]
