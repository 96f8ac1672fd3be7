"""One job through Gandiva's job_submit module, under the Lua that Slurm embeds: what it said and changed."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LUA = shutil.which("lua5.1")
#: Stands in for slurmctld.
HOST = Path(__file__).parent / "unit/job_submit_host.lua"


@dataclass
class Outcome:
    """What the module returned, said and changed."""

    rc: int = -99
    user: str = ""
    log: str = ""
    changes: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """The record at the end of AdminComment."""
        comment = self.changes["admin_comment"]
        value: dict[str, Any] = json.loads(comment[comment.rindex("gandiva:{") + len("gandiva:"):])
        return value


def lua(value: object) -> str:
    """Write a value as Lua source."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{lua(key)}] = {lua(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    if isinstance(value, str):
        return '"' + "".join(f"\\{byte:03d}" for byte in value.encode()) + '"'
    return str(value).lower()


def read(output: str) -> Outcome:
    """Read what the stand-in printed."""
    outcome = Outcome()
    for line in output.splitlines():
        kind, _, text = line.partition(" ")
        name, _, value = text.partition("=")
        if kind == "rc":
            outcome.rc = int(text)
        elif kind in ("user", "log"):
            setattr(outcome, kind, text)
        elif kind in ("set", "environment"):
            (outcome.changes if kind == "set" else outcome.environment)[name] = value
    return outcome


def run_module(module: Path, case: dict[str, Any], path: Path) -> Outcome:
    """Write the case to `path` and run the module on it."""
    path.write_text("return " + lua(case))
    words = [str(LUA), str(HOST), str(module), str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, errors="replace")
    assert done.returncode == 0, done.stderr
    return read(done.stdout)
