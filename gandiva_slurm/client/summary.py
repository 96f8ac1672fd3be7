"""What a rank says when its process ends: how long it trained, and how long it was parked meanwhile."""

from __future__ import annotations

import os

from gandiva_slurm.client.notice import say
from gandiva_slurm.client.start import job_id

#: A shorter training is no news. GANDIVA_SUMMARY=0 turns all of this off.
LEAST_NS = 60_000_000_000
_SECOND, _MIB = 1_000_000_000, 1 << 20


def sum_up(mini_batches: int, lived_ns: int, parked_ns: int, parks: int, peak: int) -> None:
    """Say it on stderr, which is the job's output; `peak`: bytes of GPU memory, 1 or less: not known."""
    if lived_ns < LEAST_NS or os.environ.get("GANDIVA_SUMMARY") == "0":
        return
    parked = f"parked for {_clock(parked_ns)} ({_times(parks)})" if parks else "never parked"
    memory = f"; {-(-peak // _MIB)} MiB of GPU memory at the peak" if peak > 1 else ""
    told = f"{mini_batches} mini-batches in {_clock(lived_ns)}: trained for {_clock(lived_ns - parked_ns)}"
    more = f"`gandiva eff {job_id()}` tells what the GPUs did"
    say(f"job {job_id()}: {told}, and was {parked}{memory}; {more}")


def _clock(duration_ns: int) -> str:
    seconds = max(0, duration_ns) // _SECOND
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
