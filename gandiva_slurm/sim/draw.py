"""Drawings of simulations side by side: completion times, users' shares over time, who was on which GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.timeline import Timeline

#: Kinds of picture, by the ending of the file.
ENDINGS = (".png", ".svg")
_HOUR_NS = 3600 * 10**9
#: Points of a share over time.
_STEPS = 200


def require_drawing(path: Path) -> None:
    """UsageError when that file cannot be drawn, before anything has been run for it."""
    if path.suffix not in ENDINGS:
        raise UsageError(f"--draw: {path.name!r} ends in none of {' '.join(ENDINGS)}")
    pyplot_of()


def draw(path: Path, cluster: Cluster, runs: Sequence[tuple[Outcome, Timeline]]) -> None:
    """Draw all runs of one workload into one picture."""
    pyplot = pyplot_of()
    rows = 1 + len(runs)
    figure, axes = pyplot.subplots(rows, 2, figsize=(14, 4 * rows), squeeze=False)
    colours = _colours(pyplot, runs)
    _completion_times(axes[0][0], runs)
    _legend(axes[0][1], colours)
    for (left, right), (outcome, timeline) in zip(axes[1:], runs, strict=True):
        _shares(left, outcome, timeline, colours)
        _gantt(right, cluster, outcome, timeline, colours)
    figure.tight_layout()
    try:
        figure.savefig(path)
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror}") from err
    finally:
        pyplot.close(figure)


def _completion_times(axes: Any, runs: Sequence[tuple[Outcome, Timeline]]) -> None:
    for outcome, _ in runs:
        times = outcome.jct_s()
        axes.step([time / 3600 for time in times], [(n + 1) / len(times) for n in range(len(times))],
                  where="post", label=outcome.policy)  # fmt: skip
    axes.set(xlabel="completion time, hours", ylabel="part of all jobs", title="Completion times")
    axes.set_xscale("log")
    axes.legend()


def _legend(axes: Any, colours: Mapping[str, Any]) -> None:
    for user, colour in colours.items():
        axes.plot([], [], color=colour, linewidth=6, label=user)
    axes.axis("off")
    axes.legend(title="users", loc="center")


def _shares(axes: Any, outcome: Outcome, timeline: Timeline, colours: Mapping[str, Any]) -> None:
    from pandas import DataFrame

    end_ns = max((span.end_ns for span in timeline.spans), default=1)
    rows = list(timeline.shares(max(1, -(-end_ns // _STEPS))))
    hours = [at_ns / _HOUR_NS for at_ns, _ in rows]
    table = DataFrame([held for _, held in rows], index=hours, columns=[*colours]).fillna(0.0)
    table.plot.area(ax=axes, color=colours, linewidth=0, legend=False)
    axes.set(xlabel="hours", ylabel="GPUs held", title=f"{outcome.policy}: shares over time")


def _gantt(
    axes: Any, cluster: Cluster, outcome: Outcome, timeline: Timeline, colours: Mapping[str, Any]
) -> None:
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for span in timeline.spans:
        for gpu in span.gpus:
            bar = (span.start_ns / _HOUR_NS, (span.end_ns - span.start_ns) / _HOUR_NS)
            bars.setdefault((gpu, span.user), []).append(bar)
    for (gpu, user), spans in bars.items():
        axes.broken_barh(spans, (gpu - 0.4, 0.8), facecolors=colours[user], alpha=0.8)
    firsts = [host.gpus[0] for host in cluster.hosts]
    axes.set_yticks(firsts, [f"{host.name} {host.gpu_type}" for host in cluster.hosts])
    axes.set(xlabel="hours", title=f"{outcome.policy}: who was on which GPU", ylim=(-1, cluster.size))
    axes.invert_yaxis()


def _colours(pyplot: Any, runs: Sequence[tuple[Outcome, Timeline]]) -> dict[str, Any]:
    users = sorted({span.user for _, timeline in runs for span in timeline.spans})
    wheel = pyplot.get_cmap("tab20" if len(users) > 10 else "tab10")
    return {user: wheel(number % wheel.N) for number, user in enumerate(users)}


def pyplot_of() -> Any:
    """Import matplotlib, to draw into files; UsageError: it is not there."""
    try:
        import matplotlib
        import pandas  # noqa: F401
    except ImportError as err:
        raise UsageError(f"a picture needs {err.name}: pip install 'gandiva-slurm[reports]'") from err
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot
