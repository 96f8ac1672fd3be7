"""What a policy knows is written down and read back, with the same answers; anything else is refused."""

from __future__ import annotations

import os
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.memory import NoMemory, kept, recalled
from gandiva_slurm.policy.port import Cluster, Plan, Policy, PolicySettings, View
from gandiva_slurm.policy.registry import make_policy, policy_names
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.world import Costs
from tests.sim.mixed import CLUSTER, W1, settings, workload

TOLD = PolicySettings(10**9)


class Forgets:
    """A policy, and beside it the same one that is read back from what it knew before each question."""

    def __init__(self, policy: Policy, twin: Policy) -> None:
        self.name, self._policy, self._twin = policy.name, policy, twin
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def decide(self, view: View) -> Plan:
        self.asked += 1
        self._twin = recalled(kept(self._twin), self._twin, view.cluster)
        plan = self._policy.decide(view)
        assert self._twin.decide(view) == plan
        return plan


@pytest.mark.parametrize("name", policy_names())
@pytest.mark.parametrize("vcs", [("",), ("", "one", "two")])
def test_every_policy_goes_on_from_what_was_written_down(name: str, vcs: tuple[str, ...]) -> None:
    rows, truth = workload(W1)
    specs = [replace(row, vc=vcs[n % len(vcs)]) for n, row in enumerate(rows[:24])]
    told = settings(600, 1, 8)
    (policy, is_told), (twin, _) = make_policy(name, told), make_policy(name, told)
    both = Forgets(policy, twin)
    simulate(Scene(specs, CLUSTER, truth, Costs(told.switch_ns, told.restart_ns, slots=4)), both, is_told)
    assert both.asked > 40


def test_the_cluster_is_the_one_of_now() -> None:
    cluster = Cluster([("v100", 8)] * 500)
    policy = gandiva_fair.make(TOLD)
    policy.decide(View(5, cluster, {}, truth_of_nothing()))
    assert len(kept(policy)) < 5000, "which has 4,000 GPUs"
    again = recalled(kept(policy), gandiva_fair.make(TOLD), cluster)
    assert isinstance(again, type(policy)) and again.passes() == policy.passes()


def truth_of_nothing() -> Any:
    """No rates are known."""


class Calls:
    """Is written down as a call."""

    def __init__(self, what: Any, *with_: Any) -> None:
        self._call = (what, with_)

    def __reduce__(self) -> Any:
        return self._call


def test_nothing_is_called_that_is_no_class_of_a_policy(tmp_path: Path) -> None:
    """The journal of another's: its bytes would run a command, make a file, or call what is ours."""
    mark = tmp_path / "mark"
    for call in (
        Calls(os.system, f"touch {mark}"),
        Calls(subprocess.Popen, ["touch", str(mark)]),
        Calls(open, str(mark), "w"),
        Calls(eval, f"open({str(mark)!r}, 'w')"),
        Calls(getattr, 1, "real"),
        Calls(gandiva_fair.make, TOLD),
        Calls(Path.touch, mark),
    ):
        with pytest.raises(NoMemory, match="is no part of a policy"):
            recalled(pickle.dumps(call), gandiva_fair.make(TOLD), CLUSTER)
        assert not mark.exists()


def test_a_name_that_only_looks_like_a_class_of_ours_is_refused() -> None:
    """A dotted name leads out of a module of ours."""
    code = b"cgandiva_slurm.policy.memory\npickle.Unpickler\n."
    with pytest.raises(NoMemory, match="cannot be read"):
        recalled(b"\x80\x04" + code, gandiva_fair.make(TOLD), CLUSTER)
    long = b"\x80\x04\x8c\x1cgandiva_slurm.policy.memory\x94\x8c\x07io.open\x94\x93."
    with pytest.raises(NoMemory, match="cannot be read"):
        recalled(long, gandiva_fair.make(TOLD), CLUSTER)


@pytest.mark.parametrize("bytes_", [b"", b"\x80", b"nonsense", b"\x80\x04N.", b"\x80\x04\x8c\x05other\x94Q."])
def test_bytes_of_something_else_are_refused(bytes_: bytes) -> None:
    with pytest.raises(NoMemory):
        recalled(bytes_, gandiva_fair.make(TOLD), CLUSTER)


def test_what_another_policy_knew_is_refused() -> None:
    fifo, _ = make_policy("fifo", TOLD)
    with pytest.raises(NoMemory, match="is that of a Fifo"):
        recalled(kept(fifo), gandiva_fair.make(TOLD), CLUSTER)
    gandiva, _ = make_policy("gandiva", TOLD)
    with pytest.raises(NoMemory, match="is that of a GandivaFair"):
        recalled(kept(gandiva), gandiva_fair.make(TOLD), CLUSTER)
    cut = kept(gandiva_fair.make(TOLD))[:-20]
    with pytest.raises(NoMemory, match="cannot be read"):
        recalled(cut, gandiva_fair.make(TOLD), CLUSTER)


def test_no_class_of_this_process_is_changed_by_bytes() -> None:
    """A state for a class that was named before it: the reader in C would set its attributes."""
    code = (
        b"\x80\x04cgandiva_slurm.policy.port\nCluster\n(N}(\x8c\x06widest\x8c\x04evil"
        b"u\x86b."  # (None, {"widest": "evil"}) for the class
    ).replace(b"(N}(", b"N}(")
    with pytest.raises(NoMemory, match="Cluster is no object"):
        recalled(code, gandiva_fair.make(TOLD), CLUSTER)
    assert callable(Cluster.widest)


class Stubborn:
    """A policy that will not be written down, in a way of its own."""

    name = "stubborn"

    def decide(self, view: View) -> Plan:
        return Plan({})

    def __getstate__(self) -> object:
        raise ValueError("no")


def test_whatever_a_policy_raises_when_it_is_written_down_is_told() -> None:
    with pytest.raises(NoMemory, match="policy stubborn cannot be written down: no"):
        kept(Stubborn())


class Holds:
    """A policy that holds something that cannot be written down."""

    name = "holds"

    def __init__(self) -> None:
        self.what = lambda: None

    def decide(self, view: View) -> Plan:
        return Plan({})


def test_one_that_holds_what_cannot_be_written_is_told_so() -> None:
    with pytest.raises(NoMemory, match="policy holds cannot be written down"):
        kept(Holds())
