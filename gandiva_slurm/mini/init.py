"""Process 1 of a mini cluster: mounts, network, then reaping for ever.

Run by `unshare` as a script under `python -I -S`; it imports the standard library only, because the covers
it mounts may hide the place this package lies in until the binds bring it back.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
CLONE_NEWCGROUP = 0x02000000
#: Where control groups are, with version 2 beside version 1, and what of version 1 Slurm is given.
ROOT, UNIFIED, V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/unified", ("freezer", "memory")
LIBC = ctypes.CDLL(None, use_errno=True)
#: Private memory for the overlays; nobody but root looks in.
OVERLAYS = "/run/overlays"


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2), or OSError naming both ends."""
    args = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    done = LIBC.mount(args[0], args[1], args[2], ctypes.c_ulong(flags), args[3])
    checked(done, f"mount {source} on {target}")


def checked(done: int, what: str) -> None:
    """OSError naming `what` where a call of the C library failed."""
    if done != 0:
        err = ctypes.get_errno()
        raise OSError(err, f"{what}: {os.strerror(err)}")


def make_target(target: str, is_dir: bool) -> None:
    """The mount point, where a cover took it away."""
    if os.path.lexists(target):
        return
    os.makedirs(target if is_dir else os.path.dirname(target), mode=0o755, exist_ok=True)
    if not is_dir:
        os.close(os.open(target, os.O_CREAT, 0o644))


def read_only(target: str) -> None:
    """Nothing below `target` can be changed through this mount."""
    kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV)
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def allow_programs(target: str) -> None:
    """Debian mounts /run noexec; job scripts and the SPANK plugin lie below it."""
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV)


def bind(handle: int, target: str) -> None:
    """Bind what `handle` holds open at `target`."""
    make_target(target, os.path.isdir(f"/proc/self/fd/{handle}"))
    mount(f"/proc/self/fd/{handle}", target, None, MS_BIND | MS_REC)


def overlay(handle: int, target: str, modes: list[tuple[str, int]]) -> None:
    """Show a tree at `target` with other modes; only the modes are copied, into memory."""
    make_target(target, True)
    top = os.path.join(OVERLAYS, str(handle))
    for name in ("upper", "work"):
        os.makedirs(os.path.join(top, name))
    options = f"lowerdir=/proc/self/fd/{handle},upperdir={top}/upper,workdir={top}/work,metacopy=on"
    mount("overlay", target, "overlay", 0, options)
    for name, mode in modes:
        with contextlib.suppress(FileNotFoundError):  # it has gone since
            os.chmod(os.path.join(target, name), mode)


def own_copy(directory: str) -> None:
    """Put an overlay over a directory of the host's, for what is bound over its files.

    The kernel takes such mounts away, in every namespace, when the host replaces the file, as useradd does
    with /etc/passwd. Where no overlay can be had, it is left so.
    """
    handle = os.open(directory, os.O_PATH)
    with contextlib.suppress(OSError):
        overlay(handle, directory, [])
    os.close(handle)


def show_groups() -> None:
    """Let parked jobs be frozen: control groups of version 2, where the kernel has them."""
    with contextlib.suppress(OSError):
        mount_groups(UNIFIED)


def mount_groups(target: str) -> None:
    """The hierarchy of version 2 at `target`, or that of version 1 whose controller the directory names."""
    os.makedirs(target, exist_ok=True)
    name = os.path.basename(target)
    kind = ("cgroup", "cgroup", name) if name in V1 else ("cgroup2", "cgroup2", None)
    mount(kind[0], target, kind[1], MS_NOSUID | MS_NODEV | MS_NOEXEC, kind[2])


def own_groups(kind: str, name: str) -> None:
    """Have a group `name` for this cluster in each hierarchy, which is their root for all inside."""
    targets = [ROOT] if kind == "v2" else [UNIFIED, *(f"{ROOT}/{controller}" for controller in V1)]
    for target in targets:
        mount_groups(target)
        os.makedirs(os.path.join(target, name), exist_ok=True)
        with open(os.path.join(target, name, "cgroup.procs"), "w") as file:
            file.write("0")
        checked(LIBC.umount2(target.encode(), 0), f"umount {target}")
    checked(LIBC.unshare(CLONE_NEWCGROUP), "a namespace of control groups")
    for target in targets:
        mount_groups(target)
    if kind == "v2":  # as systemd has it: no process beside the groups that Slurm makes
        for group in ("system.slice", "init.scope"):
            os.mkdir(os.path.join(ROOT, group))
        with open(os.path.join(ROOT, "init.scope", "cgroup.procs"), "w") as file:
            file.write("0")


def hold(path: str, identity: tuple[int, int]) -> int:
    """Open a shared directory; ends here when another one is at its path than the one that was judged."""
    try:
        handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        seen, real = os.fstat(handle), os.readlink(f"/proc/self/fd/{handle}")
    except OSError as err:
        sys.exit(f"gandiva: the shared directory {path}: {err.strerror}")
    if (seen.st_dev, seen.st_ino) != identity or real != path:
        sys.exit(f"gandiva: the shared directory {path} was changed while the cluster came up; "
                 "next: see to it that nobody else may rename it, and bring the cluster up again")
    return handle


def bind_share(handle: int, path: str, identity: tuple[int, int], covers: Iterable[str]) -> None:
    """Bind what `handle` holds at `path`, as it is; somebody may change names on the way meanwhile."""
    if any(path.startswith(cover + "/") for cover in covers):
        os.umask(0o066)
        os.makedirs(path, exist_ok=True)
        os.umask(0o022)
    target = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    if os.readlink(f"/proc/self/fd/{target}") != path:
        sys.exit(f"gandiva: the way to the shared directory {path} was changed while the cluster came up")
    mount(f"/proc/self/fd/{handle}", f"/proc/self/fd/{target}", None, MS_BIND | MS_REC)
    os.close(target)
    # Programs of the host that change who runs them, and its devices, are nothing for the users inside.
    shown = hold(path, identity)
    kept = os.fstatvfs(shown).f_flag & (MS_RDONLY | MS_NOEXEC)
    mount("none", f"/proc/self/fd/{shown}", None, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | kept)
    os.close(shown)


def show_tree(handle: int, tree: str, modes: list[tuple[str, int]]) -> None:
    """The interpreter or the clone at its own path, read-only, readable by everybody."""
    if modes:
        overlay(handle, tree, modes)
    else:
        bind(handle, tree)
    read_only(tree)


def show_all(plan: dict[str, Any], handles: dict[str, int], held: dict[str, int]) -> None:
    """Trees and shares, the outer first, lest they hide what lies in them; then the trees' other names."""
    steps = [(tree, partial(show_tree, handles[tree], tree, modes)) for tree, modes in plan["trees"]]
    steps += [(path, partial(bind_share, held[path], path, (device, inode), plan["covers"]))
              for path, device, inode in plan["shares"]]
    for _, step in sorted(steps, key=lambda step: step[0].count("/")):
        step()
    for alias in plan["aliases"]:
        if not os.path.exists(alias):
            bind(handles[alias], alias)
            read_only(alias)


def build(plan: dict[str, Any]) -> None:
    """Everything private: mounts, directories, host name, network."""
    os.umask(0o022)
    sources = [tree for tree, _ in plan["trees"]] + plan["aliases"] + [source for source, _ in plan["binds"]]
    handles = {source: os.open(source, os.O_PATH) for source in sources}
    held = {path: hold(path, (device, inode)) for path, device, inode in plan["shares"]}
    for target, options in plan["covers"].items():
        if os.path.isdir(target):
            mount("tmpfs", target, "tmpfs", MS_NOSUID, options)
    if plan["cgroups"]:
        own_groups(plan["cgroups"], plan["group"])
    else:
        show_groups()
    os.mkdir(OVERLAYS, 0o700)
    show_all(plan, handles, held)
    own_copy("/etc")
    for source, target in plan["binds"]:
        bind(handles[source], target)
        allow_programs(target)
    for handle in (*handles.values(), *held.values()):
        os.close(handle)
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
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
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
