"""Max-min fairness in the rounds of Gavel's simulator: chosen at each round's start, nothing filled up."""

from __future__ import annotations

from gandiva_slurm.policy.baselines.gavel_max_min import GavelMaxMin
from gandiva_slurm.policy.port import Plan, View


class RoundMaxMin(GavelMaxMin):
    """The baseline without its work conservation; it is asked at the start of each round and only then."""

    def decide(self, view: View) -> Plan:
        """Choose a round."""
        self._round_end_ns = view.now_ns
        return super().decide(view)

    def _fill(self, view: View, runs: dict[int, tuple[int, ...]]) -> None:
        """Leave idle what the allocation leaves idle."""
