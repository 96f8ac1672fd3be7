"""The tier `driver`: NVIDIA's process checkpoint moves a process's GPU memory and context to the host.

A program of its own, one for each move: a call of the driver may last, cannot be taken back, and when its
caller is killed in the middle the process stays locked. gandivad starts it, reads its answer, and may die
meanwhile. One at a time works on a process, which must not be stopped: the driver works in its threads.

    RUNNING ─ lock, with a time-out ─► LOCKED ─ checkpoint ─► CHECKPOINTED
       ▲                                 │ ▲                       │
       └──────────── unlock ─────────────┘ └────── restore ────────┘

Whatever fails on the way out is undone. Source: CUDA Driver API, "CUDA Checkpointing"; driver 570 or newer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gandiva_slurm.node import nvml, programs
from gandiva_slurm.node.procs import ProcId, is_alive

LIBRARY = "libcuda.so.1"
#: States of a process, by their numbers; the last two while a call is under way.
RUNNING, LOCKED, CHECKPOINTED, FAILED, CHECKPOINTING, RESTORING = range(6)
NAMES = ("running", "locked", "checkpointed", "failed", "checkpointing", "restoring")
#: How long a process may take to finish the work it has given its GPUs.
LOCK_MS = 5000
#: How long another's work on the same process is waited for, and how often it is looked at.
WAIT_S, LOOK_S = 600.0, 0.05
#: Host memory, and GPU memory, that is to be left free.
SPARE = 256 << 20
_FUNCTIONS = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")


class Refused(Exception):
    """It is not done, and nothing has changed; the text says why."""


class CudaError(Exception):
    """A call of the driver failed."""


class Lock(ctypes.Structure):
    """Arguments of the lock: 64 bytes."""

    _fields_ = [
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    ]


class Pair(ctypes.Structure):
    """A GPU that a process was on, and the one that stands for it now, by the 16 bytes of their UUIDs."""

    _fields_ = [("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16)]


class RestoreArgs(ctypes.Structure):
    """Arguments of the restore: 64 bytes. Needs driver 580 where it has pairs."""

    _fields_ = [
        ("pairs", ctypes.POINTER(Pair)),
        ("count", ctypes.c_uint),
        ("reserved", ctypes.c_ubyte * 52),
    ]


class Driver:
    """The driver's calls, on any process of this machine."""

    def __init__(self) -> None:
        """Refused where the driver is missing, too old, or finds no GPU."""
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            raise Refused(f"this node has no {LIBRARY}") from None
        missing = [name for name in _FUNCTIONS if not hasattr(self._library, f"cuCheckpointProcess{name}")]
        if missing:
            raise Refused(
                f"its driver cannot checkpoint processes (no {missing[0]}): 570 is the first that can"
            )
        try:
            self._call("cuInit", ctypes.c_uint(0))
        except CudaError as err:
            raise Refused(str(err)) from None

    def state(self, pid: int) -> int:
        """Return the state of a process; CudaError where it is none of CUDA's."""
        found = ctypes.c_int(-1)
        self._call("cuCheckpointProcessGetState", ctypes.c_int(pid), ctypes.byref(found))
        return found.value

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Let it finish what its GPUs were given, and begin nothing new; zero would wait for ever."""
        assert timeout_ms > 0
        self._call("cuCheckpointProcessLock", ctypes.c_int(pid), ctypes.byref(Lock(timeout_ms)))

    def checkpoint(self, pid: int) -> None:
        """Move its memory to the host and let go of its GPUs; it must be locked."""
        self._call("cuCheckpointProcessCheckpoint", ctypes.c_int(pid), None)

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]] = ()) -> None:
        """Take its GPUs and move its memory back; it is locked then.

        `pairs`: UUIDs of each GPU that it was on, and of the one that stands for it now; none: the same ones.
        """
        listed = (Pair * len(pairs))(*(Pair(_bytes(old), _bytes(new)) for old, new in pairs))
        arguments = ctypes.byref(RestoreArgs(listed, len(pairs))) if pairs else None
        self._call("cuCheckpointProcessRestore", ctypes.c_int(pid), arguments)

    def unlock(self, pid: int) -> None:
        """Let it go on."""
        self._call("cuCheckpointProcessUnlock", ctypes.c_int(pid), None)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'error %d' % code).decode()}")


def take_out(driver: Driver, pid: int, timeout_ms: int = LOCK_MS) -> None:
    """Bring a process from RUNNING to CHECKPOINTED.

    Refused when it runs on as before; CudaError when that could not be brought about.
    """
    try:
        state = driver.state(pid)
    except CudaError as err:
        raise Refused(str(err)) from err
    if state != RUNNING:
        raise Refused(f"the process is {_name(state)} already")
    try:
        driver.lock(pid, timeout_ms)
        driver.checkpoint(pid)
    except CudaError as err:
        bring_back(driver, pid)
        raise Refused(str(err)) from err


def bring_back(driver: Driver, pid: int, pairs: Sequence[tuple[str, str]] = ()) -> None:
    """Bring a process to RUNNING from wherever it is; CudaError when a call fails, or it is FAILED."""
    state = driver.state(pid)
    if state == CHECKPOINTED:
        driver.restore(pid, pairs)
    if state in (CHECKPOINTED, LOCKED):
        driver.unlock(pid)
    state = driver.state(pid)
    if state != RUNNING:
        raise CudaError(f"the driver says that the process is {_name(state)}")


def _bytes(name: str) -> Any:
    """Return the bytes of a UUID as NVML tells it: GPU-8-4-4-4-12."""
    return (ctypes.c_ubyte * 16)(*uuid.UUID(name.removeprefix("GPU-")).bytes)


def _settled(driver: Driver, pid: int) -> int:
    """Return the state when no call of somebody else's is under way."""
    deadline = time.monotonic() + WAIT_S
    while True:
        state = driver.state(pid)
        if state not in (CHECKPOINTING, RESTORING) or time.monotonic() > deadline:
            return state
        time.sleep(LOOK_S)


def _name(state: int) -> str:
    return NAMES[state] if 0 <= state < len(NAMES) else f"in state {state}"


def choose(uses: list[nvml.Use], procs: list[ProcId]) -> tuple[ProcId, dict[str, int]]:
    """Return the one process that has memory on GPUs, and how much on each; Refused unless it is one."""
    alive = {proc.pid: proc for proc in procs if is_alive(proc)}
    mine = [use for use in uses if use.pid in alive]
    users = {use.pid for use in mine}
    if len(users) != 1:
        raise Refused(f"{len(users)} of its processes use a GPU, and the driver moves one at a time")
    if not all(use.memory for use in mine):
        raise Refused("NVML does not tell how much GPU memory it has")
    return alive[users.pop()], {str(use.gpu): use.memory for use in mine}


def check_host(need: int, cgroups: list[str]) -> None:
    """Refused when the job's memory limit, or the machine, has no room for so many bytes more."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    room = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        for directory in cgroups:
            with contextlib.suppress(OSError, ValueError):  # "max", or a cgroup of the other version
                limit, used = (int((Path(directory) / name).read_text()) for name in names)
                room = min(room, limit - used)
    if need + SPARE > room:
        raise Refused(f"that takes {need >> 20} MiB of host memory, and {max(0, room) >> 20} are free")


def check_gpus(free: tuple[int, ...], need: dict[str, int]) -> None:
    """Refused when a GPU lacks room: a restore that runs out of memory can never be repeated.

    Source: cuda-checkpoint issue 44 (driver 580).
    """
    for gpu, size in need.items():
        if free[int(gpu)] < size + SPARE:
            raise Refused(f"GPU {gpu} has {free[int(gpu)] >> 20} MiB free, and it needs {size >> 20}")


@contextlib.contextmanager
def alone(proc: ProcId) -> Iterator[None]:
    """Be the only one that works on a process; the kernel lets go of the name when its holder dies."""
    with socket.socket(socket.AF_UNIX) as name:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                name.bind(f"\0gandiva-driver-{proc.pid}-{proc.start}")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise Refused("an earlier call of the driver for it has not returned") from None
                time.sleep(LOOK_S)
        yield


def out(task: dict[str, Any]) -> dict[str, Any]:
    """Take out the one process of `procs` that uses GPUs; answer which, its bytes, and what failed."""
    driver = Driver()
    proc, used = choose(load_nvml().uses(), [ProcId(*row) for row in task["procs"]])
    check_host(sum(used.values()), task["cgroups"])
    why = ""
    with alone(proc):
        try:
            take_out(driver, proc.pid)
        except CudaError as err:  # and it could not be undone: that is tried again when it is to go on
            why = str(err)
    return {"is_out": True, "why": why, "procs": [proc], "bytes": used}


def back(task: dict[str, Any]) -> dict[str, Any]:
    """Bring back all of `procs` that are not running, which need `bytes` on their GPUs."""
    driver, until = Driver(), time.monotonic() + task.get("patience_s", 0)
    lost = ""
    for proc in filter(is_alive, (ProcId(*row) for row in task["procs"])):
        with alone(proc):
            state = _look(driver, proc, is_known=bool(task["bytes"]))
            if state == CHECKPOINTED:
                wait_for_room(task["bytes"], until)
            if state in (LOCKED, CHECKPOINTED):
                bring_back(driver, proc.pid)
            if state == FAILED:
                lost = f"the driver has lost process {proc.pid}: its state is failed"
    return {"is_out": False, "why": lost}


def wait_for_room(need: dict[str, int], until: float) -> None:
    """Wait until each GPU has room for the bytes of `need`; Refused: one has not at `until` (monotonic)."""
    while True:
        try:
            return check_gpus(load_nvml().free(), need)
        except Refused:
            if time.monotonic() > until:
                raise
        time.sleep(1)


def load_nvml() -> nvml.Library:
    """Return NVML; Refused where it is missing."""
    library = nvml.load()
    if library is None:
        raise Refused("GPU memory cannot be told: NVML, or the extra `nvml`, is missing")
    return library


def _look(driver: Driver, proc: ProcId, is_known: bool) -> int:
    """Return its state; one that may be none of CUDA's, and is not known to the driver, runs."""
    try:
        return _settled(driver, proc.pid)
    except CudaError:
        if is_known:
            raise
        return RUNNING


def probe(task: dict[str, Any]) -> dict[str, Any]:
    """Answer why this node's driver cannot do it, "" where it can."""
    Driver()
    load_nvml().free()
    return {"is_out": False, "why": ""}


def start(what: str, task: dict[str, Any]) -> subprocess.Popen[str]:
    """Start this program: `out`, `back` or `probe`; it outlives its starter."""
    return programs.start("driver_checkpoint", what, json.dumps(task))


def answer(call: subprocess.Popen[str]) -> dict[str, Any] | None:
    """Return its answer, None while there is none; where it died without one, the process may be out."""
    why = f"the program that calls the driver ended with {call.poll()}"
    return programs.answer(call, {"is_out": True, "why": why})


def main() -> None:
    """Do one thing and print the answer as JSON; who is refused stays where he is."""
    what, task = sys.argv[1], json.loads(sys.argv[2])
    try:
        said = {"out": out, "back": back, "probe": probe}[what](task)
    except (Refused, CudaError) as err:
        said = {"is_out": what == "back", "why": str(err)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
