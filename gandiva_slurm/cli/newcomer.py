"""What a job asks for that is not submitted yet: read from sbatch's words and its script's #SBATCH lines."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gandiva_slurm.model.errors import UsageError

#: A script is not read further.
_MOST_BYTES = 1 << 20
#: Slurm's ways to write a time limit: by how many colons, and whether days stand before.
_UNITS = {
    (False, 0): (60,), (False, 1): (60, 1), (False, 2): (3600, 60, 1),
    (True, 0): (3600,), (True, 1): (3600, 60), (True, 2): (3600, 60, 1),
}  # fmt: skip


class _Words(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def newcomer_of(words: Sequence[str], script: str = "") -> str:
    """Return it as --new of `gandiva when` takes it; UsageError: it cannot be read here."""
    told = _options().parse_known_args([*_sbatch_lines(script), *words])[0]
    # an elastic job of one node or two begins on one
    nodes = _number("1" if told.nodes == "1-2" else told.nodes or "1", "--nodes")
    kind, per_node = _per_node(told, nodes)
    parts = [f"gpus={per_node * nodes}", f"nodes={nodes}"]
    parts += [f"type={kind}"] if kind else []
    parts += [f"limit={limit_s(told.time)}"] if told.time is not None else []
    return ",".join(parts)


def _per_node(told: argparse.Namespace, nodes: int) -> tuple[str, int]:
    """The GPU type it names, and its GPUs on each node."""
    if told.gres is not None:
        return _gpus(told.gres.removeprefix("gres:").removeprefix("gpu").lstrip(":") or "1", "--gres")
    if told.gpus_per_node is not None:
        return _gpus(told.gpus_per_node, "--gpus-per-node")
    if told.gpus is not None:
        kind, gpus = _gpus(told.gpus, "--gpus")
        return kind, max(1, gpus // nodes)
    if told.gpus_per_task is None:
        return "", 1
    kind, each = _gpus(told.gpus_per_task, "--gpus-per-task")
    here = _number(told.ntasks_per_node or "0", "--ntasks-per-node")
    return kind, each * (here or max(1, _number(told.ntasks or "0", "--ntasks") // nodes))


def limit_s(text: str) -> int:
    """Return a time limit of Slurm's in seconds: minutes, 1:30:00, 2-12, …; UsageError: it is none."""
    match = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,8}(?::\d{1,5}){0,2})", text, re.ASCII)
    if match is None:
        raise UsageError(f"--time: got {text[:40]!r}")
    numbers = [int(part) for part in match[2].split(":")]
    units = _UNITS[match[1] is not None, len(numbers) - 1]
    return int(match[1] or 0) * 86400 + sum(a * b for a, b in zip(numbers, units, strict=True))


def _options() -> argparse.ArgumentParser:
    words = _Words(add_help=False, allow_abbrev=False)
    for names in (("-N", "--nodes"), ("-n", "--ntasks"), ("-t", "--time"), ("-G", "--gpus"), ("--gres",),
                  ("--gpus-per-node",), ("--gpus-per-task",), ("--ntasks-per-node",)):  # fmt: skip
        words.add_argument(*names)
    return words


def _sbatch_lines(script: str) -> list[str]:
    """The words of its #SBATCH lines, none behind the first command."""
    try:
        with Path(script).open("rb") as file:
            lines = file.read(_MOST_BYTES).decode(errors="replace").splitlines() if script else []
        found = []
        for line in lines:
            if line.startswith("#SBATCH"):
                found += shlex.split(line.removeprefix("#SBATCH"), comments=True)
            elif line.strip() and not line.lstrip().startswith("#"):
                break
        return found
    except (OSError, ValueError):
        return []


def _gpus(text: str, option: str) -> tuple[str, int]:
    kind, _, count = text.rpartition(":")
    if not count.isdecimal():
        kind, count = text, "1"
    return kind, _number(count, option)


def _number(text: str, option: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise UsageError(f"{option}: got {text[:40]!r}")
    return int(text)
