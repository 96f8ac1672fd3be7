"""`make setup` where packages are missing, container/build-plugin.sh and build-spill.sh."""

import os
import shutil
import subprocess
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(clone: Path, target: str, packages: int, plugin: int, spill: int = 0) -> tuple[int, str]:
    """Make a target with scripts that end with these statuses; make's own, and what ran."""
    (clone / "container").mkdir()
    shutil.copy(ROOT / "Makefile", clone)
    (clone / "container/install-packages.sh").write_text(f"echo packages; exit {packages}\n")
    (clone / "container/install-python.py").write_text("import sys; print('python', *sys.argv[1:])\n")
    (clone / "container/build-plugin.sh").write_text(f"echo plugin; exit {plugin}\n")
    (clone / "container/build-spill.sh").write_text(f"echo spill; exit {spill}\n")
    gandiva = clone / ".venv/bin/gandiva"
    gandiva.parent.mkdir(parents=True)
    gandiva.write_text("#!/bin/sh\necho the demonstration\n")
    gandiva.chmod(0o755)
    kept = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "TORCH")
    }
    made = subprocess.run(
        ["make", "-s", target],
        cwd=clone,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=60,
    )
    return made.returncode, made.stdout


def test_an_ordinary_user_without_the_packages_gets_the_environment(tmp_path: Path) -> None:
    code, out = make(tmp_path, "setup", packages=3, plugin=3, spill=3)
    assert code == 0
    assert out.splitlines() == [
        "packages",
        "python --venv .venv --torch-index  --torch  --extras dev",
        "plugin",
        "spill",
    ]


@pytest.mark.parametrize(("packages", "plugin"), [(3, 0), (0, 3), (3, 3)])
def test_the_demonstration_stops_where_packages_are_missing(
    tmp_path: Path, packages: int, plugin: int
) -> None:
    code, out = make(tmp_path, "demo", packages, plugin)
    assert code != 0
    assert "the demonstration" not in out


@pytest.mark.parametrize(("packages", "plugin"), [(1, 0), (130, 0), (0, 2)])
def test_what_failed_stops_setup(tmp_path: Path, packages: int, plugin: int) -> None:
    assert make(tmp_path, "setup", packages, plugin)[0] != 0


def test_a_spill_library_that_does_not_compile_stops_setup(tmp_path: Path) -> None:
    assert make(tmp_path, "setup", 0, 0, spill=1)[0] != 0


def build(clone: Path, what: str = "plugin", **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(clone / f"container/build-{what}.sh")]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def plugin_clone(tmp_path: Path) -> Path:
    """A clone with the script and a plugin of one line."""
    for name in ("container", "spank"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "container/build-plugin.sh", tmp_path / "container")
    (tmp_path / "spank/Makefile").write_text("gandiva.so: gandiva.c\n\tcp gandiva.c gandiva.so\n")
    (tmp_path / "spank/gandiva.c").touch()
    return tmp_path


def test_the_plugin_is_built_once_and_its_time_told(plugin_clone: Path) -> None:
    fake = plugin_clone / "cc"  # finds every header
    fake.write_text("#!/bin/sh\ncat >/dev/null\n")
    fake.chmod(0o755)
    first = build(plugin_clone, CC=str(fake))
    assert first.returncode == 0
    told = first.stdout.splitlines()
    assert told[0] == "== plugin: building spank/gandiva.so" and told[-1].startswith("   plugin: ")
    assert (plugin_clone / "spank/gandiva.so").exists()
    second = build(plugin_clone, CC=str(fake))
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")


@pytest.mark.parametrize("lacks", ["compiler", "header"])
def test_a_plugin_that_cannot_be_built_has_its_reason(plugin_clone: Path, lacks: str) -> None:
    fake = plugin_clone / "cc"
    if lacks == "header":
        fake.write_text("#!/bin/sh\nexit 1\n")
        fake.chmod(0o755)
    done = build(plugin_clone, CC=str(fake))
    assert done.returncode == 3
    wanted = "slurm/spank.h" if lacks == "header" else f"{fake} slurm/spank.h"
    assert f"spank/gandiva.so is not built, for these are missing: {wanted}\n" in done.stderr
    assert "gandiva: next: as root, apt-get install gcc" in done.stderr


@pytest.fixture
def spill_clone(tmp_path: Path) -> Path:
    """A clone with the script, the module and its C file."""
    client = tmp_path / "gandiva_slurm/client"
    client.mkdir(parents=True)
    (tmp_path / "container").mkdir()
    shutil.copy(ROOT / "container/build-spill.sh", tmp_path / "container")
    for name in ("spill.c", "spill.py"):
        shutil.copy(ROOT / "gandiva_slurm/client" / name, client)
    return tmp_path


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler (make setup installs one)")
def test_the_spill_library_is_built_once_and_hides_no_module(spill_clone: Path) -> None:
    """Python takes an extension module before a .py file: spill.so was imported in spill.py's place."""
    client = spill_clone / "gandiva_slurm/client"
    (client / "spill.so").write_text("of an earlier build")
    first = build(spill_clone, "spill")
    assert first.returncode == 0 and first.stdout.startswith("== spill: building"), first.stderr
    assert (client / "libspill.so").exists()
    found = PathFinder.find_spec("spill", [str(client)])
    assert found is not None and found.origin == str(client / "spill.py")
    second = build(spill_clone, "spill")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")


def test_without_a_compiler_the_spill_library_has_its_reason(spill_clone: Path) -> None:
    done = build(spill_clone, "spill", CC=str(spill_clone / "cc"))
    assert done.returncode == 3
    assert f"libspill.so is not built, for {spill_clone / 'cc'} is missing\n" in done.stderr
    assert "gandiva: next: as root, apt-get install gcc" in done.stderr
