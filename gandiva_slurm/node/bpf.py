"""A program in the kernel that closes devices to a control group of version 2, and to all groups below it.

bpf(2), BPF_PROG_TYPE_CGROUP_DEVICE (kernel 4.15 and newer): it is asked at each open(2) and mknod(2) of a
device, beside those of others: what one of them refuses is refused. It lives as long as its group, whatever
becomes of gandivad, unless it is taken off by its descriptor. Needs CAP_BPF and CAP_NET_ADMIN (before kernel
5.8 CAP_SYS_ADMIN).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

#: bpf(2) by machine: it has no function in libc.
_SYSCALL = {"x86_64": 321, "aarch64": 280, "ppc64le": 361}
_PROG_LOAD, _PROG_ATTACH, _PROG_DETACH = 5, 8, 9
_CGROUP_DEVICE_PROGRAM, _AT_CGROUP_DEVICE, _ALLOW_MULTI = 15, 6, 2
_NAME, _LICENCE = b"gandiva_gpus", b"MIT"
#: Operation codes of linux/bpf.h: load a word, and with a constant, jump when equal or not, move, return.
_LOAD, _AND, _IF_EQUAL, _IF_OTHER, _MOVE, _RETURN = 0x61, 0x54, 0x15, 0x55, 0xB7, 0x95
#: struct bpf_cgroup_dev_ctx: the kind of device (low half) and the access, major and minor number.
_KIND_AT, _MAJOR_AT, _MINOR_AT, _CHARACTER = 0, 4, 8, 2
_RESULT, _CONTEXT, _KIND, _MAJOR, _MINOR = range(5)


class Device(NamedTuple):
    """A character device by its numbers."""

    major: int
    minor: int


def program(closed: Sequence[Device]) -> bytes:
    """Return the instructions that refuse these character devices and allow all others.

    Of none, all are allowed: a refusal that no jump leads to has the kernel turn the whole program away.
    """
    allowed, refused = (
        _instruction(_MOVE, _RESULT, constant=answer) + _instruction(_RETURN) for answer in (1, 0)
    )
    if not closed:
        return allowed
    size = 2 * len(closed)
    code = [
        _instruction(_LOAD, _KIND, _CONTEXT, _KIND_AT),
        _instruction(_AND, _KIND, constant=0xFFFF),
        _instruction(_LOAD, _MAJOR, _CONTEXT, _MAJOR_AT),
        _instruction(_LOAD, _MINOR, _CONTEXT, _MINOR_AT),
        _instruction(_IF_OTHER, _KIND, offset=size, constant=_CHARACTER),
    ]
    for number, device in enumerate(closed):
        to_refusal = size - 2 * number
        code.append(_instruction(_IF_OTHER, _MAJOR, offset=1, constant=device.major))
        code.append(_instruction(_IF_EQUAL, _MINOR, offset=to_refusal, constant=device.minor))
    return b"".join([*code, allowed, refused])


def close(group: Path, closed: Sequence[Device]) -> int:
    """Refuse these devices to what is in a group, now and later; OSError says why that cannot be had.

    Returns a descriptor of the program, by which it can be taken off.
    """
    loaded = _load(program(closed))
    try:
        _at_group(_PROG_ATTACH, group, loaded, _ALLOW_MULTI)
    except OSError:
        os.close(loaded)
        raise
    return loaded


def take_off(group: Path, loaded: int) -> None:
    """Let a group open again what this program alone has closed to it; its descriptor is closed."""
    try:
        _at_group(_PROG_DETACH, group, loaded, 0)
    finally:
        os.close(loaded)


def _at_group(command: int, group: Path, loaded: int, flags: int) -> None:
    descriptor = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _call(command, struct.pack("=IIII", descriptor, loaded, _AT_CGROUP_DEVICE, flags))
    finally:
        os.close(descriptor)


def _load(code: bytes) -> int:
    """Return a descriptor of the program in the kernel."""
    text, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(_LICENCE)
    # union bpf_attr: type, instructions and where they are, licence, no log (level, size, place), kernel
    # version, flags, name
    attributes = struct.pack(
        "=IIQQIIQII16s",
        *(_CGROUP_DEVICE_PROGRAM, len(code) // 8, ctypes.addressof(text), ctypes.addressof(licence)),
        *(0, 0, 0, 0, 0, _NAME),
    )
    return _call(_PROG_LOAD, attributes)


def _call(command: int, attributes: bytes) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(f"bpf(2) is not known of machine {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = int(libc.syscall(number, command, buffer, len(attributes)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, constant: int = 0) -> bytes:
    """struct bpf_insn, of this machine's byte order."""
    return struct.pack("=BBhi", code, target | source << 4, offset, constant)
