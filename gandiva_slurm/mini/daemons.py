"""The daemons of a mini cluster: how each is started, as whom, and how one sees that it is ready."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gandiva_slurm.mini import layout, probe
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.spec import MiniSpec
from gandiva_slurm.model.errors import UsageError


@dataclass(frozen=True)
class Daemon:
    """One daemon; `ready(init_pid)` looks from outside."""

    name: str
    argv: tuple[str, ...]
    user: str
    ready: Callable[[int], bool]
    own_log: bool = False
    deadline_s: float = 20.0

    @property
    def log_name(self) -> str:
        """File name of its log below the cluster's log directory."""
        return self.name.replace(":", "-") + ".log"

    @property
    def output_name(self) -> str:
        """Where its standard output goes: the log, unless it writes that itself."""
        return self.name.replace(":", "-") + ".out" if self.own_log else self.log_name


def _socket(path: str) -> Callable[[int], bool]:
    return lambda init_pid: Path(f"/proc/{init_pid}/root{path}").is_socket()


def _port(number: int) -> Callable[[int], bool]:
    return lambda init_pid: probe.is_listening(init_pid, number)


def table(spec: MiniSpec, at: Layout) -> dict[str, Daemon]:
    """Every daemon by name, in the order of starting."""
    slurm = [
        Daemon("munged", ("munged", "--foreground", f"--key-file={at.root}/munge.key",
                          "--seed-file=/run/munge/seed", "--socket=/run/munge/munge.socket.2",
                          "--pid-file=/run/munge/munged.pid", "--log-file=/run/munge/munged.log"),
               "munge", _socket("/run/munge/munge.socket.2")),
        Daemon("mariadbd", ("mariadbd", "--defaults-file=/etc/slurm/my.cnf"),
               "mysql", _socket("/run/mysqld/mysqld.sock")),
        Daemon("slurmdbd", ("slurmdbd", "-D"), "slurm", _port(layout.SLURMDBD_PORT), True),
        Daemon("slurmctld", ("slurmctld", "-D"), "slurm", _port(layout.SLURMCTLD_PORT), True),
    ]
    slurmds = [Daemon(f"slurmd:{node.name}", ("slurmd", "-D", "-N", node.name), "root",
                      _port(layout.FIRST_SLURMD_PORT + i), True) for i, node in enumerate(spec.all_nodes)]
    return {daemon.name: daemon for daemon in [*slurm, *slurmds, *_gandiva(spec)]}


def _gandiva(spec: MiniSpec) -> list[Daemon]:
    conf, programs = "/etc/slurm/gandiva.yaml", layout.bin_dir()
    controller = Daemon("gandivactld", (f"{programs}/gandivactld", "-D", "--check-invariants", "-f", conf),
                        "slurm", _port(layout.CONTROLLER_PORT))
    nodes = [Daemon(f"gandivad:{node.name}", (f"{programs}/gandivad", "-f", conf, "--node", node.name),
                    "root", _port(layout.FIRST_GANDIVAD_PORT + i)) for i, node in enumerate(spec.nodes)]
    return [controller, *nodes]


def lookup(spec: MiniSpec, at: Layout, name: str) -> Daemon:
    """The daemon called `name`, or UsageError listing the names there are."""
    known = table(spec, at)
    if name not in known:
        raise UsageError(f"no daemon {name!r}; there are {', '.join(known)}")
    return known[name]


def gandiva_missing() -> str:
    """Which of our own daemons this package lacks; "" when both are there."""
    absent = [module for module in ("gandiva_slurm.controller.main", "gandiva_slurm.node.main")
              if find_spec(module) is None]
    return " and ".join(absent)
