"""This machine's own GPUs as those of a mini cluster's one node: `gandiva mini up --real-gpus`.

Slots are advertised as on a site (ADR 0002), each slot's file a link to the device of the GPU it stands for;
gandivad binds jobs to the GPUs, closes the others to them, and reads memory and processes from NVML.
"""

from __future__ import annotations

import re
from pathlib import Path

from gandiva_slurm.mini.spec import SLOTS_PER_GPU, MiniNode
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.node import devices

#: A directory for each GPU, named by its PCI address.
DRIVER = Path("/proc/driver/nvidia/gpus")
_MODEL = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)
#: In a model's name the word that Slurm's users know it by: V100, A100, H200, L4.
_KIND = re.compile(r"\b([a-z]{1,2}\d{1,4})[a-z]?\b")
#: The type of a GPU whose name has no such word, or of a machine with several kinds.
ANY_TYPE = "gpu"


def node(driver: Path = DRIVER) -> MiniNode:
    """Return the one node with all GPUs of this machine; GandivaError: there are none."""
    count = len(devices.of_driver(driver))
    if not count:
        raise GandivaError(
            f"--real-gpus: no NVIDIA GPU is here ({driver} names none); "
            "next: load NVIDIA's driver, or leave the option out for fake GPUs"
        )
    kinds = {_kind(gpu) for gpu in driver.iterdir()}
    return MiniNode("n1", kinds.pop() if len(kinds) == 1 else ANY_TYPE, count)


def slot_files(driver: Path = DRIVER) -> list[str]:
    """Return the device file behind each slot, in the order of slots."""
    gpus = devices.of_driver(driver)
    return [f"/dev/nvidia{gpu.minor}" for gpu in gpus for _ in range(SLOTS_PER_GPU)]


def _kind(gpu: Path) -> str:
    model = _MODEL.search((gpu / "information").read_text())
    found = _KIND.search(model[1].lower()) if model else None
    return found[1] if found else ANY_TYPE
