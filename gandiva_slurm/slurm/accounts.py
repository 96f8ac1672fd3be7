"""The association tree, from `sacctmgr`: who has how many shares."""

from __future__ import annotations

import logging

from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.slurm.run import Commands

log = logging.getLogger(__name__)

COLUMNS = ("Account", "User", "ParentName", "Share", "Partition")
#: Shares of an association that says "parent" or nothing: Slurm's own default.
DEFAULT_SHARES = 1


async def read_associations(
    commands: Commands, cluster: str, timeout_s: float
) -> tuple[Association, ...] | None:
    """Return the associations of this cluster; None, said in the log, when slurmdbd is away."""
    where = (f"cluster={cluster}",) if cluster else ()
    argv = ("sacctmgr", "-nP", "show", "assoc", *where, f"format={','.join(COLUMNS)}")
    try:
        return parse(await commands.output(argv, timeout_s))
    except GandivaError as err:
        log.warning("associations not read, the old shares stay: %s", err)
        return None


def parse(text: str) -> tuple[Association, ...]:
    """Read sacctmgr's table; a user has one row an account (of several, the one for all partitions)."""
    found: dict[tuple[str, str], tuple[bool, Association]] = {}
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != len(COLUMNS):
            log.warning("association ignored, not %d cells: %r", len(COLUMNS), line[:80])
            continue
        account, user, parent, shares, partition = cells
        key = (account, user)
        if key not in found or (found[key][0] and not partition):
            found[key] = (bool(partition), Association(account, user, parent, _shares(shares)))
    return tuple(association for _, association in found.values())


def _shares(text: str) -> int:
    return int(text) if text.isdecimal() else DEFAULT_SHARES
