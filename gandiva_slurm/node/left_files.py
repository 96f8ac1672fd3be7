"""What jobs that were moved have written into files of this node alone: removed when they live on elsewhere.

The files went along in their images (`carried`). A job that was cancelled before it was requeued has ended
here, and its files stay.
"""

from __future__ import annotations

import asyncio
import pwd
from typing import NamedTuple

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import carried
from gandiva_slurm.node.carried import Carried
from gandiva_slurm.node.context import Node

#: For how long after its end here gandivactld is waited for to tell that a job waits to be started again.
TOLD_NS = 120 * 10**9


class _Gone(NamedTuple):
    """Of a job with a whole image: its user and files, and when it was last here."""

    uid: int
    files: list[Carried]
    seen_ns: int


class LeftFiles:
    """The files of one node's jobs that leave."""

    def __init__(self) -> None:
        self._of: dict[JobKey, _Gone] = {}

    def look(self, node: Node) -> None:
        """Remove what is behind by now."""
        now_ns = node.clock.mono()
        for key, resident in node.residents.items():
            self._of.pop(key, None)
            if resident.image.is_whole and resident.image.along:
                self._of[key] = _Gone(resident.processes.uid, resident.image.along, now_ns)
        again = node.plan.images if node.plan is not None else ()
        for key, gone in list(self._of.items()):
            if key in node.residents:
                continue
            is_back = any(of.job_id == key.job_id for of in node.residents)
            if key.job_id in again and not is_back:
                asyncio.get_running_loop().run_in_executor(None, _remove, gone)
            if key.job_id in again or is_back or now_ns - gone.seen_ns > TOLD_NS:
                del self._of[key]


def _remove(gone: _Gone) -> None:
    try:
        user = pwd.getpwuid(gone.uid)
    except KeyError:
        return
    carried.remove(user.pw_name, user.pw_gid, gone.files)
