"""The account tree, as a site's own Slurm prints it.

    sacctmgr -P show assoc format=Account,User,ParentName,Share

A line an account (no user), a line a user in an account; or the same as CSV, written by hand.
"""

from __future__ import annotations

from pathlib import Path

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.workloads.rows import read_lines, read_table

NEEDS = ("Account", "User", "Share")
#: What Slurm versions call the account above.
_PARENT = ("ParentName", "Par Name")
#: Shares of a line that says "parent" or nothing: Slurm's own default.
_DEFAULT = 1


def read_tree(path: Path) -> tuple[Association, ...]:
    """Read accounts and users with their shares; UsageError names the line that is wrong."""
    is_slurms = "|" in (read_lines(path) or [""])[0]
    found: dict[tuple[str, str], Association] = {}
    for row in read_table(path, NEEDS, None, separator="|" if is_slurms else ","):
        account, user, shares = row.text("Account"), row.text("User"), row.text("Share")
        if not account:
            raise row.error("the line has no Account")
        parent = next((row.text(name) for name in _PARENT if name in row.fields), "")
        number = _DEFAULT if shares in ("", "parent") else row.whole("Share")
        found.setdefault((account, user), Association(account, user, parent, number))
    if not any(one.user for one in found.values()):
        raise UsageError(f"{path}: no users in it; print User with sacctmgr's format=")
    return tuple(found.values())


def check_accounts(tree: tuple[Association, ...], specs: list[Spec], path: Path) -> None:
    """UsageError: nobody of the workload is in the tree, so it would say nothing of anybody."""
    known = {(one.account, one.user) for one in tree}
    if not any((spec.account, spec.user) in known for spec in specs):
        first = specs[0]
        raise UsageError(
            f"--tickets: {path} has none of the workload's users; its first is {first.user!r} in account "
            f"{first.account!r}; formats `gandiva` (account) and `sacct` (Account) tell accounts"
        )
