"""The picture of a validation: who was on which GPU, really and simulated, and completion times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gandiva_slurm.mini.validation.checks import Ended
from gandiva_slurm.mini.validation.report import Compared
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.draw import pyplot_of
from gandiva_slurm.sim.timeline import Span

COLOURS = {"user1": "tab:cyan", "user2": "tab:green", "user3": "tab:purple"}
S = 10**9


def spans_of(compared: Compared, cluster: Cluster, nodes: Sequence[str]) -> list[Span]:
    """The holds of the run as the simulator's spans, its GPUs numbered like those of the simulator."""
    first = {name: host.gpus[0] for name, host in zip(nodes, cluster.hosts, strict=True)}
    users = {job.name: job.user for job in compared.recorded.jobs}
    zero_ns = min(compared.recorded.submitted_ns.values())
    return [
        Span(
            hold.name, users[hold.name], tuple(first[hold.node] + gpu for gpu in hold.gpus),
            hold.t0_ns - zero_ns, hold.t1_ns - zero_ns,
        )
        for hold in compared.holds
    ]  # fmt: skip


def draw(path: Path, compared: Compared, cluster: Cluster, both: Sequence[Iterable[Span]]) -> None:
    """Draw into a PNG or SVG file; `both`: spans of the run, and of its simulation."""
    pyplot = pyplot_of()
    figure, axes = pyplot.subplots(3, 1, figsize=(12, 12), height_ratios=(2, 2, 3))
    for axis, spans, title in zip(axes, both, ("the mini cluster", "its simulation"), strict=False):
        _gantt(axis, spans, cluster)
        axis.set(title=f"who was on which GPU: {title}", xlim=(0, max(job.end_s for job in compared.real)))
    _completion(axes[2], compared.real, compared.simulated)
    figure.tight_layout()
    try:
        figure.savefig(path)
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror}") from err
    finally:
        pyplot.close(figure)


def _gantt(axis: Any, spans: Iterable[Span], cluster: Cluster) -> None:
    for span in spans:
        for gpu in span.gpus:
            bar = (span.start_ns / S, (span.end_ns - span.start_ns) / S)
            axis.broken_barh(
                [bar], (gpu - 0.45, 0.9), facecolors=COLOURS[span.user], edgecolor="white", linewidth=0.3
            )
    firsts = [host.gpus[0] for host in cluster.hosts]
    axis.set_yticks(firsts, [f"{host.name} {host.gpu_type}" for host in cluster.hosts])
    axis.set(xlabel="seconds", ylim=(cluster.size - 0.5, -0.5))


def _completion(axis: Any, real: Sequence[Ended], simulated: Sequence[Ended]) -> None:
    for user, colour in COLOURS.items():
        pairs = [(r.jct_s, s.jct_s) for r, s in zip(real, simulated, strict=True) if r.user == user]
        axis.scatter([x for x, _ in pairs], [y for _, y in pairs], color=colour, label=user)
    most = max(job.jct_s for job in (*real, *simulated)) * 1.05
    axis.plot([0, most], [0, most], color="grey", linewidth=0.8)
    axis.set(xlabel="completion time on the mini cluster, seconds", ylabel="simulated, seconds")
    axis.set(xlim=(0, most), ylim=(0, most))
    axis.legend()
