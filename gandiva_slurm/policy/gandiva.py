"""Gandiva: efficiency alone, for a cluster whose users do not matter (OSDI'18).

The same slicing, choice of GPU types, packing and moves as `gandiva_fair`; all jobs are equal, whoever
sent them.
"""

from __future__ import annotations

from gandiva_slurm.policy.gandiva_fair import GandivaFair
from gandiva_slurm.policy.port import PolicySettings
from gandiva_slurm.policy.traits import Traits


def make(settings: PolicySettings) -> GandivaFair:
    """Make the policy."""
    return GandivaFair(settings, Traits("gandiva", by_user=False))
