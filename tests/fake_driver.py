"""NVIDIA's driver and its management library, played: states and figures are files of one directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
NOT_READY = 600
_SOURCE = Path(__file__).with_name("fake_cuda.c")
_NVML = """
import os
from pathlib import Path
from types import SimpleNamespace

class NVMLError(Exception):
    pass

def _rows(name):
    path = Path(os.environ["FAKE_CUDA"]) / name
    return [[int(word) for word in line.split()] for line in path.read_text().splitlines()]

def nvmlInit():
    pass

def nvmlDeviceGetCount():
    return len(_rows("cards"))

def nvmlDeviceGetHandleByIndex(number):
    return number

def nvmlDeviceGetMemoryInfo(number):
    total, free = _rows("cards")[number]
    return SimpleNamespace(total=total, free=free)

def nvmlDeviceGetComputeRunningProcesses(number):
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for gpu, pid, used in _rows("uses") if gpu == number]

def nvmlSystemGetDriverVersion():
    return "580.65"

def nvmlDeviceGetUUID(number):
    return f"GPU-00000000-0000-0000-0000-{number:012x}"

def nvmlDeviceGetName(number):
    return "V100"

def nvmlDeviceGetProcessUtilization(number, since):
    return []
"""


class FakeDriver:
    """A card of one GPU; `use` makes a process one of CUDA's."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory, self.so = directory, directory / "libcuda.so.1"
        command = ["cc", "-shared", "-fPIC", "-Wall", "-o", str(self.so), str(_SOURCE)]
        subprocess.run(command, check=True, timeout=60)
        (directory / "pynvml.py").write_text(_NVML)
        (directory / "uses").touch()
        (directory / "calls").touch()
        self.free(1 << 40)

    def environment(self) -> dict[str, str]:
        """What makes a program take these for the real ones."""
        paths = (self.directory, os.environ.get("PYTHONPATH", ""))
        return {
            "FAKE_CUDA": str(self.directory),
            "LD_LIBRARY_PATH": str(self.directory),
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, paths))),
        }

    def use(self, pid: int, memory: int = 1 << 20) -> None:
        with (self.directory / "uses").open("a") as stream:
            stream.write(f"0 {pid} {memory}\n")
        self.put(pid, RUNNING)

    def free(self, memory: int) -> None:
        (self.directory / "cards").write_text(f"{1 << 40} {memory}\n")

    def put(self, pid: int, state: int) -> None:
        (self.directory / f"state-{pid}").write_text(str(state))

    def state(self, pid: int) -> int:
        return int((self.directory / f"state-{pid}").read_text())

    def fail(self, name: str, code: int = 999, state: int = -1) -> None:
        """Let this call fail from now on, and leave the process in that state."""
        (self.directory / f"fail-{name}").write_text(f"{code} {state}")

    def mend(self, name: str) -> None:
        (self.directory / f"fail-{name}").unlink()

    def calls(self) -> list[str]:
        """The calls so far that change something."""
        names = (self.directory / "calls").read_text().split()
        return [name for name in names if name not in ("Init", "GetState")]
