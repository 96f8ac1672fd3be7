"""The association tree, from `sacctmgr`: who has how many shares."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from gandiva_slurm.logs import warn_once
from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.slurm.run import Commands

log = logging.getLogger(__name__)

COLUMNS = ("Account", "User", "ParentName", "Share", "Partition")
#: Shares of an association that says "parent" or nothing: Slurm's own default.
DEFAULT_SHARES = 1


async def read_associations(commands: Commands, cluster: str, timeout_s: float) -> tuple[Association, ...]:
    """Return the associations of this cluster; GandivaError when slurmdbd is away."""
    where = (f"cluster={cluster}",) if cluster else ()
    argv = ("sacctmgr", "-nP", "show", "assoc", *where, f"format={','.join(COLUMNS)}")
    return parse(await commands.output(argv, timeout_s))


def parse(text: str) -> tuple[Association, ...]:
    """Read sacctmgr's table."""
    rows = []
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != len(COLUMNS):
            warn_once(log, f"association ignored, not {len(COLUMNS)} cells: {line[:80]!r}")
            continue
        account, user, parent, shares, partition = cells
        number = int(shares) if shares.isdecimal() else DEFAULT_SHARES
        rows.append((Association(account, user, parent, number), partition))
    return one_each(rows)


def one_each(rows: Iterable[tuple[Association, str]]) -> tuple[Association, ...]:
    """Keep one (association, partition) row a user and account: of several, the one for all partitions."""
    found: dict[tuple[str, str], tuple[bool, Association]] = {}
    for association, partition in rows:
        key = (association.account, association.user)
        if key not in found or (found[key][0] and not partition):
            found[key] = (bool(partition), association)
    return tuple(association for _, association in found.values())
