"""What gandiva.yaml means to the parts of the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gandiva_slurm.config import NS_PER_S, Config
from gandiva_slurm.controller import bounded
from gandiva_slurm.controller.nodes import LinkSettings
from gandiva_slurm.controller.spans import SpanSettings
from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.state.settings import EngineSettings
from gandiva_slurm.model.errors import ConfigError, UsageError
from gandiva_slurm.policy.port import PACK_FLOOR, PolicySettings
from gandiva_slurm.policy.registry import maker_for_a_cluster


def engine_settings(config: Config) -> EngineSettings:
    """What the engine is to go by."""
    part, moves, packing = config.controller, config.moves, config.packing
    return EngineSettings(
        config.quantum_ns,
        config.slots_per_gpu,
        start_deadline_ns=round(part.start_deadline_s * NS_PER_S),
        stretch_percent=round(part.time_limit_stretch * 100),
        moves=moves.enabled,
        min_run_ns=round(moves.min_run_s * NS_PER_S),
        moves_per_hour=moves.per_hour,
        move_deadline_ns=round(moves.deadline_s * NS_PER_S),
        packing=packing.enabled,
        pack_floor=packing.floor,
        idle_tell_ns=round(config.idle.tell_after_s * NS_PER_S),
        idle_park_ns=round(config.idle.park_after_s * NS_PER_S),
        idle_requeue=config.idle.requeue,
        virtual_clusters=config.virtual_clusters,
        cells={name: {str(cell): gpus for cell, gpus in told.items()} for name, told in config.cells.items()},
    )


def leader(config: Config) -> Leader:
    """The policy that decides; ConfigError: it cannot."""
    try:
        half_life_ns = round(config.use_half_life_s * NS_PER_S)
        return leader_of({
            "policy": config.policy,
            "quantum_ns": config.quantum_ns,
            "restart_ns": round(config.moves.cost_s * NS_PER_S),
            "pack_floor": config.packing.floor,
            **({"half_life_ns": half_life_ns} if half_life_ns else {}),
        })
    except UsageError as err:
        raise ConfigError(f"policy: {err}") from err


def leader_of(told: Mapping[str, Any]) -> Leader:
    """Return the policy of this name, made with these; UsageError: there is none."""
    settings = PolicySettings(
        told["quantum_ns"],
        restart_ns=told["restart_ns"],
        half_life_ns=told.get("half_life_ns", 0),
        pack_floor=told.get("pack_floor", PACK_FLOOR),
    )
    return Leader(maker_for_a_cluster(told["policy"], settings), told, bounded.ask)


def link_settings(config: Config, epoch_ns: int) -> LinkSettings:
    """What the links to the nodes share."""
    part = config.controller
    return LinkSettings(epoch_ns, config.quantum_ns, part.cycle_s, part.silent_after_s)


def span_settings(config: Config) -> SpanSettings:
    """What jobs of several nodes are sliced by."""
    part = config.node
    deadline_ns, wait_ns = round(part.park_deadline_s * NS_PER_S), round(part.client_wait_s * NS_PER_S)
    save_ns = round(part.save_deadline_s * NS_PER_S)
    return SpanSettings(config.quantum_ns, deadline_ns, wait_ns, config.refusal_bound_ns, save_ns)
