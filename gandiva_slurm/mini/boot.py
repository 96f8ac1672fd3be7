"""Bringing a mini cluster up: the daemons in order, each waited for by what it shows."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gandiva_slurm.mini import daemons, probe
from gandiva_slurm.mini.spec import USERS

if TYPE_CHECKING:
    from gandiva_slurm.mini.cluster import MiniCluster

NODES_DEADLINE_S = 180.0
DATABASE_DEADLINE_S = 180.0
ACCOUNT = "research"


def start_all(cluster: "MiniCluster", say: Callable[[str], None]) -> None:
    """Every daemon up, accounts made, every node idle."""
    say("starting munge and MariaDB")
    mungeds = [name for name in daemons.table(cluster.spec, cluster.site) if name.startswith("munged")]
    for name in mungeds:
        cluster.start_daemon(name, wait=False)
    _make_database(cluster)
    cluster.start_daemon("mariadbd")
    # slurmdbd makes its database itself, but not with MariaDB Connector/C 3.4.9: what is left of a connection
    # that was refused, for want of the database, takes no result of any column.
    cluster.exec(["mariadb", "--no-defaults", "--socket=/run/mysqld/mysqld.sock",
                  "--execute=create database slurm_acct_db"], host=cluster.site.database.host)
    for name in mungeds:
        cluster.wait_daemon(name)
    say("starting slurmdbd, slurmctld and slurmd")
    cluster.start_daemon("slurmdbd")
    cluster.exec(["sacctmgr", "-i"], input=_accounts())
    cluster.start_daemon("slurmctld")
    for node in cluster.spec.all_nodes:
        cluster.start_daemon(f"slurmd:{node.name}", wait=False)
    _wait_nodes(cluster)
    if cluster.spec.daemons:
        start_gandiva(cluster, say)


def start_gandiva(cluster: "MiniCluster", say: Callable[[str], None]) -> None:
    """Our own daemons: one on each GPU node, then the controller."""
    say("starting gandivad and gandivactld")
    names = [name for name in daemons.table(cluster.spec, cluster.site) if name.startswith("gandiva")]
    for name in names:
        cluster.start_daemon(name, wait=False)
    for name in names:
        cluster.wait_daemon(name)


def _make_database(cluster: "MiniCluster") -> None:
    """An empty MariaDB, in the private memory of the cluster."""
    cluster.exec(["setpriv", "--reuid", "mysql", "--regid", "mysql", "--init-groups", "mariadb-install-db",
                  "--no-defaults", "--datadir=/run/mysqld/data", "--skip-test-db", "--skip-name-resolve",
                  "--auth-root-authentication-method=normal", "--innodb-log-file-size=4M",
                  "--innodb-flush-log-at-trx-commit=0"],
                 host=cluster.site.database.host, timeout_s=DATABASE_DEADLINE_S)


def _accounts() -> str:
    """What sacctmgr reads: one account, its users with equal shares."""
    return (f"add cluster mini\nadd account {ACCOUNT} description=mini organization=mini fairshare=1\n"
            f"add user {','.join(USERS)} account={ACCOUNT} fairshare=1\nquit\n")


def _wait_nodes(cluster: "MiniCluster") -> None:
    """Return when Slurm shows every node idle."""
    def all_idle() -> bool:
        states = cluster.exec(["sinfo", "-h", "-N", "-o", "%N %T"], check=False).stdout.split("\n")
        return {f"{node.name} idle" for node in cluster.spec.all_nodes} <= set(states)

    def broken() -> str:
        dead = [name for name in ("slurmctld", *(f"slurmd:{n.name}" for n in cluster.spec.all_nodes))
                if cluster.daemon_pid(name) is None]
        return f"{dead[0]} ended:\n{probe.tail(cluster.log(dead[0]))}" if dead else ""

    probe.wait_until(all_idle, "all nodes to be idle", NODES_DEADLINE_S, broken=broken,
                     log=cluster.log("slurmctld"), poll_s=0.1)
