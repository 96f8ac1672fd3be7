"""The guard: a small process that outlives a killed gandivad and lets go what that one had frozen.

It waits on a pipe for the daemon's end, then some seconds for a new daemon, and if none comes to stay
continues every process that the state file names as stopped. So every freeze has a bound, whatever dies.
Parked ranks need no guard: they go on by themselves after their wake-by time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gandiva_slurm import logs
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import cgroups, driver_checkpoint, freezer, images, imaging, lock, procs
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.store import StateFile

if TYPE_CHECKING:  # the guard itself needs no settings
    from gandiva_slurm.node.settings import NodeSettings

#: How often, and after what pause, it tries to end what makes an image.
_TRIES, _PAUSE_S = 3, 2.0
#: How often it looks for a new daemon.
_LOOK_S = 0.25
#: A daemon that lives for so long has a guard of its own.
_STAYS_S = 2.0
#: How long it is tried to bring memory back that the driver has moved out.
PATIENCE_S = 7200

log = logging.getLogger("gandivad-guard")


def start(settings: NodeSettings) -> subprocess.Popen[bytes]:
    """Start a guard in a session of its own; it watches the pipe that this process holds as its stdin."""
    argv = [sys.executable, "-m", "gandiva_slurm.node.guard", str(settings.state_dir)]
    argv.append(str(settings.guard_grace_ns / 1e9))
    return subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, cwd="/")


def thaw(state_dir: Path) -> int:
    """Continue everything that the state file names as stopped; return how many processes that were."""
    state = StateFile(state_dir / "state.json").load()
    if state is None:
        return 0
    rows, image_dir = state["jobs"], state.get("image_dir", "")
    imaged = [row for row in rows if _has_image(row)]
    # What was stopped may be in a frozen group as well: it goes on once both are over. criu, which may have a
    # job in hand, undoes its work by the job's own processes.
    count = sum(_thaw_job(row, state["node"]) for row in rows if row not in imaged)
    thawed = _thaw_groups(state, rows)
    # These come last, for a store may hang, and to end what makes an image takes seconds. It may have frozen
    # the job once more.
    for row in sorted(imaged, key=lambda row: row["image"][0] is not None):
        if _take_image(row, image_dir, state["node"]):
            thawed += _thaw_groups(state, [row])
            count += _thaw_job(row, state["node"])
    if thawed:
        log.warning("%d frozen groups thawed: no gandivad came to do it", thawed)
    for row in state["jobs"]:
        if row.get("away", {}).get("is_out"):
            # It waits for room on the GPU, whoever leaves it next, and outlives this guard.
            driver_checkpoint.start("back", {**row["away"], "patience_s": PATIENCE_S})
    return count


def _take_image(row: dict[str, Any], image_dir: str, node: str) -> bool:
    """Take a job's process image out of use before the job runs on; False when that fails: it stays stopped.

    It is only renamed here, and removed with what is old in the store. A job that has ended here goes on from
    it elsewhere.
    """
    maker, is_whole, is_kept = [*(row.get("image") or (None, False)), False][:3]
    for _ in range(_TRIES if maker else 0):
        try:
            imaging.end(ProcId(*maker))
            break
        except OSError as err:  # this node is short of something
            log.error("job %s: what makes its image is not ended yet: %s", row["key"], err)
            time.sleep(_PAUSE_S)
    if not image_dir or not (maker or is_whole):
        return True
    if is_kept:  # no image of its own is whole, and one that was kept before does not keep it still
        return True
    try:
        if not _is_here(row, node):
            return True
        os.stat(Path(image_dir) / "whole")  # not mounted, it has none now, and may have one again
        images.put_away(Path(image_dir), JobKey.parse(row["key"]))
    except OSError as err:
        log.error("job %s stays stopped: the image of its processes cannot be deleted: %s", row["key"], err)
        return False
    return True


def _whole(row: dict[str, Any], node: str) -> JobProcesses:
    stepds = {ProcId(*proc) for proc in row["stepds"]}
    return JobProcesses(JobKey.parse(row["key"]), row["uid"], node, stepds, set(row["cgroups"]))


def _is_here(row: dict[str, Any], node: str) -> bool:
    """True when Slurm has the job here, or anything of it lives."""
    whole = _whole(row, node)
    return whole.has_stepd() or bool(whole.members())


def _has_image(row: dict[str, Any]) -> bool:
    return any((row.get("image") or [None, False])[:2])


def _thaw_groups(state: dict[str, Any], rows: list[dict[str, Any]]) -> int:
    groups = [set(row.get("cgroups", ())) for row in rows]
    return freezer.thaw_all(cgroups.hierarchy(), state.get("freezer", ""), groups)


def _thaw_job(row: dict[str, Any], node: str) -> int:
    stopped = {ProcId(*proc) for proc in row["stopped"]}
    has_image = _has_image(row)
    count = 0
    with contextlib.suppress(OSError):  # this node is short of something: what is known is continued
        if has_image or (row["is_frozen"] and not row.get("is_shut")):
            # In a group of version 1 that was frozen just now what is stopped shows another state.
            states = "TtD" if has_image else "T"
            before = (ProcId(*proc) for proc in row["left_stopped"])
            stopped |= _whole(row, node).stopped_by_us(before, states)
    for proc in stopped:
        with contextlib.suppress(OSError):
            count += procs.send(proc, signal.SIGCONT)
    if stopped:
        log.warning("job %s: %d processes continued: no gandivad came to do it", row["key"], count)
    return count


def another_has_come(state_dir: Path, grace_s: float) -> bool:
    """Wait until another gandivad stays (True), or there is none when the time is over (False).

    One that fails at its start, and is started again and again, is none.
    """
    deadline, pid, since = time.monotonic() + grace_s, 0, 0.0
    while True:
        now, found = time.monotonic(), lock.holder(state_dir)
        if found != pid:
            pid, since = found, now
        if pid and now - since >= _STAYS_S:
            return True
        if not pid and now >= deadline:
            return False
        time.sleep(_LOOK_S)


def main() -> None:
    """Watch, wait, thaw."""
    logs.set_up()
    state_dir, grace_s = Path(sys.argv[1]), float(sys.argv[2])
    while sys.stdin.buffer.read(4096):
        pass
    if not another_has_come(state_dir, grace_s):
        thaw(state_dir)


if __name__ == "__main__":
    main()
