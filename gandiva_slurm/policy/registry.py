"""Policies by name: entry points of the group `gandiva_slurm.policies`, ours and those of others alike."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.port import Maker, Policy, PolicySettings

GROUP = "gandiva_slurm.policies"


def policy_names() -> list[str]:
    """Return the names of all installed policies."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def maker_for_a_cluster(name: str, settings: PolicySettings) -> Maker:
    """Return what makes the policy of gandiva.yaml, without true rates."""
    make_policy(name, settings)  # what is wrong with the name is said now
    return lambda: make_policy(name, replace(settings, oracle=None))[0]


def make_policy(name: str, settings: PolicySettings) -> tuple[Policy, bool]:
    """Make a policy, and tell whether it got true rates: only where its `make` is marked `takes_oracle`."""
    found: list[EntryPoint] = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        raise UsageError(f"there is no policy {name!r}; there are: {' '.join(policy_names())}")
    try:
        make = found[0].load()
    except (ImportError, AttributeError) as err:
        raise UsageError(
            f"policy {name} ({found[0].value}) cannot be loaded: {err}; install what it needs (extra `sim`)"
        ) from err
    is_told = bool(getattr(make, "takes_oracle", False))
    policy: Policy = make(settings if is_told else replace(settings, oracle=None))
    return policy, is_told
