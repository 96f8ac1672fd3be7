"""What the daemons' logs say, and how often."""

import logging

import pytest

from gandiva_slurm import logs
from gandiva_slurm.controller import bounds
from gandiva_slurm.controller.bounds import BoundsWatch
from gandiva_slurm.model.bounds import Bounds
from gandiva_slurm.model.errors import SlurmUnreachable

log = logging.getLogger(__name__)


def test_trouble_is_told_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trouble = logs.Trouble(log, "no water", "water again")
    trouble.ends()
    for why in ("a", "b", "c"):
        trouble.begins(why)
    trouble.ends()
    trouble.ends()
    trouble.begins("d")
    assert caplog.messages == ["no water: a", "water again", "no water: d"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


def test_the_same_sentence_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    logs.warn_once.cache_clear()
    for text in ("one", "two", "one"):
        logs.warn_once(log, text)
    assert caplog.messages == ["one", "two"]


class Answers:
    """`Limits` that answers when it is told to."""

    answers = False

    async def bounds(self) -> Bounds:
        """Answer, or not."""
        if not self.answers:
            raise SlurmUnreachable("scontrol: no answer within 10 s")
        return Bounds()

    async def set_time_limit(self, job: object, minutes: int) -> None:
        """Not asked here."""


async def test_bounds_that_cannot_be_read_are_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(bounds, "EVERY_S", 0.0)
    limits = Answers()
    watch = BoundsWatch(limits)
    for limits.answers in (False, False, True, True):
        await watch.look()
    assert len(watch.take()) == 1
    want = ["MaxTime and reservations not read, the old ones stay: ", "MaxTime and reservations are read"]
    assert len(caplog.messages) == 2
    assert all(text.startswith(start) for text, start in zip(caplog.messages, want, strict=True))
