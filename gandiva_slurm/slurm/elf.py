"""Reading one number out of a shared library, without loading it: for which Slurm a SPANK plugin was built.

Loading would run its constructors, and fails anyway outside Slurm: its spank_* symbols are undefined there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

#: The variable SPANK_PLUGIN() defines, as SLURM_VERSION_NUMBER of the headers: 0x160508 is 22.05.8.
VERSION_SYMBOL = b"plugin_version"
#: A plugin has some ten kilobytes; more than this is another file.
MAX_BYTES = 64 * 1024 * 1024

_MAGIC_64_LITTLE = b"\x7fELF\x02\x01"
_SYMTAB_DYNAMIC = 11


class NotALibrary(Exception):
    """The file is no 64-bit little-endian ELF library, or is cut short."""


@dataclass(frozen=True)
class _Section:
    kind: int
    address: int
    offset: int
    size: int
    link: int


def plugin_release(path: Path) -> tuple[int, int]:
    """Return (major, minor) of the Slurm a SPANK plugin was built for; NotALibrary, OSError."""
    data = path.read_bytes()[:MAX_BYTES]
    if not data.startswith(_MAGIC_64_LITTLE):
        raise NotALibrary("not a 64-bit ELF library")
    try:
        return _release(data)
    except (struct.error, IndexError, ValueError) as err:
        raise NotALibrary("cut short or damaged") from err


def _release(data: bytes) -> tuple[int, int]:
    sections = _sections(data)
    for table in sections:
        if table.kind != _SYMTAB_DYNAMIC:
            continue
        names = sections[table.link]
        for at in range(table.offset, table.offset + table.size, 24):
            name, _, _, section, address, _ = struct.unpack_from("<IBBHQQ", data, at)
            start = names.offset + name
            if section and data[start : data.index(b"\0", start)] == VERSION_SYMBOL:
                place = sections[section]
                (version,) = struct.unpack_from("<I", data, place.offset + address - place.address)
                return version >> 16, version >> 8 & 0xFF
    raise NotALibrary(f"no SPANK plugin: it has no {VERSION_SYMBOL.decode()}")


def _sections(data: bytes) -> list[_Section]:
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    if not 0 < offset <= len(data) - size * count:
        raise ValueError("the section headers, mostly a library's end, lie beyond it")
    rows = (struct.unpack_from("<IIQQQQI", data, offset + number * size) for number in range(count))
    return [_Section(row[1], row[3], row[4], row[5], row[6]) for row in rows]
