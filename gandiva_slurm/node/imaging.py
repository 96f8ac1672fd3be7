"""Making an image of a parked job: a program of its own, which gandivad starts and asks for its answer.

criu writes as the job's user; what it wrote is copied into the store by root. gandivad may die meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import carried, cgroups, criu, image_cards, images, picture, procs, programs
from gandiva_slurm.node.procs import ProcId

#: What is known of the files that a job has left on nodes, in bytes: a program is told it as one word.
MOST_LEFT = 32 << 10
#: How long what criu leaves stopped may take until it shows that, on a busy machine.
_STOP_S = 5.0
#: How long criu may take to undo a dump that is to end, before it is killed: 0.01 s where its store answers.
UNDO_S = 10.0
#: A process that could not be limited is tried again then.
_AGAIN_S = 0.2
#: What `_run` returns for criu that took too long.
_LATE = -1


def make(task: dict[str, Any]) -> dict[str, Any]:
    """Dump the tree of `root`, and seal the image; return its bytes and seconds. BadImage, OSError: none."""
    root, key, uid, by = Path(task["image_dir"]), JobKey.parse(task["key"]), task["uid"], task["by"]
    began_s, who = time.monotonic(), pwd.getpwuid(uid)
    _find(task)  # what cannot go along costs no dump; what it opens for the moment of that is found behind it
    if card := task.get("card"):
        image_cards.take_off(card, task["pids"])
        task["facts"]["card"] = image_cards.facts(card)
    need = need_of(task["pids"])
    for place in images.outlived(root, key):
        images.remove(place)
    images.check_room(root, need, task["most"])
    shape = picture.take(procs.read_text(pid, "maps", 1 << 23) for pid in task["pids"])
    work = images.new_work(root, key, by, uid, who.pw_gid)
    try:
        inside = criu.within(task["first"], task["root"][0]) if task["first"] else []
        user = criu.as_user(who.pw_name, who.pw_gid)
        bound_s = criu.bound_s(need)
        words = criu.dump(task["inner"], work, task["goes_on"])
        code = _run([*inside, *user, *criu.bounded(bound_s + 2 * int(UNDO_S)), *words], bound_s)
        stopped_ns = time.monotonic_ns() + procs.clock_shift_ns(task["root"][0])
        if code != 0:
            late = " in time" if code == _LATE else ""
            why = images.why_full(work) or criu.why(work / "dump.log")
            raise images.BadImage(f"criu did not make it{late}: {why}")
        if not task["goes_on"]:
            _keep_still(task["groups"], task["pids"])
        if not procs.is_alive(ProcId(*task["root"])):
            raise images.BadImage("its processes ended")
        facts = {**task["facts"], "inner": task["inner"], "mono_ns": stopped_ns, "picture": shape}
        facts |= _files_of_node(task, work)
        dumped_s = time.monotonic()
        size = images.seal(root, work, key, uid, task["most"], facts)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {"bytes": size, "dump_s": dumped_s - began_s, "seal_s": time.monotonic() - dumped_s}


def _run(argv: list[str], bound_s: float) -> int:
    """Run criu, and return its exit code; at its bound it is told to undo what it does: `_LATE`.

    This interpreter ignores SIGXFSZ, as what it starts does here: a write beyond a limit fails, and no more.
    """
    null = subprocess.DEVNULL
    call = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, cwd="/", restore_signals=False)
    try:
        return call.wait(bound_s)
    except subprocess.TimeoutExpired:
        _undo([call.pid])
        return _LATE


def _find(task: dict[str, Any]) -> list[carried.Carried]:
    """Return what only this node has of what it uses; BadImage where that cannot go along."""
    pids = [task["root"][0], *(proc.pid for proc in procs.below([task["root"][0]]))]
    try:
        files = carried.find(pids, task["uid"], tuple(task["besides"]))
    except carried.NotCarried as err:
        raise images.BadImage(str(err)) from None
    if task["goes_on"] and (why := carried.why_not_kept(files)):
        raise images.BadImage(why)
    return files


def _files_of_node(task: dict[str, Any], work: Path) -> dict[str, Any]:
    """Copy what only this node has, now that it stands still; BadImage where that cannot be."""
    root, uid, facts, files = task["root"][0], task["uid"], task["facts"], _find(task)
    try:
        carried.copy(root, files, uid, work)
    except carried.NotCarried as err:
        raise images.BadImage(str(err)) from None
    left = {node: there for node, there in facts.get("left", {}).items() if node != facts.get("node")}
    left[facts.get("node", "")] = [file for file in files if file.is_written]
    while left and len(json.dumps(left)) > MOST_LEFT:
        del left[next(iter(left))]
    return {"files_of_node": files, "left": left}


def _keep_still(groups: list[str], pids: list[int]) -> None:
    """Freeze what criu has left stopped, before a signal lets it run; BadImage where one has already."""
    until_s = time.monotonic() + _STOP_S
    while not (is_still := all(map(_is_stopped, pids))) and time.monotonic() < until_s:
        time.sleep(0.002)
    # Looked at before: what is stopped, and frozen in a group of version 1, shows another state.
    for group in groups:
        cgroups.freeze(Path(group), True)
    if not is_still:
        raise images.BadImage("a signal has let it run on behind its image")


def _is_stopped(pid: int) -> bool:
    proc = procs.read_proc(pid)
    return proc is None or proc.state in procs.ENDED or proc.state in "Tt"


def need_of(pids: Iterable[int]) -> int:
    """Return the bytes that an image of these processes has to hold, about: what is their memory's alone."""
    return sum(map(_resident, pids))


def most_s(size: int) -> float:
    """Return how long `make` may take for an image of `size` bytes: a dump, then a copy into the store."""
    return 2 * criu.bound_s(size) + 60.0


def _resident(pid: int) -> int:
    """Return the bytes of anonymous and shared memory of a process, on the host's disk or not."""
    words = dict(line.split(":", 1) for line in procs.read_text(pid, "status").splitlines() if ":" in line)
    return sum(int(words.get(name, "0 kB").split()[0]) << 10 for name in ("RssAnon", "RssShmem", "VmSwap"))


def start(name: str, task: dict[str, Any]) -> subprocess.Popen[str]:
    """Start one of the programs of images: `imaging` or `restoring`; OSError when it cannot be."""
    return programs.start(name, json.dumps(task))


def answer(call: subprocess.Popen[str]) -> dict[str, Any] | None:
    """Return its answer, None while there is none."""
    return programs.answer(call, {"why": f"the program that works on images ended with {call.poll()}"})


def end(maker: ProcId) -> None:
    """End the program that makes an image, and criu below it; that takes some `UNDO_S` at most.

    The job is not frozen meanwhile: criu undoes what it did by the job's own processes.
    """
    try:
        # Stopped, it neither seals what is made now, nor starts anything.
        if procs.send(maker, signal.SIGSTOP):
            _wait(lambda: _is_still(maker.pid))
            _undo(procs.children(maker.pid))
    finally:
        procs.send(maker, signal.SIGKILL)
    _wait(lambda: not procs.is_alive(maker))
    if left := criu.left_by(maker):  # it was killed before, or meanwhile
        _undo([proc.pid for proc in left])


def _is_still(pid: int) -> bool:
    proc = procs.read_proc(pid)
    return proc is None or proc.state in "TtD" + procs.ENDED


def _wait(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _STOP_S
    while not is_so() and time.monotonic() < until_s:
        time.sleep(0.002)


def _undo(tops: list[int]) -> None:
    """Have criu, one of these processes or below them, undo its dump and end; after `UNDO_S` it is killed."""
    until_s, next_s = time.monotonic() + UNDO_S, dict[ProcId, float]()
    while there := [proc.id for proc in _tree(tops) if proc.state not in procs.ENDED]:
        for proc in there:
            left_s = until_s - (now_s := time.monotonic())
            if left_s <= 0:
                procs.send(proc, signal.SIGKILL)
            elif next_s.get(proc, 0.0) <= now_s:
                # One that changes its user just now is asked once more.
                next_s[proc] = until_s if _limit(proc.pid, left_s) else now_s + _AGAIN_S
        if time.monotonic() > until_s + _STOP_S:  # it hangs in the kernel, and dies when it comes back
            return
        time.sleep(0.005)


def _tree(tops: list[int]) -> Iterator[procs.Proc]:
    return itertools.chain(procs.each(tops), procs.below(tops))


def _limit(pid: int, within_s: float) -> bool:
    """Let a process write no more; False where that failed.

    As its owner: to limit another user's process asks for a right that a daemon may lack.
    """
    owner = procs.owner(pid)
    if owner is None:
        return False
    null = subprocess.DEVNULL
    as_owner: dict[str, Any] = {"user": owner[0], "group": owner[1], "extra_groups": []}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            criu.no_more(pid),
            stdin=null,
            stdout=null,
            stderr=null,
            timeout=within_s,
            check=False,
            **(as_owner if os.geteuid() == 0 else {}),
        )
        return done.returncode == 0
    return False


def main() -> None:
    """Make one image and print the answer as JSON: `card` is what the driver keeps, whatever became of it."""
    task = json.loads(sys.argv[1])
    try:
        said = make(task)
    except (images.BadImage, OSError, KeyError, subprocess.SubprocessError) as err:
        said = {"why": str(err)}
    except Exception as err:  # the driver's or NVML's own: what they have done is told all the same
        said = {"why": f"{type(err).__name__}: {err}"}
    print(json.dumps({**said, "card": task.get("card")}))


if __name__ == "__main__":
    main()
