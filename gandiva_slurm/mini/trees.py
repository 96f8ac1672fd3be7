"""What the users of a mini cluster must read, Python's trees and this clone, and what in them is closed."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from gandiva_slurm.mini import layout

#: Directories of the distribution itself: readable as they are, and not ours to remount.
SYSTEM_TREES = (Path("/"), Path("/usr"), Path("/usr/local"))
#: Never opened to the users inside: nothing of it is needed there.
KEPT_CLOSED = {".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def python_trees() -> tuple[list[Path], list[Path]]:
    """What the users inside must read (interpreter, packages, clone), and other names it is known by."""
    named = [Path(sys.prefix), Path(sys.base_prefix), layout.CLONE]
    named += [Path(entry) for entry in sys.path if entry.endswith("-packages") and Path(entry).is_dir()]
    real = [path.resolve() for path in named] + [Path(sys.executable).resolve().parent.parent]
    trees: list[Path] = []
    for path in sorted(set(real), key=lambda p: len(p.parts)):
        if not any(path.is_relative_to(tree) for tree in trees):
            trees.append(path)
    others = {path.absolute() for path in named} - set(real)
    return [tree for tree in trees if tree not in SYSTEM_TREES], sorted(others)


def to_open(tree: Path) -> list[tuple[str, int]]:
    """(path below the tree, mode) of every entry that others must be able to read and cannot."""
    found: list[tuple[str, int]] = []
    pending = [""]
    _note(found, tree, ".")
    while pending:
        below = pending.pop()
        try:
            with os.scandir(tree / below) as entries:
                inside = [it for it in entries if not it.is_symlink() and it.name not in KEPT_CLOSED]
        except FileNotFoundError:
            continue
        for entry in inside:
            name = os.path.join(below, entry.name)
            _note(found, entry, name)
            if entry.is_dir():
                pending.append(name)
    return found


def _note(found: list[tuple[str, int]], entry: os.DirEntry[str] | Path, name: str) -> None:
    try:
        mode = entry.stat().st_mode
    except FileNotFoundError:  # a compiler's temporary file, say, which has its own name now
        return
    runs = stat.S_ISDIR(mode) or mode & stat.S_IXUSR
    want = mode | stat.S_IROTH | (stat.S_IXOTH if runs else 0)
    if want != mode and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        found.append((name, stat.S_IMODE(want)))
