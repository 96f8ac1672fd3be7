"""The devices a training computes on: torch.cuda, or torch's module of the same names for another kind.

All of the client that works with device memory, streams and generators asks here. GANDIVA_ACCELERATOR names
another module of torch than `cuda`; it is there for tests, and for kinds to come. What knows CUDA alone
(the tier `vmm` here; the driver's tier and MPS on the node) says so.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Optional

CUDA = "cuda"


def kind() -> str:
    """Return the name of the devices, as torch has it for its module and for `tensor.device.type`."""
    return os.environ.get("GANDIVA_ACCELERATOR") or CUDA


def of(torch: Any) -> Any:
    """Return torch's module for the devices; torch.cuda where it has none of that name (yet)."""
    return getattr(torch, kind(), None) or getattr(torch, CUDA, None)


def in_use() -> Optional[Any]:
    """Return the module where the script has initialised a device; else None."""
    module = of(sys.modules.get("torch"))
    return module if module is not None and module.is_initialized() else None
