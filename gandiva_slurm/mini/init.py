"""Process 1 of a mini cluster: mounts, network, then reaping for ever.

Run by `unshare` as a script under `python -I -S`; it imports the standard library only, because the covers
it mounts may hide the place this package lies in until the binds bring it back.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2), or OSError naming both ends."""
    args = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    if LIBC.mount(args[0], args[1], args[2], ctypes.c_ulong(flags), args[3]) != 0:
        err = ctypes.get_errno()
        raise OSError(err, f"mount {source} on {target}: {os.strerror(err)}")


def open_sources(binds: list[tuple[str, str, bool]]) -> list[tuple[int, str, bool, bool]]:
    """A handle on every source, taken before the covers hide them."""
    return [(os.open(src, os.O_PATH), dst, ro, os.path.isdir(src)) for src, dst, ro in binds]


def make_target(target: str, is_dir: bool) -> None:
    """The mount point, where a cover took it away."""
    if os.path.lexists(target):
        return
    os.makedirs(target if is_dir else os.path.dirname(target), mode=0o755, exist_ok=True)
    if not is_dir:
        os.close(os.open(target, os.O_CREAT, 0o644))


def bind(handle: int, target: str, read_only: bool) -> None:
    """Bind an opened tree at `target`."""
    mount(f"/proc/self/fd/{handle}", target, None, MS_BIND | MS_REC)
    if read_only:
        kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV)
        mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)
    os.close(handle)


def build(plan: dict[str, Any]) -> None:
    """Everything private: mounts, directories, host name, network."""
    os.umask(0o022)
    sources = open_sources(plan["binds"])
    for target, options in plan["covers"].items():
        if os.path.isdir(target):
            mount("tmpfs", target, "tmpfs", MS_NOSUID, options)
    for handle, target, read_only, is_dir in sources:
        make_target(target, is_dir)
        bind(handle, target, read_only)
    for path, mode, uid, gid in plan["directories"]:
        os.makedirs(path, exist_ok=True)
        os.chown(path, uid, gid)
        os.chmod(path, mode)
    socket.sethostname(plan["hostname"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "addr", "add", plan["address"] + "/24", "dev", "lo"], check=True)


def reap() -> None:
    """Collect every orphan; only death ends this."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


def main(root: str) -> None:
    """Build, say so in CLUSTER/ready, stay."""
    with open(os.path.join(root, "init.json")) as file:
        plan = json.load(file)
    build(plan)
    os.chdir("/")
    with open(os.path.join(root, "ready"), "w") as file:
        file.write("ready\n")
    reap()


if __name__ == "__main__":
    main(sys.argv[1])
