"""What a node of a fake world says of the jobs that live there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gandiva_slurm.engine.lifecycle.moving import ANEW
from gandiva_slurm.model import event as ev
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.node.elsewhere import STARTED_ANEW
from tests.fake_parts import Proc

if TYPE_CHECKING:
    from tests.fake_world import FakeWorld


def told(world: FakeWorld, name: str, key: JobKey, proc: Proc) -> ev.ResidentSeen:
    """A node's word on a job, or on its part of one."""
    why = _why_unfit(world, key, name)
    is_movable = can_move(world, name, key, proc) and key.job_id in world.jobs
    way = ANEW if why or (is_movable and key.job_id in world.wayless) else ""
    detail = "disk full" if key.job_id in world.saves_badly and key in world.leaving[name] else ""
    rate = world.own_rates.get(key.job_id, world.rates).get(world.types.get(name, "v100"), 0.0)
    places = world.engine.plan_jobs(name) if world.packed_rate else ()
    mate = next((place.mate for place in places if place.key == key), 0)
    measured = Measured(
        is_movable=is_movable,
        framework=way if why else world.frameworks.get(key.job_id, way),
        unrestored=why,
        is_fit_again=why == STARTED_ANEW,
        is_elastic=key.job_id not in world.one_size,
        rate_alone=rate,
        rate_packed=world.packed_rate if mate else 0.0,
        mate=mate,
        card_bytes=world.card_bytes,
        peak_bytes=world.peaks.get(key.job_id, 1),
        ooms=world.ooms.get(key.job_id, 0),
        idle_s=world.idle.get(key.job_id, 0),
        saved_s=world.saved_s.get(key.job_id, 0),
        keeps_type=key.job_id in world.keeps_type and not why,
    )
    stand = (name, key, proc.state, proc.gpus, proc.reason, detail)
    return ev.ResidentSeen(*stand, 0, proc.has_left, measured, proc.has_floor)


def _why_unfit(world: FakeWorld, key: JobKey, node: str) -> str:
    return world.unfit.get((key.job_id, node), "") if key.restart else ""


def can_move(world: FakeWorld, name: str, key: JobKey, proc: Proc) -> bool:
    """True for a job that this node says can be moved."""
    if _why_unfit(world, key, name):
        return True
    knows_way = proc.is_movable and key.job_id not in world.rigid | world.wayless
    return knows_way or (key.job_id in world.wayless and not proc.has_begun)
