"""The record of a Gandiva job: one JSON object behind `gandiva:` in its AdminComment.

job_submit.lua writes it at submission; other tools keep text of their own before it and perhaps after.
Its strings come from the user's flags, so nothing in it is trusted: a value that cannot be is replaced by
the default, a record that cannot be read makes the job an ordinary one, and both are said in the log.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from gandiva_slurm.model.snapshot import OWN_FILES, OWN_SIGNAL, JobOptions

log = logging.getLogger(__name__)

PREFIX = "gandiva:"
#: Version of the record.
VERSION = 1
#: Longest record that is read, in characters; Lua's has about 250.
MAX_CHARS = 4096
#: Most nodes one job may ask for, and most GPUs of each.
MAX_NODES, MAX_GPUS = 4096, 1024

_RANGES = {"tickets": (1, 1000), "priority": (0, 100)}
_CHOICES = {
    "class": ("guaranteed", "opportunistic"),
    "cell": ("gpu", "switch", "socket", "node", "any"),
    "pack": ("auto", "never"),
    "migrate": ("auto", "never"),
    "hook": ("auto", "none"),
}
_DECODER = json.JSONDecoder()


@functools.lru_cache(maxsize=16384)
def read_options(admin_comment: str, job_id: int) -> JobOptions | None:
    """Return what the job asked of Gandiva; None when it is not Gandiva's."""
    record = next(iter(reversed([*_records(admin_comment)])), None)
    if record is None:
        if PREFIX + "{" in admin_comment:
            log.warning("job %d: AdminComment has a gandiva record that cannot be read; left alone", job_id)
        return None
    shape = _shape(record)
    if shape is None:
        log.warning("job %d: its gandiva record asks for no number of GPUs; left alone", job_id)
        return None
    return JobOptions(
        tickets=_number(record, "tickets", job_id),
        priority=_number(record, "priority", job_id),
        job_class=_choice(record, "class", job_id),
        vc=_word(record, "vc"),
        types=tuple(filter(None, _word(record, "types").split(","))),
        cell=_choice(record, "cell", job_id),
        elastic=_word(record, "elastic"),
        pack=_choice(record, "pack", job_id),
        migrate=_choice(record, "migrate", job_id),
        hook=_choice(record, "hook", job_id),
        gpus=shape[0],
        nodes=shape[1],
        gpu_type=_word(record, "type"),
        user_hold=record.get("user_hold") is True,
        reservation=_word(record, "reservation"),
        max_nodes=_max_nodes(record, shape[1], job_id),
        checkpoint=_checkpoint(record, job_id),
    )


def _shape(record: Mapping[str, Any]) -> tuple[int, int] | None:
    """GPUs in all and nodes, the same number of GPUs on each; None when they cannot be."""
    gpus, nodes = record.get("gpus"), record.get("nodes", 1)
    if type(gpus) is not int or type(nodes) is not int or not 1 <= nodes <= MAX_NODES:
        return None
    return (gpus, nodes) if gpus % nodes == 0 and 1 <= gpus // nodes <= MAX_GPUS else None


def _max_nodes(record: Mapping[str, Any], nodes: int, job_id: int) -> int:
    """The nodes over which it may grow: two where it asked for one or two, and is elastic."""
    value = record.get("max_nodes", 1)
    if value in (1, 2) and type(value) is int:
        return value if nodes == 1 and _word(record, "elastic") else 1
    return int(_default("max_nodes", job_id))


def _records(text: str) -> Iterator[dict[str, Any]]:
    """Yield the readable records from left to right; what lies inside one is text of that record."""
    at = text.find(PREFIX + "{")
    while at >= 0:
        start = at + len(PREFIX)
        end = start
        try:
            value, end = _DECODER.raw_decode(text[start : start + MAX_CHARS])
            end += start
            if isinstance(value, dict) and value.get("v") == VERSION:
                yield value
        except (ValueError, RecursionError):
            pass
        at = text.find(PREFIX + "{", end)


#: Defaults by the names of the record.
_DEFAULTS = {("class" if name == "job_class" else name): value for name, value in vars(JobOptions()).items()}


def _number(record: Mapping[str, Any], key: str, job_id: int) -> int:
    low, high = _RANGES[key]
    value = record.get(key, _DEFAULTS[key])
    if type(value) is int and low <= value <= high:
        return value
    return int(_default(key, job_id))


def _choice(record: Mapping[str, Any], key: str, job_id: int) -> str:
    value = record.get(key, _DEFAULTS[key])
    if isinstance(value, str) and value in _CHOICES[key]:
        return value
    return str(_default(key, job_id))


def _checkpoint(record: Mapping[str, Any], job_id: int) -> str:
    value = record.get("checkpoint", _DEFAULTS["checkpoint"])
    text = value if isinstance(value, str) else ""
    if text in ("auto", "self", "none") or OWN_SIGNAL.fullmatch(text) or OWN_FILES.fullmatch(text):
        return text
    return str(_default("checkpoint", job_id))


def _default(key: str, job_id: int) -> Any:
    log.warning("job %d: its gandiva record has an impossible value for %s; the default counts", job_id, key)
    return _DEFAULTS[key]


def _word(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        return ""
    return "".join(char for char in value if char.isprintable() and not char.isspace())[:256]
