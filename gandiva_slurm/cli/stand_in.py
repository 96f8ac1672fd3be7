"""Stands in for Slurm's commands where a script is tried: a requeue is noted, srun's tasks run here.

A program of its own, of the standard library alone, run by the wrappers that `make` puts first into a PATH.
Nothing of it asks Slurm: on a login node a trial starts no job, and requeues none.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

COMMANDS = ("scontrol", "srun", "sbatch")
#: Above Slurm's largest (MaxJobId is 67,043,328 unless told): what asks Slurm itself finds no such job.
JOB_ID = 67_108_863
#: srun's options that take no value, or take one behind "=" only (srun 22.05 to 26.05).
_BARE_LETTERS = frozenset("EHIKOQXZklsuv")
_BARE = re.compile(
    "contiguous|disable-status|exact|exclusive|hold|immediate|kill-on-bad-exit|label|no-allocate|no-kill|"
    "overcommit|overlap|oversubscribe|preserve-env|propagate|pty|quiet|reboot|spread-job|unbuffered|"
    "use-min-nodes|verbose|wait-all-nodes|whole"
)


def make(path: Path, notes: Path) -> Path:
    """Put the wrappers into `path`; what they are called for is noted in `notes`, a line a call."""
    path.mkdir()
    for name in COMMANDS:
        words = (sys.executable, "-IS", __file__, str(notes), name)
        wrapper = path / name
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        wrapper.chmod(0o755)
    return path


def main(notes: str, name: str, args: Sequence[str]) -> int:
    """Do what the command is asked, as far as a trial has it; return its exit code."""
    if name == "srun":
        return _srun(notes, args)
    if name == "sbatch":
        _note(notes, "sbatch")
        print(f"Submitted batch job {JOB_ID - 1}")
        return 0
    if args and args[0] in ("requeue", "requeuehold"):
        _note(notes, "requeue")
        return 0
    if list(args[:2]) in (["show", "hostnames"], ["show", "hostname"]):
        print(socket.gethostname())
        return 0
    return _complain(f"scontrol {' '.join(args[:2])}: not in a trial, where there is no Slurm")


def _srun(notes: str, args: Sequence[str]) -> int:
    count, command = read_srun(args, int(os.environ.get("SLURM_NTASKS") or 1))
    if not command:
        return _complain("srun: no program is named, or one a rank (--multi-prog), which no trial has")
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(count), "SLURM_NTASKS": str(count)}
    tasks = []
    for rank in map(str, range(count)):
        env = {**os.environ, **step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": "0"}
        try:
            tasks.append(subprocess.Popen(command, env=env))
        except OSError as err:
            return _complain(f"srun: {command[0]}: {err.strerror}")
        _note(notes, f"task {tasks[-1].pid}")
    # A task that a signal ended is 128 and the signal's number, as srun has it.
    return max(code if code >= 0 else 128 - code for code in (task.wait() for task in tasks))


def read_srun(args: Sequence[str], count: int) -> tuple[int, list[str]]:
    """Return how many tasks an srun starts, and of which program; `count` where it does not say."""
    words = list(args)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word == "--multi-prog":
            return count, []
        name, value = _split(word)
        if value is None and name not in _BARE_LETTERS and not _BARE.fullmatch(name):
            value = words.pop(0) if words else ""
        if name in ("n", "ntasks") and (value or "").isdecimal():
            count = max(1, int(value or ""))
    return count, words


def _split(word: str) -> tuple[str, str | None]:
    """Take an option apart: its name, and the value in the same word; None where it has none there."""
    if word.startswith("--"):
        name, is_there, value = word[2:].partition("=")
        return name, value if is_there else None
    letters = word[1:]
    while len(letters) > 1 and letters[0] in _BARE_LETTERS:
        letters = letters[1:]
    return letters[0], letters[1:] or None


def _note(notes: str, line: str) -> None:
    with open(notes, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def _complain(sentence: str) -> int:
    print(f"gandiva try: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
