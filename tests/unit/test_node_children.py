"""What gandivad starts as processes of its own: they are small, and there within a moment."""

import subprocess
import sys

import pytest

#: Of the daemon's settings and its doors: 120 ms of a processor, and 12 MB that a guard would hold for good.
LARGE = ("pydantic", "yaml", "aiohttp")


@pytest.mark.parametrize("name", ["guard", "imaging", "restoring", "put_files", "image_probe"])
def test_it_imports_nothing_of_the_daemons_settings(name: str) -> None:
    code = f"import sys, gandiva_slurm.node.{name}; print(*sorted(set({LARGE}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert not done.stdout.strip()
