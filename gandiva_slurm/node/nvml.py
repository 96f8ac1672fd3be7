"""NVIDIA's management library: which GPUs there are, and which processes use them. Nothing else imports it.

Needs the extra `nvml` (nvidia-ml-py) and a driver; where either is missing nothing is known of GPUs, and that
is said once. A GPU's number here is its number in PCI order, as nvidia-smi shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

#: Where NVML lists the processes of a GPU: as a rule in the first, clients of MPS in the second.
_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
#: NVML's error where no process used the GPU since it was asked last.
_NOT_FOUND = 6

log = logging.getLogger(__name__)


class Use(NamedTuple):
    """A process on a GPU: bytes it has there, and how busy it kept it of late, in percent (-1: not known)."""

    gpu: int
    pid: int
    memory: int
    percent: int
    #: the driver samples how busy processes keep this GPU, and has no sample of this one: it did not use it
    is_quiet: bool = False


class Library(Protocol):
    """What is asked of the library; a test has its own."""

    def cards(self) -> tuple[int, ...]:
        """Return the memory of each GPU in bytes, by its number."""

    def free(self) -> tuple[int, ...]:
        """Return what is free of each GPU's memory now, in bytes."""

    def uses(self) -> list[Use]:
        """Return which processes have a context on which GPU now."""

    def driver(self) -> str:
        """Return the driver's version; "" where it is not told."""

    def identities(self) -> tuple[tuple[str, str], ...]:
        """Return UUID ("GPU-…") and model of each GPU, by its number."""


def load() -> Library | None:
    """Return the library, ready to be asked; None where it or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return Nvml(pynvml)
    except ImportError:
        log.info("nvidia-ml-py is not installed: memory of GPUs and processes on them are not known")
    except Exception as err:  # pynvml.NVMLError; a broken driver must not keep gandivad from its work
        log.warning("NVML does not work (%s): memory of GPUs and processes on them are not known", err)
    return None


class Nvml:
    """The library itself."""

    def __init__(self, pynvml: Any) -> None:
        """Take the module, initialised."""
        self._nvml = pynvml
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        self._cards = tuple(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in self._handles)
        self._driver, self._identities = "", tuple[tuple[str, str], ...]()
        try:
            self._driver = _text(pynvml.nvmlSystemGetDriverVersion())
            ask, name = pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetName
            self._identities = tuple((_text(ask(handle)), _text(name(handle))) for handle in self._handles)
        except (AttributeError, pynvml.NVMLError) as err:
            log.warning("NVML does not tell its driver, or what a GPU is: %s", err)
        #: by GPU: the driver's time stamp of the newest sample seen
        self._seen = [0] * len(self._handles)

    def cards(self) -> tuple[int, ...]:
        """Return the memory of each GPU in bytes, by its number."""
        return self._cards

    def free(self) -> tuple[int, ...]:
        """Return what is free of each GPU's memory now, in bytes."""
        return tuple(int(self._nvml.nvmlDeviceGetMemoryInfo(handle).free) for handle in self._handles)

    def driver(self) -> str:
        """Return the driver's version; "" where it is not told."""
        return self._driver

    def identities(self) -> tuple[tuple[str, str], ...]:
        """Return UUID ("GPU-…") and model of each GPU, by its number; () where one does not tell."""
        return self._identities

    def uses(self) -> list[Use]:
        """Return which processes have a context on which GPU now."""
        found = []
        for gpu, handle in enumerate(self._handles):
            busy, are_sampled = self._busy(gpu, handle)
            for process in self._running(gpu, handle):
                memory = process.usedGpuMemory or 0  # None where the driver does not tell it
                pid, percent = int(process.pid), busy.get(int(process.pid), -1)
                found.append(Use(gpu, pid, int(memory), percent, are_sampled and percent < 0))
        return found

    def _running(self, gpu: int, handle: Any) -> Iterable[Any]:
        """Return its processes, each once: those of MPS are in a list of their own."""
        found: dict[int, Any] = {}
        for name in _LISTS:
            ask = getattr(self._nvml, name, None)  # nvidia-ml-py 11 has no second list
            try:
                listed = ask(handle) if ask is not None else []
            except self._nvml.NVMLError as err:
                log.debug("NVML does not list the processes of GPU %d (%s): %s", gpu, name, err)
                continue
            for process in listed:
                known = found.setdefault(int(process.pid), process)
                if (process.usedGpuMemory or 0) > (known.usedGpuMemory or 0):
                    found[int(process.pid)] = process
        return found.values()

    def _busy(self, gpu: int, handle: Any) -> tuple[dict[int, int], bool]:
        """Mean utilisation by process since the last look, and whether the driver tells that."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, self._seen[gpu])
        except self._nvml.NVMLError as err:
            return {}, getattr(err, "value", None) == _NOT_FOUND
        by_pid: dict[int, list[int]] = {}
        for sample in samples:
            self._seen[gpu] = max(self._seen[gpu], int(sample.timeStamp))
            by_pid.setdefault(int(sample.pid), []).append(int(sample.smUtil))
        return {pid: round(sum(values) / len(values)) for pid, values in by_pid.items()}, True


def _text(told: str | bytes) -> str:
    """Return a text of NVML's; nvidia-ml-py before 12 has bytes."""
    return told.decode(errors="replace") if isinstance(told, bytes) else told
