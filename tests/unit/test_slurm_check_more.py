"""`gandiva check` on partitions, nodes and gandiva.yaml: each fault is found and told with its cure."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.config import Config
from gandiva_slurm.slurm import check_partitions, check_yaml
from gandiva_slurm.slurm.finding import ERROR, WARNING
from tests.builders import a_node
from tests.unit.test_slurm_check import PARTITIONS, only, site

ME = pwd.getpwuid(os.getuid()).pw_name
SOUND = {
    **PARTITIONS["gandiva"],
    "DefaultTime": "01:00:00",
    "MaxTime": "UNLIMITED",
    "ExclusiveUser": "NO",
    "PreemptMode": "OFF",
    "TRESBillingWeights": "CPU=0,Mem=0,GRES/gpu=0.25",
}


def a_config(tmp_path: Path, node: dict[str, Any] | None = None, **controller: Any) -> Config:
    told = {"host": "localhost", "slurm_user": ME, "state_dir": str(tmp_path), **controller}
    raw = {"cluster": "mini", "partitions": ["gandiva"], "slots_per_gpu": 4, "controller": told}
    return Config.model_validate(raw | ({"node": node} if node else {}))


@pytest.mark.parametrize(
    ("changes", "level", "what"),
    [
        ({"OverSubscribe": "FORCE:2"}, ERROR, "FORCE:2: so few jobs share a CPU"),
        ({"ExclusiveUser": "YES"}, ERROR, "ExclusiveUser=YES"),
        ({"DefaultTime": "NONE"}, WARNING, "no DefaultTime and no MaxTime"),
        ({"PreemptMode": "SUSPEND"}, WARNING, "PreemptMode=SUSPEND"),
        ({"TRESBillingWeights": ""}, WARNING, "a sliced GPU several times"),
    ],
)
def test_partitions(tmp_path: Path, changes: dict[str, str], level: str, what: str) -> None:
    found = site(partitions={"gandiva": SOUND | changes})
    finding = only([*check_partitions.check(found, (), a_config(tmp_path))])
    assert finding.level == level and what in finding.what and "gandiva" in finding.where


def test_a_sound_partition_has_no_fault(tmp_path: Path) -> None:
    sound = site(partitions={"gandiva": SOUND})
    assert [*check_partitions.check(sound, (a_node("n1"),), a_config(tmp_path))] == []
    forced = site(partitions={"gandiva": SOUND | {"OverSubscribe": "FORCE"}})
    assert [*check_partitions.check(forced, (), a_config(tmp_path))] == []


@pytest.mark.parametrize(
    ("state", "reason", "level", "what"),
    [
        ({"IDLE", "INVAL"}, "gres/gpu count reported lower than configured (0 < 16)", ERROR, "(0 < 16)"),
        ({"DOWN"}, "Not responding", WARNING, "DOWN: Not responding"),
        ({"IDLE", "DRAIN"}, "", WARNING, "DRAIN+IDLE"),
    ],
)
def test_nodes(tmp_path: Path, state: set[str], reason: str, level: str, what: str) -> None:
    nodes = (a_node("n1", state=frozenset(state), reason=reason), a_node("n2"))
    found = [*check_partitions.check(site(partitions={"gandiva": SOUND}), nodes, a_config(tmp_path))]
    finding = only(found)
    assert finding.level == level and what in finding.what and finding.where == "node n1"


def test_addresses_of_nodes_slurm_does_not_have(tmp_path: Path) -> None:
    config = a_config(tmp_path, node={"addresses": {"n1": "h:1", "n7": "h:2"}})
    found = [*check_partitions.check(site(partitions={"gandiva": SOUND}), (a_node("n1"),), config)]
    assert "n7" in only(found).what


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"MinJobAge": "5 sec"}, "may forget a job"), ({"SlurmdTimeout": "0 sec"}, "never set down")],
)
def test_times(tmp_path: Path, changes: dict[str, str], what: str) -> None:
    found = site(changes, partitions={"gandiva": SOUND})
    assert what in only([*check_partitions.check(found, (), a_config(tmp_path))]).what


def faults(config: Config, directory: Path, slurm_user: str = ME) -> list[Any]:
    return [*check_yaml.check(site({"SlurmUser": f"{slurm_user}(1)"}), config, directory)]


PROMISED = {"vision": {"v100": 3}, "nlp": {"v100": 2, "k80": 1}}


def test_virtual_clusters_own_what_the_nodes_have(tmp_path: Path) -> None:
    config = a_config(tmp_path).model_copy(update={"virtual_clusters": PROMISED})
    found = [*check_partitions.check(site(partitions={"gandiva": SOUND}), (a_node("n1"),), config)]
    assert [finding.what for finding in found] == [
        "vision 3 + nlp 2 GPUs of type v100 are promised, the nodes have 4",
        "no node has GPUs of type k80 (nlp 1); known types: v100",
    ]
    assert {finding.where for finding in found} == {"gandiva.yaml: virtual_clusters"}


def test_virtual_clusters_are_known_to_the_submission_filter(tmp_path: Path) -> None:
    config = a_config(tmp_path).model_copy(update={"virtual_clusters": PROMISED})
    script = tmp_path / "job_submit.lua"
    script.write_text('gandiva.configure { vcs = {"nlp"} } -- vcs = {"vision"}')
    finding = only(faults(config, tmp_path))
    assert finding.what.startswith("it does not know virtual cluster vision") and finding.level == ERROR
    assert finding.cure == 'add to configure: vcs = {"vision", "nlp"}'
    script.write_text("gandiva.configure { vcs = {'nlp', \"vision\"} }")
    assert faults(config, tmp_path) == []


def test_a_sound_file_has_no_fault(tmp_path: Path) -> None:
    assert faults(a_config(tmp_path), tmp_path) == []


def test_a_host_nobody_knows(tmp_path: Path) -> None:
    finding = only(faults(a_config(tmp_path, host="no-such-host.invalid"), tmp_path))
    assert finding.level == ERROR and finding.where == "gandiva.yaml: controller.host"


def test_a_user_nobody_knows(tmp_path: Path) -> None:
    finding = only(faults(a_config(tmp_path, slurm_user="nobody-here"), tmp_path, "nobody-here"))
    assert "no user nobody-here" in finding.what


@pytest.mark.parametrize(
    ("script", "is_trusted"),
    [
        ("gandiva.configure {{ partitions = {{'g'}}, admin_uids = {{ {uid} }} }}", True),
        ("gandiva.configure {{ slurm_uid = {uid} }}", True),
        ("gandiva.configure {{ partitions = {{'g'}} }} -- admin_uids = {{ {uid} }}", False),
        ("gandiva.configure {{ admin_uids = {{ 12345678 }} }}", False),
    ],
)
def test_an_operator_that_job_submit_does_not_trust(tmp_path: Path, script: str, is_trusted: bool) -> None:
    (tmp_path / "job_submit.lua").write_text(script.format(uid=os.getuid()))
    found = faults(a_config(tmp_path), tmp_path, slurm_user="another")
    assert [finding.cure for finding in found] == (
        [] if is_trusted else [f"add to configure: admin_uids = {{{os.getuid()}}}"]
    )


def test_a_state_directory_that_is_not_its_owners(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "no directory" in only(faults(a_config(tmp_path, state_dir=str(file)), tmp_path)).what
    tmp_path.chmod(0o777)
    assert "everybody may write" in only(faults(a_config(tmp_path), tmp_path)).what
    assert faults(a_config(tmp_path, state_dir="/nowhere/yet"), tmp_path) == []


def test_deadlines_that_contradict_each_other(tmp_path: Path) -> None:
    assert "three cycles" in only(faults(a_config(tmp_path, silent_after_s=1.0, cycle_s=1.0), tmp_path)).what
    config = a_config(tmp_path, node={"park_deadline_s": 60.0, "max_park_s": 30.0})
    assert "longer than the longest park" in only(faults(config, tmp_path)).what
