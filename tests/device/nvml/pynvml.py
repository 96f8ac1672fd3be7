"""NVIDIA's management library as far as gandivad asks for it, answered from simulated cards.

With this directory in PYTHONPATH gandivad's own code (`node/nvml`) reads the cards that GANDIVA_CARDS names,
a:b, as it reads GPUs. How busy a process keeps a card is not known, as of a driver that takes no samples.
"""

import os
from pathlib import Path
from types import SimpleNamespace

from tests.device import card


class NVMLError(Exception):
    """What the library raises."""


def nvmlInit():
    missing = [path for path in _paths() if not path.exists()]
    if missing:
        raise NVMLError(f"there is no card {missing[0]}")


def nvmlSystemGetDriverVersion():
    return "none"


def nvmlDeviceGetCount():
    return len(_paths())


def nvmlDeviceGetHandleByIndex(number):
    return _paths()[number]


def nvmlDeviceGetMemoryInfo(path):
    total = card.total(path)
    return SimpleNamespace(total=total, free=total - sum(card.used(path).values()))


def nvmlDeviceGetComputeRunningProcesses(path):
    return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in card.used(path).items()]


def nvmlDeviceGetProcessUtilization(path, since):
    raise NVMLError("not supported")


def _paths():
    return [Path(path) for path in os.environ["GANDIVA_CARDS"].split(":")]
