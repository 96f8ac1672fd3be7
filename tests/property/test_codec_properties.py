"""Whatever an engine hears or answers is read back as it was written."""

from __future__ import annotations

import json
import typing

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gandiva_slurm.engine.state.codec import dumps, lists, read_actions, read_events
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.event import Event

EVENTS = st.lists(st.one_of(map(st.from_type, typing.get_args(Event))), max_size=4)
ACTIONS = st.lists(st.one_of(map(st.from_type, typing.get_args(Action))), max_size=4)
QUICK = settings(suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(EVENTS)
def test_events_are_read_as_they_were_written(events: list[Event]) -> None:
    text = dumps(lists(events))
    assume("NaN" not in text)  # it is not equal to itself
    assert read_events(json.loads(text)) == events


@QUICK
@given(ACTIONS)
def test_actions_are_read_as_they_were_written(actions: list[Action]) -> None:
    assert read_actions(json.loads(dumps(lists(actions)))) == actions
