"""Where `gandiva mini exec` starts, and what it says of files that the cluster inside does not see."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from gandiva_slurm.mini import shares
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.model.errors import GandivaError

#: Slurm's commands that read a script or start a program of the user's.
JOB_COMMANDS = ("sbatch", "srun", "salloc")
_BETWEEN_WORDS = re.compile(r"""[\s"'=;|&<>()]+""")


def start_words(cluster: MiniCluster, command: Sequence[str], user: str) -> str:
    """The shell's words before a command: into the caller's directory, where that is shown inside and the
    user may write there; else home, which job commands are told."""
    here = _here()
    if here is None or not _is_same(cluster, here):
        return "cd && "
    told = ""
    if _is_job(command) and any(here.is_relative_to(share) for share in cluster.spec.shares):
        told = "echo " + shlex.quote(
            f"gandiva: {user} may not write in {here}, so {command[0]} starts in the home of {user}; "
            f"next: name files by their whole paths, or chmod o+w {here}") + " >&2; "
    return f"cd {shlex.quote(str(here))} 2>/dev/null && [ -w . ] || {{ {told}cd; }} && "


def hidden_files(cluster: MiniCluster, command: Sequence[str], user: str) -> list[str]:
    """A sentence for each file of this machine that a job command names and the cluster does not see."""
    if not _is_job(command):
        return []
    here, home = _here() or Path("/"), Path(cluster.environment(user)["HOME"])
    is_shown = _is_same(cluster, here)
    named = dict.fromkeys(part for word in command[1:] for part in _BETWEEN_WORDS.split(word) if part)
    told = []
    for part in named:
        file, inside = here / part, (here if is_shown else home) / part
        if file.is_file() and not os.path.lexists(cluster.path(str(inside))):
            told.append(f"{file} is on this machine and not inside the mini cluster {cluster.spec.name!r}; "
                        f"next: {_cure(file.parent, cluster.spec.backend)}")
    return told


def _cure(folder: Path, backend: str) -> str:
    again = "gandiva mini down, then gandiva mini up --share"
    try:
        return f"{again} {shares.look(str(folder), str(folder), backend).path}"
    except GandivaError:
        return f"move it to a directory of its own that everybody may read, then {again} that directory"


def _is_job(command: Sequence[str]) -> bool:
    return Path(command[0]).name in JOB_COMMANDS


def _here() -> Path | None:
    try:
        return Path.cwd()
    except OSError:
        return None


def _is_same(cluster: MiniCluster, folder: Path) -> bool:
    """True when this directory is the very same inside; the cluster's own /tmp is not this machine's."""
    try:
        return os.path.samefile(folder, cluster.path(str(folder)))
    except OSError:
        return False
