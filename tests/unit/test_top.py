"""`gandiva top`: what a screen has, whatever its size, and that nothing on it is somebody's text alone."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from gandiva_slurm.cli import main, top
from gandiva_slurm.cli.top import Found, History, frame
from gandiva_slurm.model.errors import GandivaError, PeerError
from tests.unit.test_cli import HELD, JOB, NODE

NOW_S = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
SIZE = (80, 24)


def node(*jobs, name="n1", state="up", **more):
    """A node whose GPUs these jobs hold, 0: nobody."""
    holders = [
        {"gpu": gpu, "job_id": job or None, "user": f"user{job}" if job else "",
         "state": "RUNNING" if job else "", "packed_with": None, **more}
        for gpu, job in enumerate(jobs)
    ]  # fmt: skip
    return {"node": name, "state": state, "holders": holders}


def seen(*looks) -> History:
    history = History()
    for look in looks:
        history.take(look if isinstance(look, list) else [look])
    return history


def found(rows):
    rows = list(rows)
    return Found(rows[: top.MOST_ROWS], Counter(row["state"] for row in rows))


def text(history, rows=(), trouble="", size=SIZE):
    return frame(history, found(rows), trouble, size, NOW_S)


def test_a_gpus_line_tells_who_held_it_look_by_look():
    lines = text(seen(node(12, 0), node(13, 0), node(12, 14)))
    assert lines[0] == "12:00:00  2 of 2 GPUs held; no jobs"
    assert lines[1].split() == ["n1:0", "aba", "a", "12(user12)"]
    assert lines[2].split() == ["n1:1", "..c", "c", "14(user14)"]


def test_a_node_that_does_not_answer_and_a_job_that_is_not_to_be_seen():
    hidden = node(0)
    hidden["holders"][0]["state"] = "RUNNING"
    lines = text(seen([node(12, name="n1", state="silent"), hidden | {"node": "n2"}]))
    assert lines[1].split() == ["n1:0", "?", "silent"]
    assert lines[2].split() == ["n2:0", "#", "held"]
    assert "1 of 2 GPUs held" in lines[0]


@pytest.mark.parametrize("size", [(80, 24), (20, 6), (200, 50), (1, 1)])
def test_it_fits_whatever_there_is(size):
    nodes = [node(*range(1, 9), name=f"node{number:03}") for number in range(100)]
    rows = [JOB | {"job_id": number, "name": "x" * 500} for number in range(5000)]
    lines = text(seen(nodes), rows, "it is not there " * 20, size)
    assert len(lines) <= size[1] and all(len(line) <= size[0] for line in lines)
    if size == SIZE:
        assert any("GPUs more (gandiva nodes)" in line for line in lines)
        assert "jobs more (gandiva queue)" in lines[-1]
        told = sum("RUNNING" in line for line in lines[1:])
        assert f"... {5000 - told} jobs more" in lines[-1]


def test_letters_do_not_run_out_and_are_given_again():
    history = seen(*[node(job) for job in range(1, 400)])
    assert len(history.letters) <= len(top.LETTERS) * 8
    assert len({*history.lines["n1", 0]}) == len(top.LETTERS)


def test_a_gpu_that_is_gone_has_no_line():
    assert not seen(node(12), []).lines


def test_a_users_text_steers_no_terminal():
    lines = text(seen(node(12, user="a\x1b[2J\nb")), [JOB | {"user": "u\x1b]0;x\x07", "reason": "\n"}])
    assert all(line.isprintable() for line in lines)


@pytest.fixture
def gandiva(monkeypatch, capsys):
    def run(*args, nodes=(NODE,), status=0):
        def answer(config, ask, arguments):
            if isinstance(nodes, Exception) and ask == "nodes":
                raise nodes
            rows = [row for row in (JOB, HELD) if row["user"] in (arguments.get("users") or (row["user"],))]
            return vars(found(rows)) if ask == "top" else list(nodes)

        monkeypatch.setattr(top, "query", answer)
        with pytest.raises(SystemExit) as end:
            main.main(["top", *args])
        told = capsys.readouterr()
        assert end.value.code == status, told
        return told.out if status == 0 else told.err

    return run


def test_where_there_is_no_terminal_it_is_one_look(gandiva):
    lines = gandiva("-u", "user1").splitlines()
    assert "1 RUNNING" in lines[0] and lines[-1].split()[:3] == ["12", "user1", "RUNNING"]
    assert "HELD" in gandiva("--once")


def test_private_nodes_leave_the_queue(gandiva):
    told = gandiva(nodes=GandivaError("Slurm's PrivateData hides nodes"))
    assert "0 of 0 GPUs held" in told and "RUNNING" in told


def test_without_a_controller_it_says_so(gandiva):
    assert "does not answer" in gandiva(nodes=PeerError("gandivactld does not answer"), status=3)


def test_it_goes_on_while_gandivactld_is_away_and_rests_longer_where_a_look_takes_long(monkeypatch):
    rests, troubles = [], []
    looks = iter([found([HELD]), PeerError("away"), found([JOB])])

    def look(*_):
        one = next(looks)
        if isinstance(one, Exception):
            raise one
        return one

    def rest(seconds):
        rests.append(seconds)
        if len(rests) == 3:
            raise KeyboardInterrupt

    clock = iter([0.0, 0.0, 10.0, 11.0, 20.0, 20.0])
    monkeypatch.setattr(top, "look", look)
    monkeypatch.setattr(top.time, "sleep", rest)
    monkeypatch.setattr(top.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(top, "frame", lambda *args: troubles.append(args[2]) or ["x"])
    with pytest.raises(KeyboardInterrupt):
        top.watch_plainly(None, History(), None, 2.0)
    assert troubles[:3] == ["", "what is shown is old: away", ""]
    assert rests[:2] == [2.0, 10.0]
