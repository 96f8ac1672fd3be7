"""node.carried: files of one node alone that go along with an image, and are put where they were."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.node import carried, put_files
from gandiva_slurm.node.carried import Carried, NotCarried

ME, GID = os.getuid(), os.getgid()
NOBODY = 65534
AS_ROOT = pytest.mark.skipif(ME != 0, reason="root puts files where another user's process is")
Start = Callable[..., int]
#: No process: the task has no file open.
TASK = 4194303
WAIT = "print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def own() -> Iterator[Path]:
    """A directory that each node has its own of."""
    with tempfile.TemporaryDirectory(dir="/tmp") as found:
        Path(found).chmod(0o755)
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
            **({"user": user, "group": user} if user != ME else {}),
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


def stored(place: Path, text: str, path: Path, mode: int = 0o640) -> list[Carried]:
    """A file of an image, as its manifest tells of it."""
    (place / carried.name(0)).write_text(text)
    return [Carried(str(path), mode, 10**15, len(text), 1, True)]


def put(place: Path, files: list[Carried], left: Collection[Carried] = ()) -> str:
    """Put it where this process sees it, as nobody."""
    return put_files.put((os.getpid(), TASK), pwd.getpwuid(NOBODY), place, files, 7, left)


def given(path: Path, text: str = "") -> Path:
    """A file of nobody's."""
    path.write_text(text)
    os.chown(path, NOBODY, NOBODY)
    return path


@pytest.fixture
def open_to_all(own: Path) -> Path:
    """A directory like /tmp."""
    own.chmod(0o1777)
    return own


@AS_ROOT
@pytest.mark.parametrize("there", ["nothing", "no directory", "an empty file", "the same"])
def test_a_file_is_put_where_it_was(open_to_all: Path, tmp_path: Path, there: str) -> None:
    path = open_to_all / ("deep/er/file" if there == "no directory" else "it's $(here) file\udcff")
    if there in ("an empty file", "the same"):
        given(path, "" if there == "an empty file" else "12345").chmod(0o666)
    assert put(tmp_path, stored(tmp_path, "12345", path)) == ""
    status = path.stat()
    assert (path.read_text(), status.st_uid, status.st_nlink) == ("12345", NOBODY, 1)
    assert (status.st_mode & 0o777, status.st_mtime) == (0o640, 1_000_000)
    assert [path.name for path in path.parent.iterdir()] == [path.name]


@AS_ROOT
@pytest.mark.parametrize("there", ["the same of another's", "of root's", "a link", "a fifo", "a directory"])
def test_what_is_anothers_or_no_file_stays(open_to_all: Path, tmp_path: Path, there: str) -> None:
    """A hostile user puts something there before: what is put is put with its user's rights alone."""
    path, other = open_to_all / "file", tmp_path / "root's"
    other.write_text("")
    if there in ("the same of another's", "of root's"):
        path.write_text("12345" if there.startswith("the") else "")
        path.chmod(0o666)
        os.chown(path, 12345 if there.startswith("the") else 0, 0)
    elif there == "a link":
        path.symlink_to(other)
    elif there == "a fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = [path.lstat() for path in open_to_all.iterdir()]
    assert "cannot be put here" in put(tmp_path, stored(tmp_path, "12345", path))
    assert [path.lstat() for path in open_to_all.iterdir()] == before and other.read_text() == ""


@AS_ROOT
@pytest.mark.parametrize("way", ["writable by others", "of another's", "a link"])
def test_its_directory_is_its_own(open_to_all: Path, tmp_path: Path, way: str) -> None:
    """Another user would have a file there that the job then maps."""
    directory, elsewhere = open_to_all / "d", tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    if way == "a link":
        directory.symlink_to(elsewhere)
    else:
        directory.mkdir()
        os.chown(directory, NOBODY if way == "writable by others" else 12345, 0)
        directory.chmod(0o777 if way == "writable by others" else 0o755)
    assert "cannot be put here" in put(tmp_path, stored(tmp_path, "12345", directory / "file"))
    assert not [*directory.iterdir()] and not [*elsewhere.iterdir()]


@AS_ROOT
def test_what_its_user_has_there_is_set_aside_and_what_it_left_itself_is_not(
    open_to_all: Path, tmp_path: Path
) -> None:
    path = given(open_to_all / "file", "mine")
    files = stored(tmp_path, "12345", path)
    for number in range(3):
        assert put(tmp_path, files) == "" and path.read_text() == "12345"
        if number < 2:
            path.write_text(f"changed {number}")
    found = {one.name: one.read_text() for one in open_to_all.iterdir()}
    aside = {"file.before-7": "mine", "file.before-7.1": "changed 0", "file.before-7.2": "changed 1"}
    assert found == {"file": "12345", **aside}
    for is_written in (True, False):
        given(path, "stale")
        status = path.stat()
        mine = Carried(str(path), 0o600, status.st_mtime_ns, status.st_size, status.st_ino, is_written)
        assert put(tmp_path, files, [mine]) == "" and path.read_text() == "12345"
        assert len([*open_to_all.iterdir()]) == (4 if is_written else 5), "what it only read is not its own"


@AS_ROOT
@pytest.mark.parametrize("text", ["mine", "12345", ""])
def test_what_another_program_of_its_user_has_open_stays(
    open_to_all: Path, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """But what has it open is the job's task: it is the job's output."""
    path = given(open_to_all / "file", text)
    task = start(f"f = open({str(path)!r}, 'r+')", NOBODY)
    files = stored(tmp_path, "12345", path)
    assert "another program uses a file of that name" in put(tmp_path, files)
    assert path.read_text() == text and len([*open_to_all.iterdir()]) == 1
    only_read = [files[0]._replace(is_written=False)]
    assert (put(tmp_path, only_read) == "") == (text == "12345"), "many may read one"
    monkeypatch.setattr(sys.modules[__name__], "TASK", task)
    assert put(tmp_path, files) == "" and path.read_text() == "12345"


def test_its_directory_is_its_own_where_it_comes_from_too(own: Path, start: Start) -> None:
    """Elsewhere it could not be put."""
    (own / "file").write_text("12345")
    pid = start(f"f = open({str(own / 'file')!r})")
    for mode, may_go in ((0o755, True), (0o775, True), (0o777, False), (0o1777, True)):
        own.chmod(mode)
        if may_go:
            assert len(carried.find([pid], ME)) == 1
        else:
            with pytest.raises(NotCarried):
                carried.find([pid], ME)


@AS_ROOT
def test_a_full_disk_leaves_nothing_behind(own: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k,mode=1777", "none", str(own)], check=True)
    try:
        why = put(tmp_path, stored(tmp_path, "x" * 100_000, own / "file"))
        assert "No space left" in why and not any(own.iterdir())
    finally:
        subprocess.run(["umount", str(own)], check=True)


@AS_ROOT
def test_one_that_hangs_is_ended(open_to_all: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_files, "MOST_S", 1)
    monkeypatch.setattr(put_files, "_put", lambda *_: time.sleep(60))
    assert "within 1 s" in put(tmp_path, stored(tmp_path, "12345", open_to_all / "file"))


@AS_ROOT
@pytest.mark.parametrize(
    "way, why",
    [
        (lambda *_: {}["odd"], "cannot be put here: 'odd'"),
        (lambda *_: (_ for _ in ()).throw(RuntimeError()), "cannot be put here: RuntimeError"),
        (lambda *_: os.kill(os.getpid(), signal.SIGKILL), "ended with -9"),
    ],
    ids=["a fault of its own", "one without words", "it is killed"],
)
def test_why_it_failed_is_told_whatever_it_is(
    open_to_all: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[..., object], why: str
) -> None:
    monkeypatch.setattr(put_files, "_put", way)
    told = put(tmp_path, stored(tmp_path, "12345", open_to_all / "file"))
    assert told.endswith(why), told


def test_they_are_copied_as_they_stand_and_not_by_a_link(own: Path, tmp_path: Path, start: Start) -> None:
    (own / "file").write_text("12345")
    pid = start(f"f = open({str(own / 'file')!r})")
    files = carried.find([pid], ME)
    carried.copy(pid, files, ME, tmp_path)
    assert (tmp_path / carried.name(0)).read_text() == "12345"
    (tmp_path / carried.name(0)).unlink()
    (own / "file").write_text("123456")
    with pytest.raises(NotCarried, match="changed meanwhile"):
        carried.copy(pid, files, ME, tmp_path)
    (tmp_path / carried.name(0)).unlink()
    own.rename(moved := own.with_name(own.name + ".moved"))
    own.symlink_to(moved)
    try:
        with pytest.raises(NotCarried):
            carried.copy(pid, files, ME, tmp_path)
    finally:
        own.unlink()
        moved.rename(own)
