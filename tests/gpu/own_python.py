"""An interpreter with this clone and its commands, where nothing can be installed: for a mini cluster.

    python -m tests.gpu.own_python DIRECTORY PATH...    # prints the interpreter

It sees the packages of the Python that runs this, the clone, and each PATH. Needs no pip and no network.
"""

from __future__ import annotations

import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make(directory: Path, paths: list[str]) -> Path:
    """Make it; return the interpreter."""
    venv.create(directory, system_site_packages=True, with_pip=False, clear=True)
    (site,) = (directory / "lib").glob("python*/site-packages")
    # This Python may be an environment itself: its packages are none of the system's.
    seen = [ROOT, *paths, sysconfig.get_path("purelib")]
    (site / "gandiva.pth").write_text("".join(f"{path}\n" for path in seen))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = site / f"gandiva_slurm-{project['version']}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: gandiva-slurm\nVersion: {project['version']}\n"
    )
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    lines = []
    for name, group in groups.items():
        lines += [f"[{name}]", *(f"{key} = {value}" for key, value in group.items())]
    (told / "entry_points.txt").write_text("\n".join(lines) + "\n")
    python = directory / "bin/python"
    for name, where in project["scripts"].items():
        module, _, call = where.partition(":")
        script = directory / "bin" / name
        script.write_text(f"#!{python}\nimport sys\nfrom {module} import {call}\nsys.exit({call}())\n")
        script.chmod(0o755)
    return python


if __name__ == "__main__":
    print(make(Path(sys.argv[1]).absolute(), [str(Path(path).absolute()) for path in sys.argv[2:]]))
