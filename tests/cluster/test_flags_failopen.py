"""Whatever is wrong with our plugin or our Lua, ordinary jobs go on as without us."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.layout import CLONE
from tests.cluster.held import HeldCluster, held_cluster

PLUGSTACK = "/etc/slurm/plugstack.conf.d/gandiva.conf"
MODULE = "/etc/slurm/gandiva_job_submit.lua"
SCRIPT = "/etc/slurm/job_submit.lua"
Keep = Callable[[str], Path]
GANDIVA = ("-p", "gandiva", "--gres=gpu:1")


@pytest.fixture(scope="module")
def slurm(slurm_here: None) -> Iterator[HeldCluster]:
    with held_cluster("open") as cluster:
        yield cluster


@pytest.fixture
def keep(slurm: HeldCluster) -> Iterator[Callable[[str], Path]]:
    """keep(path): the file as this host sees it; put back after the test."""
    kept: list[tuple[Path, str]] = []

    def take(inside: str) -> Path:
        path = slurm.cluster.path(inside)
        kept.append((path, path.read_text()))
        return path

    yield take
    stamp_s = slurm.cluster.path(SCRIPT).stat().st_mtime
    for path, text in kept:
        path.write_text(text)
    os.utime(slurm.cluster.path(SCRIPT), (stamp_s, stamp_s))
    read_again(slurm.cluster.path(SCRIPT))


def read_again(path: Path) -> None:
    """Slurm reads its script again when it is newer, in whole seconds, than its last one and last reading."""
    stamp_s = max(int(time.time()), int(path.stat().st_mtime)) + 2
    os.utime(path, (stamp_s, stamp_s))


def of_another_slurm(into: Path) -> Path:
    """The plugin as if built for Slurm 21.08."""
    shutil.copytree(CLONE / "spank", into / "spank", ignore=shutil.ignore_patterns("*.so", "*.new"))
    source = into / "spank/gandiva.c"
    include = "#include <slurm/spank.h>\n"
    other = "#undef SLURM_VERSION_NUMBER\n#define SLURM_VERSION_NUMBER SLURM_VERSION_NUM(21, 8, 0)\n"
    source.write_text(source.read_text().replace(include, include + other))
    subprocess.run(["make", "-s", "-C", str(into / "spank")], check=True, timeout=120)
    return into / "spank/gandiva.so"


def text_file(into: Path) -> Path:
    """No library at all."""
    path = into / "gandiva.so"
    path.write_text("this is no library\n")
    return path


def nothing(into: Path) -> Path:
    """A path where no file is."""
    return into / "missing.so"


@pytest.mark.parametrize("make", [of_another_slurm, text_file, nothing])
def test_without_a_usable_plugin_ordinary_jobs_run(
    slurm: HeldCluster, keep: Keep, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    made = make(tmp_path)
    inside = slurm.cluster.path("lib/broken.so")
    inside.unlink(missing_ok=True)
    if made.exists():
        shutil.copy(made, inside)
    conf = keep(PLUGSTACK)
    conf.write_text(f"optional {slurm.cluster.at.root}/lib/broken.so socket=/run/gandiva/%n.sock\n")
    assert slurm.run_plain(script="echo done") == "done\n"
    before = slurm.jobs()
    flagged = slurm.sbatch(*GANDIVA, "--gandiva-tickets=5")
    assert flagged.returncode != 0
    assert "unrecognized option '--gandiva-tickets=5'" in flagged.stderr
    assert slurm.jobs() == before
    by_partition = slurm.submit(*GANDIVA)
    assert slurm.options(by_partition) is not None


def test_a_wrong_plugstack_line_is_told_and_costs_nothing(slurm: HeldCluster, keep: Keep) -> None:
    conf = keep(PLUGSTACK)
    conf.write_text(conf.read_text().replace("socket=", "scoket="))
    done = slurm.sbatch("-p", "plain")
    assert done.returncode == 0
    assert done.stderr.startswith('sbatch: error: gandiva: plugstack.conf: cannot take "scoket=')
    slurm.wait_state(int(done.stdout), "COMPLETED")


@pytest.mark.parametrize("fault", ["this is no Lua\n", "error('on purpose')\n"])
def test_with_a_broken_module_ordinary_jobs_pass(
    slurm: HeldCluster, keep: Keep, fault: str
) -> None:
    keep(MODULE).write_text(fault)
    read_again(keep(SCRIPT))
    assert slurm.run_plain(script="echo done") == "done\n"
    before = slurm.jobs()
    done = slurm.sbatch(*GANDIVA)
    assert done.returncode != 0
    assert "gandiva: its job_submit module does not load" in done.stderr.splitlines()[0]
    assert slurm.jobs() == before


def test_a_mistake_in_our_checks_refuses_our_jobs_only(slurm: HeldCluster, keep: Keep) -> None:
    module = keep("/etc/slurm/gandiva_gpus.lua")
    whole = module.read_text()
    module.write_text(whole.replace("local tasks, per_node = ", "local tasks, per_node = nil + "))
    assert module.read_text() != whole
    read_again(keep(SCRIPT))
    before = slurm.jobs()
    done = slurm.sbatch(*GANDIVA)
    assert done.returncode != 0
    assert done.stderr.startswith("sbatch: error: gandiva: job_submit failed on this job: ")
    assert slurm.jobs() == before
    assert slurm.run_plain(script="echo done") == "done\n"
