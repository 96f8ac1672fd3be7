"""Actions that wait for their nodes: a node must know of a job before it is started there.

They are from before a restart, without an outcome, or for nodes that have not reported yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Action, Fence, Requeue, Signal, Start
from gandiva_slurm.model.event import ActionDone


class Later:
    """Actions held back."""

    def __init__(self, unfinished: Iterable[Action]) -> None:
        """`unfinished`: those of the journal that have no outcome."""
        self._actions = [*unfinished]

    def take_up(
        self, known: Collection[str], jobs: Mapping[int, JobRecord]
    ) -> tuple[list[Action], list[ActionDone]]:
        """Return those whose nodes are known by now, and the outcomes of those overtaken since."""
        todo: list[Action] = []
        overtaken: list[ActionDone] = []
        later = []
        for action in self._actions:
            if not _is_still_wanted(action, jobs):
                # a signal may have been sent, and is sent once: it counts as sent
                error = "" if isinstance(action, Signal) else "overtaken"
                overtaken.append(ActionDone(action.action_id, error))
            elif nodes_of(action) <= {*known}:
                todo.append(action)
            else:
                later.append(action)
        self._actions = later
        return todo, overtaken

    def put_off(
        self, actions: Iterable[Action], known: Collection[str], todo: Sequence[Action]
    ) -> list[Action]:
        """Keep those back whose nodes are not known yet; return the others, but what is in `todo` already."""
        had = {action.action_id for action in (*todo, *self._actions)}
        new = [action for action in actions if action.action_id not in had]
        self._actions += [action for action in new if not nodes_of(action) <= {*known}]
        return [action for action in new if nodes_of(action) <= {*known}]

    def hold_requeued(self, todo: Iterable[Action]) -> list[Action]:
        """Keep starts of requeued jobs for later; return the others."""
        held = [action for action in todo if isinstance(action, Start) and action.key.restart]
        self._actions += held
        return [action for action in todo if action not in held]


def without_signals(actions: Iterable[Action]) -> tuple[list[Action], list[ActionDone]]:
    """Leave out the signals, which the journal must have before they are sent; return their outcomes, too."""
    todo, outcomes = list[Action](), list[ActionDone]()
    for action in actions:
        if isinstance(action, Signal):
            outcomes.append(ActionDone(action.action_id, "gandivactld's journal cannot be written now"))
        else:
            todo.append(action)
    return todo, outcomes


def nodes_of(action: Action) -> set[str]:
    """Return the nodes that must know of an action before it is done."""
    if isinstance(action, Start):
        return set(action.nodes)
    return {action.node} if isinstance(action, Fence) else set()


def _is_still_wanted(action: Action, jobs: Mapping[int, JobRecord]) -> bool:
    record = jobs.get(action.key.job_id)
    # Whether a job that was to be requeued still stands there, saved, its node must say first.
    if record is None or record.key != action.key or isinstance(action, Requeue | Signal):
        return False
    return record.state == states.STARTING or not isinstance(action, Start)
