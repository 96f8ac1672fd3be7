"""How busy the machine was with other things: processor time that no process of the demonstration used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.mini import probe

#: A machine is busy when processes outside and steal take more than this part of its processor time.
BUSY = 0.10
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Columns of the first line of /proc/stat that are no work: idle and iowait; guest time is in user already.
_IDLE, _COUNTED = (3, 4), 8


@dataclass(frozen=True)
class Usage:
    """Processor seconds of a machine: all that it had, what was used (steal too), and what was ours."""

    whole_s: float = 0.0
    used_s: float = 0.0
    ours_s: float = 0.0

    @property
    def outside(self) -> float:
        """The part of the machine that processes outside and steal used; 0 when nothing was measured."""
        return max(0.0, self.used_s - self.ours_s) / self.whole_s if self.whole_s else 0.0

    @property
    def is_busy(self) -> bool:
        """True when a limit on time says little here."""
        return self.outside > BUSY

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.whole_s + other.whole_s, self.used_s + other.used_s, self.ours_s + other.ours_s
        )  # fmt: skip

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.whole_s - other.whole_s, self.used_s - other.used_s, self.ours_s - other.ours_s
        )  # fmt: skip

    def __str__(self) -> str:
        word = "busy" if self.is_busy else "quiet"
        return f"{word}: other processes and steal used {100 * self.outside:.0f} % of the processors"


def usage(hosts: Iterable[int] = ()) -> Usage:
    """All since the machine started; ours is this process, those it has waited for, and all of `hosts`.

    `hosts` are process 1 of each host of a cluster. What ended there is counted by the process that waited
    for it, and orphans by process 1; what nobody waits for (SIGCHLD ignored) counts as outside.
    """
    whole_s, used_s = machine_seconds(Path("/proc/stat").read_text())
    pids = {pid for init in hosts for pid, _ in probe.processes_of(init)}
    return Usage(whole_s, used_s, sum(os.times()[:4]) + sum(process_seconds(pid) for pid in pids))


def machine_seconds(stat: str) -> tuple[float, float]:
    """(all, used) processor seconds by the text of /proc/stat."""
    ticks = [int(word) for word in stat.split("\n", 1)[0].split()[1 : 1 + _COUNTED]]
    idle = sum(ticks[at] for at in _IDLE)
    return sum(ticks) / TICKS_PER_S, (sum(ticks) - idle) / TICKS_PER_S


def process_seconds(pid: int) -> float:
    """Processor seconds of a process and of all that it has waited for; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(word) for word in fields[11:15]) / TICKS_PER_S
