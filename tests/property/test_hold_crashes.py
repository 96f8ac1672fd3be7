"""Each GPU-second is charged once, whatever is lost of a node's files, and when.

A day of grants and releases is written by the node's own ledger; gandivad is killed, its state file cannot be
read, or the power is cut, which takes what had not come to the disk: any part of it, to the byte.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.accounting.ledger import Ledger as Accounts
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.ledger import Ledger
from gandiva_slurm.wire.messages import Hold, NodeReport
from tests.slow import DRAWN, drawn

JOBS = 3
#: what happens next: a job's hold begins or ends, a report reaches the controller, its acknowledgement the
#: node, the files the disk; or one of the ends
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(1, JOBS)),
        st.tuples(st.sampled_from(("report", "acknowledge", "sync", "kill", "unreadable")), st.just(0)),
        st.tuples(st.just("power"), st.integers(0, 400)),
    ),
    min_size=1,
    max_size=40,
)


@dataclass
class Day:
    """A node's ledger, its files as the disk has them, and what was really held."""

    directory: Path
    accounts: Accounts
    now: int = 1000
    boots: int = 0
    #: (job, begin) -> end, 0 while it lasts
    truth: dict[tuple[int, int], int] = field(default_factory=dict)
    #: what power cuts may have taken: held since the files came to the disk
    lost: int = 0
    state: dict[str, Any] | None = None
    safe: tuple[int, dict[str, Any] | None, int] = (0, None, 1000)
    seen: NodeReport | None = None

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.directory / "holds.jsonl", self.boot)

    @property
    def boot(self) -> str:
        return f"host{self.boots}-daemon"

    def save(self) -> None:
        self.state = json.loads(json.dumps(self.ledger.to_json()))

    def turn(self, job: int) -> None:
        key = JobKey(job, 0)
        if key in self.ledger.open:
            self.truth[job, self.ledger.open[key].t0_ns] = self.now
            self.ledger.end(key, self.now)
        else:
            self.ledger.begin(key, f"user{job}", (0,), self.now)
            self.truth[job, self.now] = 0
        self.save()

    def report(self, _: int) -> None:
        holds = self.ledger.report(self.now)
        self.seen = NodeReport("n1", self.ledger.boot, self.now, 0, 0, 1, (), holds, ())
        self.up_to = self.accounts.record_report(self.seen)

    def acknowledge(self, _: int) -> None:
        if self.seen is not None:
            self.ledger.acknowledge(self.seen.boot, self.up_to)

    def sync(self, _: int) -> None:
        self.safe = (self.size(), self.state, self.now)

    def size(self) -> int:
        return self.ledger.path.stat().st_size if self.ledger.path.exists() else 0

    def kill(self, _: int) -> None:
        self.again(self.state, rebooted=False)

    def unreadable(self, _: int) -> None:
        for (job, begin), end in self.truth.items():
            self.truth[job, begin] = end or self.now  # from then on it is of no job that is known
        self.again(None, rebooted=False)

    def power(self, cut: int) -> None:
        size, state, since = self.safe
        kept = min(self.size(), size) + max(0, self.size() - size) * cut // 400
        if self.ledger.path.exists():
            with self.ledger.path.open("r+b") as stream:
                stream.truncate(kept)
        self.boots += 1
        state = state if cut % 2 else None
        for (job, begin), end in self.truth.items():
            self.truth[job, begin] = end = end or self.now
            # Without a state all that is known of a hold which did not end on the disk is when it began.
            known = begin if state is None and end > since else max(begin, since)
            self.lost += max(0, end - known)
        self.again(state, rebooted=True)

    def again(self, state: dict[str, Any] | None, rebooted: bool) -> None:
        """The next gandivad starts."""
        self.ledger = Ledger(self.directory / "holds.jsonl", self.boot)
        if state is None:
            self.ledger.recover(self.now)
        else:
            self.ledger.restore(state, rebooted)
            if rebooted:
                for key in list(self.ledger.open):
                    self.ledger.end(key, max(self.safe[2], self.ledger.open[key].t0_ns))
        self.save()
        self.sync(0)

    def charged(self) -> list[Hold]:
        """Every hold of the accounts."""
        rows = self.accounts._db.execute("SELECT job_id, t0_ns, t1_ns FROM holds ORDER BY job_id, t0_ns")
        return [Hold(1, job, 0, "", (0,), begin, end, 0) for job, begin, end in rows]


@contextmanager
def a_day() -> Iterator[Day]:
    with tempfile.TemporaryDirectory() as directory:
        accounts = Accounts(Path(directory) / "ledger.sqlite")
        yield Day(Path(directory), accounts)
        accounts.close()


@DRAWN
@settings(max_examples=drawn(150), deadline=None)
@given(STEPS)
def test_no_gpu_second_is_charged_twice_or_lost(steps: list[tuple[str, int]]) -> None:
    with a_day() as day:
        for name, number in steps:
            day.now += 10
            getattr(day, name)(number)
        day.now += 10
        for key in list(day.ledger.open):
            day.turn(key.job_id)
        day.report(0)
        found = day.charged()
        begun = [(hold.job_id, hold.t0_ns) for hold in found]
        assert len(begun) == len({*begun}), "a hold counts once"
        for one, two in itertools.pairwise(found):
            assert one.job_id != two.job_id or one.t1_ns <= two.t0_ns, "holds of a job do not overlap"
        charged = sum(hold.t1_ns - hold.t0_ns for hold in found)
        held = sum(end - begin for (_, begin), end in day.truth.items())
        assert held - day.lost <= charged <= held
