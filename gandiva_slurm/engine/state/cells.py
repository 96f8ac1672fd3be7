"""How near GPUs of a node are: switches and sockets by GPU type, as gandiva.yaml has them (ADR 0039)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gandiva_slurm.engine.state.records import JobRecord, NodeRecord
from gandiva_slurm.policy.port import CELLS, SOCKET, SWITCH

#: By GPU type: GPUs of a switch and of a socket, where they are told.
Cells = Mapping[str, Mapping[str, int]]


def parts_of(cells: Cells, gpu_type: str, gpus: int) -> tuple[int, int]:
    """Return how many GPUs a switch and a socket of such a node have; where nothing is told, the node's."""
    told, whole = cells.get(gpu_type, {}), max(1, gpus)
    socket = min(whole, told.get(SOCKET, whole))
    return min(socket, told.get(SWITCH, socket)), socket


def told(record: JobRecord, nodes: Mapping[str, NodeRecord], cells: Cells) -> Iterator[str]:
    """Say what a job's GPUs must share, for `gandiva why`."""
    cell = record.options.cell
    if cell not in CELLS:
        return
    types = {node.node.gpu_type for node in nodes.values() if node.gpus}
    flat = sorted(name for name in types if cell in (SWITCH, SOCKET) and cell not in cells.get(name, {}))
    yield f"--gandiva-cell={cell}: its GPUs are to share a {cell}" + (
        f"; of {', '.join(flat)} gandiva.yaml tells none (cells): there any of a node do" if flat else ""
    )
