"""Bringing a mini cluster up: the namespaces, then the daemons in order, each waited for by what it shows."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gandiva_slurm.mini import daemons, layout, probe
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.spec import USERS
from gandiva_slurm.model.errors import GandivaError

if TYPE_CHECKING:
    from gandiva_slurm.mini.cluster import MiniCluster

INIT = Path(__file__).with_name("init.py")
NAMESPACE_DEADLINE_S = 10.0
NODES_DEADLINE_S = 30.0
DATABASE_DEADLINE_S = 30.0
ACCOUNT = "research"


def launch(at: Layout) -> int:
    """Start the namespaces with their process 1; returns its pid once its mounts are made."""
    log = at.log / "init.log"
    unshare = ["unshare", "-m", "-n", "-u", "-i", "-p", "--fork", "--kill-child=KILL", "--mount-proc",
               sys.executable, "-I", "-S", str(INIT), str(at.root)]
    script = 'echo $$ > "$0.new" && mv "$0.new" "$0" && exec "$@"'
    with log.open("wb") as out:
        subprocess.run(["setsid", "--fork", "sh", "-c", script, str(at.outer_pid), *unshare], check=True,
                       stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/",
                       env={"PATH": layout.system_path(), "LANG": "C.UTF-8"})
    probe.wait_until(at.outer_pid.exists, "the namespaces to start", NAMESPACE_DEADLINE_S, log=log)
    outer = int(at.outer_pid.read_text())
    probe.wait_until(
        (at.root / "ready").exists, "the private mounts and network", NAMESPACE_DEADLINE_S, log=log,
        broken=lambda: "" if probe.start_ticks(outer) is not None else "process 1 ended",
    )
    return probe.children(outer)[0]


def start_all(cluster: "MiniCluster", say: Callable[[str], None]) -> None:
    """Every daemon up, accounts made, every node idle."""
    say("starting munge and MariaDB")
    cluster.start_daemon("munged", wait=False)
    _make_database(cluster)
    cluster.start_daemon("mariadbd")
    cluster.wait_daemon("munged")
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
    if absent := daemons.gandiva_missing():
        raise GandivaError(f"this package has no {absent}; use --no-daemons")
    say("starting gandivad and gandivactld")
    names = [name for name in daemons.table(cluster.spec, cluster.at) if name.startswith("gandiva")]
    for name in names:
        cluster.start_daemon(name, wait=False)
    for name in names:
        cluster.wait_daemon(name)


def _make_database(cluster: "MiniCluster") -> None:
    """An empty MariaDB, in the private memory of the cluster."""
    cluster.exec(["setpriv", "--reuid", "mysql", "--regid", "mysql", "--init-groups", "mariadb-install-db",
                  "--no-defaults", "--datadir=/run/mysqld/data", "--skip-test-db", "--skip-name-resolve",
                  "--auth-root-authentication-method=normal", "--innodb-log-file-size=4M",
                  "--innodb-flush-log-at-trx-commit=0"], timeout_s=DATABASE_DEADLINE_S)


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
