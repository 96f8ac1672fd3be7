"""When a boundary is no place to park, although it is one."""

from __future__ import annotations

import sys


def is_fit_to_park() -> bool:
    """Return False while the script captures a CUDA graph or is being compiled."""
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    compiler = getattr(torch, "compiler", None)
    if compiler is not None and getattr(compiler, "is_compiling", bool)():
        return False
    cuda = getattr(torch, "cuda", None)
    return cuda is None or not cuda.is_initialized() or not cuda.is_current_stream_capturing()


def is_loader_worker() -> bool:
    """Return True in a worker process of torch's DataLoader, which trains nothing."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
