"""The stride tables: who runs in each round, and the passes before it (Gandiva_fair, gang-aware stride)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from gandiva_slurm.sim.paper.result import Row, Setup, published
from gandiva_slurm.slicing.stride import STRIDE1, Account, Entrant, Pool, UserPass, run_round

#: The paper's tables: one GPU with tickets of 4 and 1; gangs of 1, 1, 2, 2 and 4 on four GPUs.
TABLES = ("plain", "gang")


class Table:
    """One table; each of its jobs is a user of its own, as the paper's flat list has it."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.gpus = int(data["numGPUs"])
        self.order: list[str] = data["order"]
        self.size = {name: int(data["jobs"][name]["gpus"]) for name in self.order}
        self.accounts = {name: Account(0, int(data["jobs"][name]["tickets"])) for name in self.order}

    def passes(self) -> list[Fraction]:
        """Passes in GPU-quanta a ticket, exactly."""
        return [
            Fraction(acc.value * acc.tickets + acc.carry, acc.tickets * STRIDE1)
            for acc in (self.accounts[name] for name in self.order)
        ]

    def run(self) -> list[str]:
        """Pick for one round and charge for it."""
        entrants = [
            Entrant(name, name, self.size[name], self.accounts[name].tickets, (index,))
            for index, name in enumerate(self.order)
        ]
        users = {name: UserPass(acc.value, acc.tickets) for name, acc in self.accounts.items()}
        picked = [str(name) for name in run_round(entrants, users, Pool(self.gpus), 1)]
        for name in picked:
            self.accounts[name].charge(self.size[name], 0)
        return sorted(picked)


def run(setup: Setup) -> list[Row]:
    """Replay both tables by the functions that pick on clusters."""
    rows = []
    for name in TABLES:
        data = published("stride")[name]
        table = Table(data)
        for line in data["rounds"]:
            passes = table.passes()
            ours, paper = _round(table.run(), passes), _round(sorted(line["run"]), line["pass"])
            rows.append(Row(f"{name}, t={line['t']}", ours, paper, "", "" if ours == paper else "differs"))
    return rows


def _round(names: Sequence[str], passes: Sequence[Fraction | float]) -> str:
    """Write a round: who runs, and the passes before it, in the order of the table."""
    return f"{'+'.join(names)} at {' '.join(format(float(value), 'g') for value in passes)}"
