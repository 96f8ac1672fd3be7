"""Parts of the small Slurm of `fake_world`: processes of a job, and an engine as it is configured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine, EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Action, Start
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import SlurmJob
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import PolicySettings
from tests.builders import SECOND_NS

#: Slurm starts a requeued job that nobody holds after AuthInfo=cred_expire and a second, where it was.
REQUEUE_DELAY_S = 11
#: Priority of a job that nobody holds.
RELEASED = 4_294_900_000


@dataclass
class Proc:
    """One incarnation's processes on a node."""

    gpus: tuple[int, ...]
    state: str = states.RUNNING
    reason: str = ""
    #: it can save itself; told to leave, it has
    is_movable: bool = True
    has_left: bool = False
    #: it keeps its turn, to save itself upon its signal
    has_floor: bool = False
    #: plans in a row that said it is to leave
    told_to_leave: int = 0
    #: a policy's plan has it hold its GPUs, and how much GPU time it has held so
    is_on: bool = False
    held_ns: int = 0

    @property
    def has_begun(self) -> bool:
        """False until its first turn."""
        return self.is_on or self.held_ns > 0 or self.state != states.SUSPENDED

    def follow(self, is_on: bool, has_floor: bool) -> None:
        """Hold its GPUs, or park, as a plan says."""
        self.has_floor = has_floor
        self.is_on = (is_on or has_floor) and not self.has_left
        self.state = states.RUNNING if self.is_on else states.SUSPENDED


def as_configured(settings: EngineSettings, move_ns: int = 60 * SECOND_NS) -> Leader:
    """Return `gandiva_fair` made of the engine's settings, as gandiva.yaml without a policy has it."""
    times = {"quantum_ns": settings.quantum_ns, "restart_ns": move_ns}
    made_of = {**times, "pack_floor": settings.pack_floor}
    return Leader(
        lambda: gandiva_fair.make(PolicySettings(**made_of)), {"policy": "gandiva_fair", **made_of}
    )


def an_engine(settings: EngineSettings | None = None) -> Engine:
    """Return an engine that knows nothing yet."""
    settings = settings or EngineSettings()
    return Engine(settings, as_configured(settings))


def runs(job: SlurmJob | None, key: JobKey, node: str) -> bool:
    """Return True where Slurm runs this incarnation on a node."""
    is_newest = job is not None and job.restart == key.restart
    return job is not None and is_newest and node in job.nodes and job.state == "RUNNING"


def starts(actions: Sequence[Action]) -> list[Start]:
    """The starts among actions."""
    return [action for action in actions if isinstance(action, Start)]
