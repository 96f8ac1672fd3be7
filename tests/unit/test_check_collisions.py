"""`gandiva check` on what else a site runs on its GPUs: jobstats, DCGM, MPS, shards, MIG, job containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.config import Config
from gandiva_slurm.slurm import check_collisions
from gandiva_slurm.slurm.check_collisions import scripts
from gandiva_slurm.slurm.finding import ERROR, WARNING, Finding
from tests.unit.test_slurm_check import CONFIG, only, site

JOBSTATS = "#!/bin/bash\nfor i in ${GPUS//,/ }; do echo $SLURM_JOB_ID $UID > /run/gpustat/$i; done\n"
DCGM = "#!/bin/bash\nDCGM_HPC_JOB_MAPPING_DIR=/run/dcgm\necho $SLURM_JOB_ID > $DCGM_HPC_JOB_MAPPING_DIR/0\n"


def found(directory: Path, config: dict[str, str] | None = None, **node: Any) -> list[Finding]:
    told = CONFIG.model_dump() | {"node": CONFIG.node.model_dump() | node}
    return [*check_collisions.check(site(config), Config.model_validate(told), directory)]


@pytest.mark.parametrize(("text", "key"), [(JOBSTATS, "gpustat_dir"), (DCGM, "dcgm_mapping_dir")])
def test_a_prolog_that_says_which_job_has_a_gpu(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "prolog.d/50-gpu"
    path.parent.mkdir()
    path.write_text(text)
    config = {"Prolog[0]": f"{tmp_path}/prolog.d/*", "Epilog": "(null)"}
    finding = only(found(tmp_path, config))
    assert (finding.level, finding.where) == (WARNING, str(path)) and f"set node.{key}" in finding.cure
    both = only(found(tmp_path, config, **{key: "/run/gandiva/gpus"}))
    assert f"what gandivad writes, too (node.{key})" in both.what


def test_comments_and_other_scripts_are_no_fault(tmp_path: Path) -> None:
    (tmp_path / "prolog").write_text("#!/bin/bash\n# echo > /run/gpustat/0\nmkdir /scratch/$SLURM_JOB_ID\n")
    assert found(tmp_path, {"Prolog": str(tmp_path / "prolog"), "TaskProlog": str(tmp_path / "away")}) == []


def test_no_script_is_read_twice_nor_one_that_never_ends(tmp_path: Path) -> None:
    (tmp_path / "both").write_text(JOBSTATS)
    both = str(tmp_path / "both")
    told = site({"Prolog": f"{both},{both}", "Epilog": both, "TaskProlog": "/dev/zero"})
    assert scripts(told) == [Path(both)]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("NodeName=n[1-2] Name=mps Count=100", "Name=mps"),
        ("Name=shard Count=8", "Name=shard"),
        ("nodename=n1 name=gpu type=a100 MULTIPLEFILES=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21", "of MIG"),
    ],
)
def test_other_ways_to_share_a_gpu_on_our_nodes(tmp_path: Path, line: str, what: str) -> None:
    (tmp_path / "gres.conf").write_text(f"# Name=mps\n{line}\n")
    finding = only(found(tmp_path))
    assert finding.level == ERROR and what in finding.what and finding.where.endswith("gres.conf:2")


@pytest.mark.parametrize(
    "line", ["NodeName=p1 Name=mps Count=100", "NodeName=n[1 Name=mps", "", "NodeName=n1 Name=gpu"]
)
def test_those_of_other_nodes_are_theirs(tmp_path: Path, line: str) -> None:
    (tmp_path / "gres.conf").write_text(f"{line}\n")
    assert found(tmp_path) == []


def test_a_socket_that_no_job_sees(tmp_path: Path) -> None:
    kind = {"JobContainerType": "job_container/tmpfs"}
    hidden = {"socket": "/tmp/gandiva/gandivad.sock"}
    assert found(tmp_path, kind) == [] and found(tmp_path, None, **hidden) == []
    finding = only(found(tmp_path, kind, **hidden))
    assert finding.level == ERROR and "lies in /tmp" in finding.what
    (tmp_path / "job_container.conf").write_text("AutoBasePath=true\nDirs=/var/tmp,/scratch # Dirs=/tmp\n")
    assert found(tmp_path, kind, **hidden) == []
    assert "lies in /scratch" in only(found(tmp_path, kind, socket="/scratch/g.sock")).what
