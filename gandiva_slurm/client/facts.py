"""What a continuation must have in common with what was saved, to be the same to the last bit."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict

from gandiva_slurm.client import accelerator

#: Facts that change the bits of a training, and how a sentence calls them.
_WORDS = {
    "device": "device",
    "torch": "torch",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "threads": "threads",
    "cudnn_benchmark": "cudnn.benchmark",
    "deterministic": "deterministic algorithms",
}


def facts() -> Dict[str, Any]:
    """Return what this process computes with."""
    torch = sys.modules.get("torch")
    found: Dict[str, Any] = {"python": sys.version.split()[0], "cpus": len(os.sched_getaffinity(0))}
    if torch is None:
        return found
    cuda = accelerator.in_use()
    cudnn = torch.backends.cudnn
    return {
        **found,
        "device": cuda.get_device_name() if cuda else "cpu",
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or ""),
        "cudnn": str(cudnn.version() or "") if cuda else "",
        "threads": torch.get_num_threads(),
        "cudnn_benchmark": bool(cudnn.benchmark),
        "cudnn_deterministic": bool(cudnn.deterministic),
        "deterministic": bool(torch.are_deterministic_algorithms_enabled()),
    }


def differences(saved: Dict[str, Any], now: Dict[str, Any]) -> str:
    """Return in words what is no longer as it was when the checkpoint was saved; "" when all is."""
    changed = [name for name in _WORDS if name in saved and name in now and saved[name] != now[name]]
    return ", ".join(f"{_WORDS[name]} {saved[name]} then, {now[name]} now" for name in changed)
