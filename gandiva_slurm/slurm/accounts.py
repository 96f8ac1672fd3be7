"""The association tree, from `sacctmgr`: who has how many shares; and whom Slurm lets see everything."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from gandiva_slurm.logs import warn_once
from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.slurm.run import Commands

log = logging.getLogger(__name__)

COLUMNS = ("Account", "User", "ParentName", "Share", "Partition")
#: Shares of an association that says "parent" or nothing: Slurm's own default.
DEFAULT_SHARES = 1


#: AdminLevels that see what is private.
OPERATORS = ("Operator", "Administrator")
PEOPLE = ("sacctmgr", "-nP", "show", "user", "withcoord", "format=User,AdminLevel,Coord")


@dataclass(frozen=True)
class Person:
    """A user as slurmdbd knows it: whether it is an operator, and the accounts that it coordinates."""

    user: str
    is_operator: bool = False
    coordinates: frozenset[str] = frozenset()


async def read_people(commands: Commands, timeout_s: float) -> tuple[Person, ...]:
    """Return the operators and coordinators; GandivaError when slurmdbd is away."""
    people = []
    for line in (await commands.output(PEOPLE, timeout_s)).splitlines():
        cells = line.split("|")
        if len(cells) != 3:
            warn_once(log, f"user ignored, not three cells: {line[:80]!r}")
            continue
        accounts = frozenset(filter(None, cells[2].split(",")))
        if cells[1] in OPERATORS or accounts:
            people.append(Person(cells[0], cells[1] in OPERATORS, accounts))
    return tuple(people)


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
