"""Which processes an image is of, and what cannot be in one: by real processes of this host."""

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.node import imageable, procs
from gandiva_slurm.node.imageable import NoImage, Tree
from gandiva_slurm.node.procs import ProcId

ME = os.getuid()
GID = pwd.getpwuid(ME).pw_gid
#: A process that says what it is, does what it is told and waits: `text` is run before.
HOLD = "import os, socket, sys\n{0}\nprint('ready', flush=True)\nsys.stdin.read()\n"


@pytest.fixture
def held(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test."""
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        process.kill()
        process.communicate()


def tree_of(held: list[subprocess.Popen[str]], text: str = "", cwd: str = "/") -> Tree:
    """A process that has done this, as a job's tree."""
    words = [sys.executable, "-c", HOLD.format(text)]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=cwd
    )
    held.append(process)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    root = procs.read_proc(process.pid)
    assert root is not None
    return Tree(root.id, None, (root, *procs.below([root.pid])))


def why_not(tree: Tree, gid: int = GID) -> str:
    """Why no image can be made of it; "" when one can."""
    try:
        imageable.check(tree, gid)
    except NoImage as err:
        return str(err)
    return ""


def test_a_plain_process_can_be_in_an_image(held: list[subprocess.Popen[str]]) -> None:
    assert why_not(tree_of(held)) == ""
    text = "import select\np = select.epoll(); e = os.eventfd(0); m = os.memfd_create('x')"
    assert why_not(tree_of(held, text)) == ""


@pytest.mark.parametrize(
    "text, told",
    [
        ("s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()", "socket of the network open (tcp)"),
        ("s = socket.socket(socket.AF_INET6); s.bind(('::1', 0)); s.listen()", "network open (tcp6)"),
        ("s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0))", "network open (udp)"),
        ("f = open('/run/gandiva-own-%d' % os.getpid(), 'w')", "only this node has"),
        ("f = open('/dev/shm/sem.gandiva-own-%d' % os.getpid(), 'w')", "only this node has"),
        ("f = open('/dev/tty0') if False else os.open('/dev/ptmx', os.O_RDWR)", "the device /dev/p"),
    ],
)
def test_what_cannot_be_in_one_is_told(held: list[subprocess.Popen[str]], text: str, told: str) -> None:
    if "::1" in text and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    tree = tree_of(held, text)
    try:
        assert told in why_not(tree)
    finally:
        for place in ("/run/", "/dev/shm/sem."):
            Path(f"{place}gandiva-own-{tree.root.pid}").unlink(missing_ok=True)


def test_a_deleted_file_goes_along_and_a_working_directory_of_the_node_does_not(
    held: list[subprocess.Popen[str]],
) -> None:
    gone = "f = open('/dev/shm/gandiva-%d' % os.getpid(), 'w'); os.unlink(f.name)"
    assert why_not(tree_of(held, gone)) == ""
    assert "/tmp/" in why_not(tree_of(held, cwd="/tmp"))


def test_another_group_is_refused(held: list[subprocess.Popen[str]]) -> None:
    assert "another group" in why_not(tree_of(held), GID + 1)


@pytest.mark.skipif(ME != 0, reason="a process of another user's")
def test_a_tree_is_found_by_its_stepd_and_refused_where_there_are_more(
    held: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    below = "import subprocess; c = [subprocess.Popen(['sleep', '60']) for _ in range({})]"
    one, two, none = (tree_of(held, below.format(count)) for count in (1, 2, 0))
    stepds = {tree.root.pid for tree in (one, two, none)}
    monkeypatch.setattr(procs, "title", lambda pid: "slurmstepd: [7.batch]" if pid in stepds else "sleep")
    try:
        found = imageable.find_tree([one.root], ME)
        assert found.first is None and [proc.pid for proc in found.procs] == procs.children(one.root.pid)
        assert found.inner == found.root.pid
        for bad in ([two.root], [none.root], [one.root, two.root], []):
            with pytest.raises(NoImage):
                imageable.find_tree(bad, ME)
        with pytest.raises(NoImage, match="another user's rights"):
            imageable.find_tree([one.root], ME + 1)
    finally:
        for child in [*procs.children(one.root.pid), *procs.children(two.root.pid)]:
            os.kill(child, 9)


def test_the_batch_script_is_known_by_its_name(held: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    script = tmp_path / "slurm_script"
    script.write_text("")
    assert imageable.script_of(tree_of(held, f"f = open({str(script)!r})")) == str(script)
    assert imageable.script_of(tree_of(held)) == ""


def test_directories_of_its_sockets_are_known(held: list[subprocess.Popen[str]]) -> None:
    text = "import tempfile; d = tempfile.mkdtemp(dir='/tmp'); s = socket.socket(socket.AF_UNIX)\n"
    tree = tree_of(held, text + "s.bind(d + '/listener'); s.listen(); print(d, file=open('/dev/null', 'w'))")
    (found,) = imageable.socket_directories(tree)
    assert found.startswith("/tmp/") and os.listdir(found) == ["listener"] and why_not(tree) == ""
    (Path(found) / "listener").unlink()
    Path(found).rmdir()


def test_a_process_that_is_gone_has_no_pid_in_its_namespace() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=60)
    assert imageable.inner_pid(process.pid) == 0
    assert imageable.inner_pid(os.getpid()) == os.getpid()
    assert not procs.is_alive(ProcId(process.pid, 1))
