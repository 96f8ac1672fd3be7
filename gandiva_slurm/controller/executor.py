"""Actions in, outcomes out: the engine's wishes done to Slurm and the nodes, each at most with one deadline.

Every action is checked against the latest picture first, so that doing one again, or one from before a
restart, does what is still to be done and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gandiva_slurm.controller.nodes import Nodes
from gandiva_slurm.model.action import (
    REQUEUED_ENDED,
    Action,
    Fence,
    HoldAgain,
    Note,
    Requeue,
    SetTimeLimit,
    Signal,
    Start,
    Unhold,
)
from gandiva_slurm.model.errors import GandivaError, PeerError, SlurmBusy, SlurmUnreachable
from gandiva_slurm.model.event import ActionDone
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import FINISHED, SlurmJob
from gandiva_slurm.slurm.limits import Limits
from gandiva_slurm.slurm.port import SlurmPort

#: How long a node may take to accept the plan with a job that is to start there.
ACCEPT_DEADLINE_S = 3.0

log = logging.getLogger(__name__)


class Executor:
    """Executes actions, those of one call side by side."""

    def __init__(
        self, port: SlurmPort, limits: Limits | None, nodes: Nodes, clock_ns: Callable[[], int]
    ) -> None:
        self._port = port
        self._limits = limits
        self._nodes = nodes
        self._clock_ns = clock_ns
        #: (when `start` was called, nanoseconds; GPUs) by incarnation, until the ledger has it
        self.released: dict[JobKey, tuple[int, int]] = {}
        #: when it was sent its signal, likewise
        self.signalled: dict[JobKey, int] = {}

    async def execute(self, actions: Sequence[Action], jobs: Mapping[int, SlurmJob]) -> list[ActionDone]:
        """Do all these actions; `jobs` is Slurm's latest picture. Notes have no outcome."""
        todo = [action for action in actions if not isinstance(action, Note)]
        return list(await asyncio.gather(*(self._outcome(action, jobs) for action in todo)))

    async def _outcome(self, action: Action, jobs: Mapping[int, SlurmJob]) -> ActionDone:
        what = f"{type(action).__name__} of job {action.key}"
        try:
            await self._do(action, jobs.get(action.key.job_id))
        except (SlurmUnreachable, SlurmBusy, PeerError) as err:
            log.warning("%s: not now: %s", what, err)
            return ActionDone(action.action_id, str(err), retry=True)
        except GandivaError as err:
            log.warning("%s: refused: %s", what, err)
            return ActionDone(action.action_id, str(err))
        except Exception as err:
            log.exception("%s failed", what)
            return ActionDone(action.action_id, f"{type(err).__name__}: {err}", retry=True)
        log.info("%s done: %s", what, action.text)
        return ActionDone(action.action_id)

    def _do(self, action: Action, job: SlurmJob | None) -> Awaitable[None]:
        is_current = job is not None and job.restart == action.key.restart and job.state not in FINISHED
        if isinstance(action, Start):
            is_startable = is_current and job is not None and job.state == "PENDING" and job.is_held
            return self._start(action, job) if is_startable and job is not None else _nothing()
        if isinstance(action, SetTimeLimit):
            return self._set_limit(action, job) if is_current and job is not None else _nothing()
        if isinstance(action, HoldAgain):
            is_free = is_current and job is not None and not job.is_held
            return self._port.hold(action.key.job_id) if is_free else _nothing()
        runs = is_current and job is not None and job.state == "RUNNING"
        if isinstance(action, Requeue) and action.has_ended:
            is_same = job is not None and JobKey(job.job_id, job.restart) == action.key
            has_ended = is_same and job is not None and job.state in REQUEUED_ENDED
            return self._port.requeue_ended(action.key.job_id) if has_ended else _nothing()
        if isinstance(action, Requeue):
            return self._port.requeue(action.key.job_id) if runs else _nothing()
        if isinstance(action, Signal):
            return self._signal(action) if runs else _nothing()
        if isinstance(action, Unhold):
            is_held = runs and job is not None and job.is_held
            return self._port.unhold(action.key.job_id) if is_held else _nothing()
        return self._fence(action) if isinstance(action, Fence) else _nothing()

    async def _start(self, action: Start, job: SlurmJob) -> None:
        """Each of its nodes knows the job and its GPUs before Slurm lets it go (ADR 0003)."""
        await asyncio.gather(*map(self._accepted, action.nodes))
        if action.gpus:
            may_spread = job.options is not None and job.options.max_nodes > job.options.nodes
            await self._port.resize(action.key.job_id, action.gpus, len(action.nodes) * may_spread)
        self.released[action.key] = (self._clock_ns(), sum(len(gpus) for _, gpus in action.places))
        await self._port.start(action.key.job_id, action.nodes)

    async def _signal(self, action: Signal) -> None:
        """Held before it is signalled: where it requeues itself Slurm is not to start it again anywhere."""
        await self._port.hold(action.key.job_id)
        self.signalled[action.key] = self._clock_ns()
        await self._port.signal(action.key.job_id, action.name, action.to_batch)

    def _set_limit(self, action: SetTimeLimit, job: SlurmJob) -> Awaitable[None]:
        if self._limits is None or job.time_limit_s == action.minutes * 60:
            return _nothing()
        return self._limits.set_time_limit(job, action.minutes)

    async def _fence(self, action: Fence) -> None:
        """The node's plan names the incarnation; it must only have reached the node."""
        await self._accepted(action.node)

    async def _accepted(self, node: str) -> None:
        link = self._nodes.get(node)
        if link is None:
            raise PeerError(f"{node} is not a node of Gandiva's partitions any more")
        await link.delivered(ACCEPT_DEADLINE_S)


async def _nothing() -> None:
    """What was asked for is so already, or can no longer be."""
