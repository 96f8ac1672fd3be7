"""Which virtual cluster of gandiva.yaml a job is of, and what is said of that (ADR 0035, 0037)."""

from __future__ import annotations

from collections.abc import Iterator

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import EngineState, JobRecord
from gandiva_slurm.engine.state.settings import EngineSettings
from gandiva_slurm.policy.virtual_clusters.shortages import shortages

#: Nodes named as evidence.
SHOWN = 4


def promised_too_much(state: EngineState, settings: EngineSettings) -> list[str]:
    """Say which GPUs gandiva.yaml promises and no node has; those named last go without."""
    there = [(record.node.gpu_type, record.gpus) for record in state.nodes.values()]
    return shortages(settings.virtual_clusters, there) if there else []


def note_owners(at: Cycle) -> None:
    """Note of every job which virtual cluster it is of."""
    for record in at.state.jobs.values():
        record.vc = record.options.vc if at.settings.virtual_clusters else ""


def lacks_vc(at: Cycle, record: JobRecord) -> bool:
    """True when nobody configured its virtual cluster: it is not started."""
    return bool(record.vc) and record.vc not in at.settings.virtual_clusters


def told(record: JobRecord, settings: EngineSettings) -> Iterator[str]:
    """Say of a job where its GPUs come from, for `gandiva why`.

    The policy binds cells while they are in use: no GPU is always a virtual cluster's.
    """
    if not settings.virtual_clusters:
        if record.options.vc:
            yield f"--gandiva-vc={record.options.vc}: recorded; no virtual clusters are configured"
        return
    owned = settings.virtual_clusters.get(record.vc, {})
    counts = ", ".join(f"{count} {gpu_type}" for gpu_type, count in owned.items())
    yield f"draws its GPUs from {told_vc(record.vc)}" + (f": {counts}" if counts else "")


def told_vc(vc: str) -> str:
    """A virtual cluster in words."""
    return f"virtual cluster {vc}" if vc else "what no virtual cluster owns"
