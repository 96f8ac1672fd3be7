"""Restoring an image below the new slurmstepd's task: a program of its own, as `imaging`.

slurmstepd ─ task, waits and hands on signals (the user) ─ process 1 of new namespaces (root) ─ the root
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import criu, image_cards, images, picture, procs, put_files
from gandiva_slurm.node.carried import Carried
from gandiva_slurm.node.imageable import inner_pid

#: A mount takes no time.
_MOUNT_S = 10.0
_RIGHTS = ("CapInh", "CapPrm", "CapEff", "CapAmb")


def restore(task: dict[str, Any]) -> dict[str, Any]:
    """Restore the image of `key` below `first`; return the root's pid here. BadImage, OSError: nothing is."""
    root, key, uid, first = Path(task["image_dir"]), JobKey.parse(task["key"]), task["uid"], task["first"]
    began_s, who = time.monotonic(), pwd.getpwuid(uid)
    place = Path(task["place"])
    manifest = images.read(root, key, uid, place)
    card, gpus = manifest.get("card"), task["gpus"]
    lack = picture.why_not_here(manifest["picture"]) or _lack_of_script(manifest["script"])
    if card and not lack:
        lack = task["cards"] or image_cards.why_not_here(card, gpus, None if task.get("is_check") else root)
    if lack:
        raise images.BadImage(lack)
    images.verify(place, key, manifest)
    verified_s = time.monotonic()
    for pid in (first, os.getpid()):
        join_groups(task["task"], pid)
    take_limits(task["task"])
    work = images.new_work(root, key, task["by"], uid, who.pw_gid)
    here = root / "here"
    try:
        _mount(first, ["mount", "--make-rslave", "/"])
        _mount(first, ["mount", "-t", "proc", "proc", "/proc"])
        _mount(first, ["mount", "--bind", str(place), str(here)])
        for directory in manifest["directories"]:
            _make_directory(first, who.pw_name, who.pw_gid, directory)
        left = [Carried(*row) for row in manifest.get("left", {}).get(task.get("node", ""), ())]
        files = [Carried(*row) for row in manifest.get("files_of_node", ())]
        if lack := put_files.put((first, task["task"]), who, place, files, key.job_id, left):
            raise images.BadImage(lack)
        # Even clocks only go on: whole seconds are rounded up.
        ahead_s = -(-(manifest["mono_ns"] - time.monotonic_ns()) // 10**9)
        inside = [*criu.within(first), *criu.shifted(ahead_s), *criu.as_user(who.pw_name, who.pw_gid)]
        bound_s = criu.bound_s(images.size_of(manifest))
        argv = [*inside, *criu.bounded(bound_s), *criu.restore(here, work)]
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=bound_s + 10,
            cwd="/",
        )
        if done.returncode != 0:
            late = " in time" if done.returncode in (124, 137) else ""
            raise images.BadImage(f"criu did not restore it{late}: {criu.why(work / 'restore.log')}")
        _mount(first, ["umount", str(here)])
    finally:
        shutil.rmtree(work, ignore_errors=True)
    found = {inner_pid(proc.pid): proc for proc in procs.below([first])}
    if manifest["inner"] not in found:
        raise images.BadImage("its processes ended as soon as they were restored")
    if any(has_rights(procs.read_text(proc.pid, "status")) for proc in found.values()):
        raise images.BadImage("a restored process has rights that its user has not")
    if card:
        image_cards.put_on(found[card["inner"]].id, card, gpus)
    times = {"verify_s": verified_s - began_s, "restore_s": time.monotonic() - verified_s}
    return {"root": found[manifest["inner"]].id, "procs": {n: proc.id for n, proc in found.items()}, **times}


def most_s(size: int) -> float:
    """Return how long `restore` may take for an image of `size` bytes: it is verified first."""
    return 2.0 * criu.bound_s(size)


def has_rights(status: str) -> bool:
    """True when a process, by a text of /proc/PID/status, has a capability."""
    words = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return any(int(words.get(name, "1"), 16) for name in _RIGHTS)


def join_groups(leader: int, pid: int) -> None:
    """Have a process enter the control groups of another; OSError when that fails."""
    mine, mounts = procs.read_text(pid, "cgroup").splitlines(), _mounts()
    for line in procs.read_text(leader, "cgroup").splitlines():
        if line in mine:
            continue
        _, controllers, path = line.split(":", 2)
        name = controllers.removeprefix("name=").split(",")[0]
        top = Path("/sys/fs/cgroup", name) if name else _unified()
        # Within a container what is mounted may begin below the hierarchy's own root.
        group = top / os.path.relpath(path, mounts.get(str(top), "/"))
        (group / "cgroup.procs").write_text(str(pid))


def take_limits(pid: int) -> None:
    """Have what another process has of processors and limits: criu starts what it restores with ours."""
    os.sched_setaffinity(0, os.sched_getaffinity(pid))
    for name in (name for name in dir(resource) if name.startswith("RLIMIT_")):
        with contextlib.suppress(OSError, ValueError):  # without CAP_SYS_RESOURCE none is raised
            resource.setrlimit(getattr(resource, name), resource.prlimit(pid, getattr(resource, name)))


def _mounts() -> dict[str, str]:
    """What of its file system is mounted at each place, by /proc/self/mountinfo."""
    rows = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {row[4]: row[3] for row in rows}


def _unified() -> Path:
    with contextlib.suppress(OSError):
        if Path("/sys/fs/cgroup/unified/cgroup.procs").exists():
            return Path("/sys/fs/cgroup/unified")
    return Path("/sys/fs/cgroup")


def _lack_of_script(script: str) -> str:
    if not script or os.path.exists(script):
        return ""
    return f"the batch script is not at {script} here: SlurmdSpoolDir must be the same path"


def _make_directory(first: int, user: str, gid: int, directory: str) -> None:
    """Make a directory as the job's user; where it cannot be made, criu says what it lacks."""
    plain = ["setpriv", "--reuid", user, "--regid", str(gid), "--init-groups", "--"]
    words = [*criu.within(first), *plain, "mkdir", "-m", "700", "--", directory]
    subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MOUNT_S, check=False)


def _mount(first: int, words: list[str]) -> None:
    done = subprocess.run(
        [*criu.within(first), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_MOUNT_S,
        check=False,
    )
    if done.returncode != 0:
        raise images.BadImage(f"{' '.join(words)}: {done.stderr.strip()[:120]}")


def main() -> None:
    """Restore one image and print the answer as JSON."""
    try:
        said = restore(json.loads(sys.argv[1]))
    except images.Damaged as err:
        said = {"why": str(err), "is_damaged": True}
    except (images.BadImage, OSError, KeyError, ValueError, subprocess.SubprocessError) as err:
        said = {"why": str(err)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
