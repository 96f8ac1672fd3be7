"""tests/gpu/slurm.sh: Slurm of this machine packed, and unpacked into a directory as into a bare machine."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.slow import slow

REPO = Path(__file__).resolve().parents[2]
SCRIPT = "tests/gpu/slurm.sh"
ARCHIVE = REPO / ".wheels/slurm.tar.gz"
#: What a device machine takes of ignored files, all together.
MOST_BYTES = 60 << 20
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "sbatch", "squeue", "ip", "make")
NO_SLURM = "Slurm's packages are not here"
#: The target has its own, newer.
LIBC = re.compile(r"(ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libutil|libanl)[-.].*")


def run(*words, clone=REPO):
    return subprocess.run([clone / SCRIPT, *words], cwd=clone, capture_output=True, text=True, timeout=280)


def test_what_is_no_word_of_it_is_refused():
    done = run("send")
    assert (done.returncode, done.stderr) == (2, f"usage: {SCRIPT} pack | unpack [ROOT]\n")


def test_without_an_archive_the_next_step_is_said(tmp_path):
    """From a clone in which nothing was packed."""
    (tmp_path / "tests/gpu").mkdir(parents=True)
    shutil.copy(REPO / SCRIPT, tmp_path / SCRIPT)
    done = run("unpack", str(tmp_path / "root"), clone=tmp_path)
    assert done.returncode == 1 and "next: tests/gpu/slurm.sh pack" in done.stderr


@slow("a minute: it reads what all of Slurm's programs are linked with")
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("slurmctld", path="/usr/sbin") is None, reason=NO_SLURM)
def test_a_bare_machine_has_all_that_slurm_is_linked_with(tmp_path):
    done = run("pack")
    assert done.returncode == 0, done.stderr
    assert ARCHIVE.stat().st_size < MOST_BYTES
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/munge").write_text("of this machine")
    done = run("unpack", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "etc/munge").read_text() == "of this machine", "what is there stays"
    assert (tmp_path / "lib").is_symlink() and (tmp_path / "opt/gandiva/spank/gandiva.so").exists()
    libraries = {path.name for path in (tmp_path / "usr/lib").rglob("*.so*")}
    for name in PROGRAMS:
        places = [tmp_path / "usr" / directory / name for directory in ("sbin", "bin")]
        path = next(place for place in places if place.exists() or place.is_symlink())
        inside = tmp_path / os.path.realpath(f"/{path.relative_to(tmp_path)}").lstrip("/")
        told = subprocess.run(["ldd", inside], capture_output=True, text=True, check=True).stdout
        needed = {Path(line.split()[0]).name for line in told.splitlines() if "vdso" not in line}
        missing = {one for one in needed - libraries if not LIBC.fullmatch(one)}
        assert not missing, (name, missing)

