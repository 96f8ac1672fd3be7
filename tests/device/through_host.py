"""A ProcessGroup for gangs on simulated cards: gloo's, with the cards' tensors copied to the host and back.

`register()`, then `init_process_group(NAME)`. It takes the host's own tensors, too.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.device import backend

NAME = "card_by_host"
#: What a group is asked for, and by what name gloo knows it; what comes out is the first argument of each.
_COLLECTIVES = {
    "allreduce": "allreduce",
    "broadcast": "broadcast",
    "allgather": "allgather",
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "barrier": "barrier",
}


class ThroughHost(dist.ProcessGroup):
    """Each collective is over when its call returns: the host waits for the card, then for its peers."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        # The client asks a group's backends how long they wait for a peer.
        for kind in ("cpu", backend.NAME):
            self._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.CUSTOM, self._gloo)

    def getBackendName(self) -> str:
        """Return its name, as torch asks for it."""
        return NAME


def _through(of_gloo: str) -> Callable[..., Any]:
    def call(self: ThroughHost, *given: Any) -> Any:
        on_host = [_copied(one) for one in given]
        getattr(self._gloo, of_gloo)(*on_host).wait()
        _fill(given[0], on_host[0])
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(given[0])
        return torch._C._distributed_c10d._create_work_from_future(done)

    return call


for _name, _of_gloo in _COLLECTIVES.items():
    setattr(ThroughHost, _name, _through(_of_gloo))


def _copied(given: Any) -> Any:
    """Return tensors as the host has them; what is no tensor as it is."""
    if isinstance(given, list | tuple):
        return [_copied(one) for one in given]
    return given.detach().cpu() if isinstance(given, torch.Tensor) else given


def _fill(given: Any, found: Any) -> None:
    """Have tensors be what was found for them on the host."""
    if isinstance(given, list | tuple):
        for one, other in zip(given, found, strict=True):
            _fill(one, other)
    elif isinstance(given, torch.Tensor) and given.device.type != "cpu":
        given.detach().copy_(found)


def register() -> str:
    """Have torch know the group; return its name."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, ThroughHost, devices=["cpu", backend.NAME])
    return NAME
