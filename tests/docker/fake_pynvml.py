"""NVML of nodes whose one GPU is tests/docker/fake_card.c's: a process uses it that has its device open."""

import os
import socket
from types import SimpleNamespace

DEVICE, GIB = "/dev/nvidia0", 1 << 30


class NVMLError(Exception):
    """What is not there."""


def nvmlInit():
    """Nothing is to be done."""


def nvmlSystemGetDriverVersion():
    """Return a file's word, or a release that has all that is asked of it."""
    try:
        with open("/etc/fake-driver") as file:
            return file.read().strip()
    except OSError:
        return "580.65.06"


def nvmlDeviceGetCount():
    """Return one, where the device is there."""
    return int(os.path.exists(DEVICE))


def nvmlDeviceGetHandleByIndex(number):
    """Return the number."""
    return number


def nvmlDeviceGetUUID(handle):
    """Return a UUID that ends with the node's number, as fake_card.c has it."""
    return f"GPU-00000000-0000-0000-0000-{int(socket.gethostname()[1:]):012x}"


def nvmlDeviceGetName(handle):
    """Return the same for all."""
    return "Fake V100"


def nvmlDeviceGetMemoryInfo(handle):
    """Return room enough."""
    return SimpleNamespace(total=32 * GIB, free=30 * GIB)


def nvmlDeviceGetComputeRunningProcesses(handle):
    """Return those that have the device open."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            files = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if DEVICE in files:
            found.append(SimpleNamespace(pid=int(pid), usedGpuMemory=64 << 20))
    return found


def nvmlDeviceGetProcessUtilization(handle, since):
    """Tell nothing."""
    raise NVMLError("not supported")
