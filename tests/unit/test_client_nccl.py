"""NCCL's communicators while parked, what watches a gang, what doctor says of both; groups are played."""

import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest

from gandiva_slurm.cli import gang_told
from gandiva_slurm.client import choice, groups, nccl, tiers
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.tiers import BestTier, Released

MODULE = "torch.distributed.distributed_c10d"


class Backend:
    """One group's, which notes what it is asked for."""

    def __init__(self, number, asked, kind="nccl", wait_s=600, fails=""):
        self.number, self.asked, self.kind, self.fails = number, asked, kind, fails
        self.options = SimpleNamespace(_timeout=timedelta(seconds=wait_s))

    def name(self):
        return self.kind

    def suspend(self):
        if self.fails:
            raise RuntimeError(self.fails)
        self.asked.append(f"suspend {self.number}")

    def resume(self):
        self.asked.append(f"resume {self.number}")


class Old:
    """One of a torch that cannot suspend."""

    options = SimpleNamespace(_timeout=timedelta(seconds=600))

    def name(self):
        return "nccl"


@pytest.fixture
def gang(monkeypatch):
    """Make this process a rank with such groups, NCCL of a release, and the wish to suspend."""

    def make(*backends, release=(2, 30, 0), wish="suspend"):
        made = [SimpleNamespace(_device_types=["cuda"], _get_backend=lambda _, it=it: it) for it in backends]
        monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(_world=SimpleNamespace(pg_map=made)))
        cuda = SimpleNamespace(nccl=SimpleNamespace(version=lambda: release))
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        monkeypatch.setenv("GANDIVA_NCCL", wish)
        for name in ("TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "NCCL_NVLS_ENABLE"):
            monkeypatch.delenv(name, raising=False)

    return make


def test_all_are_suspended_and_resumed_in_one_order_and_those_not_made_yet_are_left_out(gang):
    asked = []
    lazy = Backend(2, asked, fails="NCCL communicator not initialized for this device")
    gang(Backend(1, asked), lazy, Backend(3, asked, kind="gloo"), Backend(4, asked))
    done = nccl.suspend()
    nccl.resume(done)
    assert asked == ["suspend 1", "suspend 4", "resume 1", "resume 4"] and not done


def test_one_that_fails_leaves_none_suspended_and_is_told(gang, capsys):
    asked = []
    gang(Backend(1, asked), Backend(2, asked, fails="NCCL error"))
    assert nccl.suspend() == [] and asked == ["suspend 1", "resume 1"]
    assert "keep their memory while it is parked" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("backends", "release", "wish", "why"),
    [
        ((Backend(1, []),), (2, 29, 7), "suspend", ""),
        ((Backend(1, []),), (2, 29, 7), "", "not asked"),
        ((Backend(1, []),), (2, 28, 9), "suspend", "from 2.29.7 on"),
        ((Old(),), (2, 30, 0), "suspend", "this torch does not offer it"),
        ((Backend(1, [], kind="gloo"),), (2, 30, 0), "suspend", "no group uses NCCL"),
    ],
)
def test_it_is_done_where_it_is_asked_for_and_can_be(gang, backends, release, wish, why):
    gang(*backends, release=release, wish=wish)
    assert nccl.is_wanted() is not bool(why)
    assert nccl.why_not().endswith("" if why == "not asked" else why)


class Mover:
    """A tier that notes its calls among those of the communicators."""

    number, fails, device = 1, False, SimpleNamespace(held=lambda: 0)

    def __init__(self, asked):
        self.asked = asked

    def release(self, drain_s):
        if self.fails:
            raise Refused("no room")
        self.asked.append("memory out")
        return Released(1, 0)

    def restore(self):
        self.asked.append("memory in")


@pytest.fixture
def tier(gang, monkeypatch):
    asked = []
    gang(Backend(1, asked))
    made = BestTier({})
    made._movers = {choice.TORCH: Mover(asked)}
    monkeypatch.setattr(tiers, "wants_to_move", lambda: True)
    monkeypatch.setattr(choice, "movers", lambda facts: (choice.TORCH,))
    monkeypatch.setattr(BestTier, "_facts", lambda self: None)
    monkeypatch.setattr(
        tiers.HoldTier, "release", lambda self, drain_s=0: asked.append("idle") or Released(0, 0)
    )
    return made, asked


def test_a_park_suspends_before_its_memory_goes_and_resumes_when_it_is_back(tier):
    made, asked = tier
    made.release(1.0)
    made.restore()
    assert asked == ["idle", "suspend 1", "memory out", "memory in", "resume 1"]


def test_memory_that_does_not_come_back_leaves_them_suspended_for_the_next_try(tier, monkeypatch):
    made, asked = tier
    made.release(1.0)
    with monkeypatch.context() as patch:
        patch.setattr(Mover, "restore", lambda self: (_ for _ in ()).throw(RuntimeError("out of memory")))
        with pytest.raises(RuntimeError):
            made.restore()
    assert "resume 1" not in asked
    made.restore()
    assert asked[-2:] == ["memory in", "resume 1"]


def test_memory_that_is_held_keeps_them_suspended_and_a_park_that_fails_resumes_them(tier, monkeypatch):
    made, asked = tier
    monkeypatch.setattr(Mover, "fails", True)
    assert made.release(1.0).why
    assert "resume 1" not in asked
    made.restore()
    assert asked[-1] == "resume 1"
    monkeypatch.setattr(
        BestTier, "_move_away", lambda self, drain_s: (_ for _ in ()).throw(TimeoutError("busy"))
    )
    with pytest.raises(TimeoutError):
        made.release(1.0)
    assert asked[-2:] == ["suspend 1", "resume 1"]


@pytest.mark.parametrize(
    ("env", "want_ms"),
    [
        ({}, 480_000),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "100"}, 100_000),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "soon"}, 480_000),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "100", "TORCH_NCCL_ENABLE_MONITORING": "0"}, 600_000),
    ],
)
def test_a_freeze_is_bounded_by_what_watches_nccl_too(gang, monkeypatch, env, want_ms):
    gang(Backend(1, []))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert groups.shortest_timeout_ms() == want_ms
    gang(Backend(1, [], kind="gloo", wait_s=1800))
    assert groups.shortest_timeout_ms() == 1_800_000, "nothing watches gloo"


def test_doctor_says_a_line_on_each(gang):
    gang(Backend(1, []), Backend(2, [], kind="gloo", wait_s=1800))
    lines = dict(gang_told.told({"gang": nccl.gang(), "graphs": True}))
    assert (
        lines["groups"]
        == "gloo, nccl 2.30.0: suspended while it is parked (GANDIVA_NCCL; not run on a GPU yet)"
    )
    assert lines["watchdogs"].startswith(
        "its groups wait 600 s, NCCL's monitor 480 s: frozen in mid-step it is woken after 240 s"
    )
    assert "NCCL_NVLS_ENABLE=0" in lines["nvls"] and "CUDA graphs" in lines["graphs"]
    gang(Backend(1, []), wish="")
    assert "next: GANDIVA_NCCL=suspend" in dict(gang_told.told({"gang": nccl.gang()}))["groups"]
    gang(Old(), wish="")
    assert dict(gang_told.told({"gang": nccl.gang()}))["groups"].endswith("this torch does not offer it")
    gang(Backend(1, [], kind="gloo", wait_s=1800))
    found = dict(gang_told.told({"gang": nccl.gang()}))
    assert found["groups"] == "gloo: they keep no memory of a GPU" and set(found) == {"groups", "watchdogs"}
    gang()
    assert not dict(gang_told.told({"gang": nccl.gang(), "graphs": False}))
