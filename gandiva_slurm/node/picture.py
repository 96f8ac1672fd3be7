"""What an image needs of the node it is restored on: mapped files of the same builds, and the same CPU.

A program goes on in the middle of its libraries: another build of one, or a processor that lacks an
instruction it has chosen, ends it without a word. Both are compared before anything is restored.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path

from gandiva_slurm.node.carried import is_own, may_be_carried

#: Files without a build id are compared by their bytes up to this size, larger ones by their size alone.
MOST_HASHED = 16 << 20
_NOTE, _PT_NOTE, _BUILD_ID = struct.Struct("<3I"), 4, 3


def build_id(path: str | Path) -> str:
    """Return what tells one build of a file from another; OSError when it cannot be read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(64)
        is_elf = head[:6] == b"\x7fELF\x02\x01" and len(head) == 64
        found = _elf_build_id(head, file.fileno()) if is_elf else ""
        if found:
            return f"build {found}"
        if size > MOST_HASHED:
            return f"size {size}"
        file.seek(0)
        return f"bytes {hashlib.file_digest(file, 'blake2b').hexdigest()[:32]}"


def _elf_build_id(head: bytes, fd: int) -> str:
    """Read the note NT_GNU_BUILD_ID of a 64-bit little-endian ELF file (elf(5)); "" where there is none."""
    (start,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<2H", head, 54)
    end = os.fstat(fd).st_size
    for number in range(min(count, 128)):
        row = os.pread(fd, 56, start + number * size) if start < end else b""
        if len(row) < 56 or struct.unpack_from("<I", row)[0] != _PT_NOTE:
            continue
        offset, length = struct.unpack_from("<Q", row, 8)[0], struct.unpack_from("<Q", row, 32)[0]
        data, at = os.pread(fd, min(length, 1 << 16), offset) if offset < end else b"", 0
        while at + _NOTE.size <= len(data):
            name_size, text_size, kind = _NOTE.unpack_from(data, at)
            text_at = at + _NOTE.size + (name_size + 3 & ~3)
            if kind == _BUILD_ID and data[at + 12 : at + 16] == b"GNU\0":
                return data[text_at : text_at + text_size].hex()
            at = text_at + (text_size + 3 & ~3)
    return ""


def mapped_files(maps: str) -> set[str]:
    """Return the files that a text of /proc/PID/maps names, without those that are deleted or no files."""
    found = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    return {path for path in found if path.startswith("/") and not path.endswith(" (deleted)")}


def cpu_flags(cpuinfo: str) -> set[str]:
    """Return the instructions that the first processor of a text of /proc/cpuinfo has."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return set(match[1].split()) if match else set()


def take(maps: Iterable[str]) -> dict[str, object]:
    """Return the picture of processes by their /proc/PID/maps; OSError when a file cannot be read.

    What goes along (`carried`) the target need not have.
    """
    mapped = {path for text in maps for path in mapped_files(text)}
    files = {path for path in mapped if not (is_own(path) and may_be_carried(path))}
    flags = cpu_flags(Path("/proc/cpuinfo").read_text())
    return {"files": {path: build_id(path) for path in sorted(files)}, "cpu": sorted(flags)}


def why_not_here(picture: dict[str, object]) -> str:
    """Say what this node lacks of a picture, "" when nothing."""
    files, cpu = picture["files"], picture["cpu"]
    assert isinstance(files, dict)
    assert isinstance(cpu, list)
    lacks = set(cpu) - cpu_flags(Path("/proc/cpuinfo").read_text())
    if lacks:
        return f"this node's processors lack {', '.join(sorted(lacks)[:3])}, which the program may use"
    for path, want in files.items():
        try:
            here = build_id(path)
        except OSError as err:
            return f"{path}: {err.strerror} on this node"
        if here != want:
            return f"{path} is another build on this node"
    return ""
