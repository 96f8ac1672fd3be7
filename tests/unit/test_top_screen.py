"""The screen of `gandiva top`: what each key does, and that a job's texts are texts there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import DataTable, Input, Static

from gandiva_slurm.cli import top_screen
from gandiva_slurm.cli.top import Wish
from gandiva_slurm.cli.top_screen import Screenful, TopScreen, tail_of
from gandiva_slurm.model.errors import GandivaError, PeerError, UsageError
from tests.unit.test_cli import HELD, JOB

SIZE = (80, 24)
#: Longer than any of these tests: looks are asked for by keys alone.
SELDOM_S = 3600.0


class Asked:
    """What the screen asked, and what it is told."""

    def __init__(self) -> None:
        self.wishes: list[Wish] = []
        self.trouble: GandivaError | None = None
        self.found = Screenful(["12:00:00  1 of 2 GPUs held"], ["n1:0 aab a 12(user1)"], [JOB, HELD], 7)

    def look(self, wish: Wish, _: tuple[int, int]) -> Screenful:
        self.wishes.append(wish)
        if self.trouble is not None:
            raise self.trouble
        return self.found

    def tell(self, what: str) -> Callable[[Any], Sequence[str]]:
        return lambda row: [f"{what} of {row['job_id']}"]


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def screen(asked: Asked) -> TopScreen:
    tell = {what: asked.tell(what) for what in ("why", "output", "shares")}
    return TopScreen(asked.look, tell, Wish(), SELDOM_S)


def shown(screen: TopScreen, where: str) -> str:
    return str(screen.query_one(where, Static).render())


async def settled(pilot: Any) -> None:
    """Let what was asked be done and shown."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def test_it_shows_a_look(screen: TopScreen) -> None:
    async with screen.run_test(size=SIZE) as pilot:
        await settled(pilot)
        table = screen.query_one(DataTable)
        assert table.row_count == 2 and str(table.get_row_at(0)[0]) == str(JOB["job_id"])
        assert "1 of 2 GPUs held" in shown(screen, "#head") and "5 jobs more" in shown(screen, "#head")
        assert shown(screen, "#gpus") == "n1:0 aab a 12(user1)"


async def test_orders_filters_and_own_jobs_are_asked_for(
    screen: TopScreen, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_screen.getpass, "getuser", lambda: "user1")
    async with screen.run_test(size=SIZE) as pilot:
        await pilot.press("s")
        await pilot.press("slash", *"v100", "enter")
        await pilot.press("m")
        await settled(pilot)
        assert screen.wish == Wish("user", "v100", ["user1"]) and asked.wishes[-1] == screen.wish
        await pilot.press("m")
        assert screen.wish == Wish("user", "v100", None)
        assert not screen.query_one(Input).display and screen.focused is screen.query_one(DataTable)


async def test_keys_go_into_the_filter_while_it_is_written(screen: TopScreen) -> None:
    async with screen.run_test(size=SIZE) as pilot:
        await pilot.press("slash", "q", "c", "escape")
        await settled(pilot)
        assert screen.is_running and screen.wish == Wish()


@pytest.mark.parametrize(("key", "what"), [("w", "why"), ("o", "output"), ("t", "shares")])
async def test_the_pane_is_of_the_job_under_the_cursor(screen: TopScreen, key: str, what: str) -> None:
    async with screen.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("down", key)
        await settled(pilot)
        assert shown(screen, "#told") == f"{what} of {HELD['job_id']}"
        await pilot.press("escape")
        assert not screen.query_one("#pane").display


async def test_the_cursor_stays_on_its_job_when_rows_move(screen: TopScreen, asked: Asked) -> None:
    async with screen.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("down")
        asked.found = replace(asked.found, rows=[HELD, JOB | {"job_id": 99}, JOB])
        screen.again()
        await settled(pilot)
        chosen = screen.chosen()
        assert chosen is not None and chosen["job_id"] == HELD["job_id"]
        asked.found = replace(asked.found, rows=[])
        screen.again()
        await settled(pilot)
        assert screen.chosen() is None
        await pilot.press("c", "w", "o")
        assert len(screen.screen_stack) == 1


@pytest.mark.parametrize(("key", "calls"), [("y", [("scancel", "12")]), ("n", []), ("enter", [])])
async def test_a_job_is_cancelled_when_it_was_meant(
    screen: TopScreen, monkeypatch: pytest.MonkeyPatch, key: str, calls: list[tuple[str, ...]]
) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(top_screen, "slurm", lambda *words: ran.append(words) or "")
    async with screen.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("c")
        assert "Cancel job 12" in str(screen.screen.query_one("#question", Static).render())
        await pilot.press(key)
        await settled(pilot)
        assert ran == calls
        assert ("job 12 is cancelled" in shown(screen, "#head")) == bool(calls)


async def test_what_slurm_refuses_is_said(screen: TopScreen, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> str:
        raise GandivaError("scancel: Access/permission denied")

    monkeypatch.setattr(top_screen, "slurm", refuse)
    async with screen.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("c", "y")
        await settled(pilot)
        assert "permission denied" in shown(screen, "#head")


async def test_a_gandivactld_that_is_away_is_told_and_the_rows_stay(screen: TopScreen, asked: Asked) -> None:
    async with screen.run_test(size=SIZE) as pilot:
        await settled(pilot)
        asked.trouble = PeerError("gandivactld does not answer")
        screen.again()
        await settled(pilot)
        assert "what is shown is old: gandivactld does not answer" in shown(screen, "#head")
        assert screen.query_one(DataTable).row_count == 2


async def test_a_late_answer_to_an_older_wish_is_not_shown(screen: TopScreen, asked: Asked) -> None:
    holds, old = threading.Event(), asked.look

    def slow(wish: Wish, size: tuple[int, int]) -> Screenful:
        found = old(wish, size)
        if wish.order == "state" and len(asked.wishes) > 1:
            holds.wait(20)
            return replace(found, rows=[])
        return found

    async with screen.run_test(size=SIZE) as pilot:
        await settled(pilot)
        screen.look = slow
        screen.again()
        await pilot.press("s")
        holds.set()
        await settled(pilot)
        assert screen.query_one(DataTable).row_count == 2 and "by user" in shown(screen, "#head")


async def test_no_text_of_a_job_is_markup_or_steers_the_terminal(screen: TopScreen, asked: Asked) -> None:
    hostile = "[bold red]x[/] [@click=app.quit]y[/] \x1b[2J\n"
    row = JOB | {"user": hostile, "reason": hostile, "name": hostile}
    asked.found = Screenful([hostile], [hostile], [row], 1)
    screen.tell = {"why": lambda row: [hostile]}
    async with screen.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("w")
        await settled(pilot)
        as_is = "[bold red]x[/] [@click=app.quit]y[/] ?[2J?"
        for where in ("#head", "#gpus", "#told"):
            assert shown(screen, where).startswith(as_is)
        cells = [str(cell) for cell in screen.query_one(DataTable).get_row_at(0)]
        assert as_is in cells and all(cell.isprintable() for cell in cells)
        await pilot.press("c")
        assert as_is in str(screen.screen.query_one("#question", Static).render())


def named(path: object) -> Callable[..., str]:
    return lambda *_: f"JobId=12\n   StdErr=/x\n   StdOut={path}\n"


def test_the_end_of_a_jobs_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "slurm-12.out"
    path.write_bytes(b"x" * 10**6 + b"\n" + b"".join(b"line %d\n" % n for n in range(20)) + b"10%\r50%\r99%")
    monkeypatch.setattr(top_screen, "slurm", named(path))
    lines = tail_of(JOB)
    assert lines[0] == f"{path}:" and lines[-2:] == ["line 19", "99%"] and len(lines) == top_screen.PANE_LINES


def test_an_output_that_is_a_pipe_or_not_there_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(top_screen, "slurm", named(tmp_path / "pipe"))
    with pytest.raises(UsageError):
        tail_of(JOB)
    monkeypatch.setattr(top_screen, "slurm", named(tmp_path / "away"))
    with pytest.raises(UsageError, match="No such file"):
        tail_of(JOB)
    monkeypatch.setattr(top_screen, "slurm", lambda *_: "JobId=12\n")
    with pytest.raises(UsageError, match="names no output"):
        tail_of(JOB)


def test_a_command_that_hangs_or_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as soon, pytest.raises(GandivaError, match="timed out"):
        soon.setattr(top_screen, "SLURM_S", 0.2)
        top_screen.slurm("sleep", "60")
    monkeypatch.setattr(top_screen, "SLURM_S", 60)
    with pytest.raises(GandivaError, match="false: exit 1"):
        top_screen.slurm("false")
    with pytest.raises(GandivaError, match="No such file"):
        top_screen.slurm("/no/scancel")
