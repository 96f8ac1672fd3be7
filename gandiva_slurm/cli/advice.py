"""What to change about a job, in one line with its figures: from what the accounts have of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gandiva_slurm.cli.table import Row
from gandiva_slurm.cli.times import format_duration

#: Below this GPU time, in seconds, nothing is advised: what a job does as it starts is no measure of it.
JUDGED_S = 60.0
#: Less of its GPUs' time than that, and a job leaves most of what it holds idle.
BUSY = 0.5
#: More of the time held than that for parking, or of its mini-batches done again, is worth a word.
OVERRUN, AGAIN = 0.05, 0.05
#: More of its time than that before its 100th mini-batch, and longer than that many seconds.
SLOW_START, SLOW_START_S = 0.25, 300.0
#: Memory below which two such jobs fit into any GPU in use today, in bytes.
SMALL = 8 << 30
#: Slurm's state, or ours of the accounts, of one that never ran well.
FAILED = ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT")

Judge = Callable[[Row], str]


def useful_part(row: Row) -> float | None:
    """Return the part of the GPU time held in which it trained on: without parking and what was done again.

    None: it has held none, or no mini-batch of it was seen.
    """
    held_s, steps = float(row.get("gpu_held_s") or 0), row.get("steps") or 0
    if held_s <= 0 or not steps:
        return None
    once = 1 - min(1.0, (row.get("lost_steps") or 0) / steps)
    return float(row["gpu_run_s"]) / held_s * once


def idle_part(row: Row) -> float | None:
    """Return the part of its GPUs' time that NVML saw idle while it held them; None: NVML saw nothing."""
    seen_s = float(row.get("gpu_seen_s") or 0)
    return None if seen_s <= 0 else max(0.0, 1 - float(row["gpu_busy_s"]) / seen_s)


def advice(row: Row) -> str:
    """Return the one thing that would bring the most; "" where nothing is wrong."""
    return next(filter(None, (judge(row) for judge in _JUDGES)), "")


def _failed(row: Row) -> str:
    if row.get("state") not in FAILED:
        return ""
    told = f"it ended {row['state']} (exit code {row.get('exit_code') or 'not known'})"
    if row["state"] == "OUT_OF_MEMORY":
        return f"{told}: ask for more with --mem; memory of parked jobs stays on the host"
    if row["state"] == "TIMEOUT":
        return f"{told}: ask for more with --time, or let it save itself (docs/using.md)"
    return f"{told}: see its output file"


def _no_boundary(row: Row) -> str:
    if row.get("steps") or row["gpu_held_s"] < JUDGED_S:
        return ""
    held = format_duration(row["gpu_held_s"])
    return f"no mini-batch was seen in {held} of GPU time: `gandiva doctor -- python ...` tells why"


def _idle(row: Row) -> str:
    idle = idle_part(row)
    if idle is None or row["gpu_seen_s"] < JUDGED_S or idle <= 1 - BUSY:
        return ""
    told = f"its GPUs were idle for {100 * idle:.0f} % of the time it held them"
    cure = "more loader workers and CPUs (--cpus-per-task), a larger batch"
    return f"{told}: {cure}" + (", or fewer GPUs" if row["gpus"] > 1 else "")


def _again(row: Row) -> str:
    steps, lost = row.get("steps") or 0, row.get("lost_steps") or 0
    if not steps or lost / steps <= AGAIN:
        return ""
    return (
        f"{lost} of {steps} mini-batches were done again after moves: save more often, or attach the script"
    )


def _overrun(row: Row) -> str:
    held_s, run_s = row["gpu_held_s"], row["gpu_run_s"]
    if held_s < JUDGED_S or 1 - run_s / held_s <= OVERRUN:
        return ""
    share = f"{100 * (1 - run_s / held_s):.0f} %"
    told = f"parking took {share} of the time it held its GPUs"
    return f"{told}: shorter mini-batches (`gandiva why` says how it parks)"


def _slow_start(row: Row) -> str:
    first_s, wait_s = row.get("first_100_s"), row.get("start_latency_s") or 0
    whole_s = (row.get("end_s") or row["now_s"]) - row["submit_s"]
    if first_s is None or first_s - wait_s < SLOW_START_S or first_s <= SLOW_START * whole_s:
        return ""
    told = f"its 100th mini-batch came {format_duration(first_s)} after submission"
    return f"{told}: look at what it does before it trains"


def _small(row: Row) -> str:
    peak = row.get("gpu_mem_peak_bytes")
    is_lone = row["gpus"] == 1 and not row.get("gpu_packed_s")
    if peak is None or peak >= SMALL or not is_lone or row.get("gpu_parked_s", 0) <= row["gpu_held_s"]:
        return ""
    told = f"it took {-(-peak // (1 << 20))} MiB of its GPU and was parked for longer than it ran"
    return f"{told}: packing may suit it (--gandiva-pack=auto)"


_JUDGES: tuple[Judge, ...] = (_failed, _no_boundary, _idle, _again, _overrun, _slow_start, _small)


def with_advice(row: Row) -> dict[str, Any]:
    """Return a row of the accounts with what was made of it: `useful`, `idle` (parts of 1), `advice`."""
    return {**row, "useful": useful_part(row), "idle": idle_part(row), "advice": advice(row)}
