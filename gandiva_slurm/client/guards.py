"""When a boundary is no place to park, although it is one."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any, List, Optional

from gandiva_slurm.client import accelerator
from gandiva_slurm.client.errors import Refused

#: Threads in these, or called by them, only touch host memory, or wait for other processes.
_HARMLESS = (
    "torch.utils.data._utils.pin_memory",
    "torch._inductor.compile_worker",
    "torch._inductor.async_compile",
    "gandiva_slurm.client.behind",
)


def is_fit_to_park() -> bool:
    """Return False while the script captures a CUDA graph or is being compiled."""
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    compiler = getattr(torch, "compiler", None)
    if compiler is not None and getattr(compiler, "is_compiling", bool)():
        return False
    cuda = accelerator.in_use()
    return cuda is None or not cuda.is_current_stream_capturing()


def is_loader_worker() -> bool:
    """Return True in a worker process of torch's DataLoader, which trains nothing."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def thread_inside_torch() -> str:
    """Name another thread that is inside torch now, and where; "" when there is none."""
    mine = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        modules = [] if ident == mine else _modules_of(frame)
        inside = [name for name in modules if name == "torch" or name.startswith("torch.")]
        if inside and not any(name.startswith(_HARMLESS) for name in modules):
            return f"{names.get(ident, ident)} in {inside[0]}"
    return ""


def refuse_other_threads() -> None:
    """Refused while another thread is inside torch: memory cannot be taken from under it."""
    thread = thread_inside_torch()
    if thread:
        raise Refused(f"another thread is inside torch: {thread}")


def refuse_other_allocators(cuda: Any) -> None:
    """Refused where CUDA's memory is not that of torch's native allocator, the only one known here."""
    backend = getattr(cuda, "get_allocator_backend", lambda: "native")()
    if backend != "native":
        raise Refused(f"its memory is {backend}'s, not that of torch's own allocator")


def _modules_of(frame: Optional[FrameType]) -> List[str]:
    """Return the modules of a thread's frames, the innermost first."""
    modules = []
    while frame is not None:
        modules.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return modules
