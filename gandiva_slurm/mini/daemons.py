"""The daemons of a mini cluster: how each is started, as whom, and how one sees that it is ready."""

from collections.abc import Callable
from dataclasses import dataclass

from gandiva_slurm.controller.foretold import SOCKET_NAME
from gandiva_slurm.mini import layout, probe
from gandiva_slurm.mini.site import Site
from gandiva_slurm.mini.spec import MiniSpec
from gandiva_slurm.model.errors import UsageError

#: A library that shows slurmd control groups of version 2 alone, in the cluster's directory `lib`.
ONLY_V2 = "only_v2.so"


@dataclass(frozen=True)
class Daemon:
    """One daemon and the host it runs on; `ready(init_pid)` looks from outside, at that host's process 1."""

    name: str
    argv: tuple[str, ...]
    user: str
    host: str
    ready: Callable[[int], bool]
    own_log: bool = False
    #: many times what it takes on a quiet machine: what ended is told at once, and a busy machine is slow
    deadline_s: float = 120.0

    @property
    def log_name(self) -> str:
        """File name of its log below the cluster's log directory."""
        return self.name.replace(":", "-") + ".log"

    @property
    def output_name(self) -> str:
        """Where its standard output goes: the log, unless it writes that itself."""
        return self.name.replace(":", "-") + ".out" if self.own_log else self.log_name


def _socket(path: str) -> Callable[[int], bool]:
    return lambda init_pid: probe.is_open(init_pid, path)


def _port(number: int) -> Callable[[int], bool]:
    return lambda init_pid: probe.is_listening(init_pid, number)


def table(spec: MiniSpec, site: Site) -> dict[str, Daemon]:
    """Every daemon by name, in the order of starting; munge first, once on each host."""
    hosts = {address.host: None for address in (site.database, site.controller, *site.nodes.values())}
    mungeds = [_munged(site, host, f"munged:{host}" if len(hosts) > 1 else "munged") for host in hosts]
    slurm = [
        Daemon("mariadbd", ("mariadbd", "--defaults-file=/etc/slurm/my.cnf"),
               "mysql", site.database.host, _socket("/run/mysqld/mysqld.sock")),
        Daemon("slurmdbd", ("slurmdbd", "-D"), "slurm", site.database.host,
               _port(layout.SLURMDBD_PORT), True),
        # -i: 26.05, killed before it has saved assoc_usage for the first time, would not start again.
        Daemon("slurmctld", ("slurmctld", "-D", "-i"), "slurm", site.controller.host,
               _port(layout.SLURMCTLD_PORT), True),
    ]
    before = ("env", f"LD_PRELOAD={site.at.root}/lib/{ONLY_V2}") if spec.cgroups == "v2" else ()
    slurmds = [Daemon(f"slurmd:{node.name}", (*before, "slurmd", "-D", "-N", node.name), "root",
                      site.nodes[node.name].host, _port(site.nodes[node.name].slurmd_port), True)
               for node in spec.all_nodes]
    return {daemon.name: daemon for daemon in [*mungeds, *slurm, *slurmds, *_gandiva(spec, site)]}


def _munged(site: Site, host: str, name: str) -> Daemon:
    socket = "/run/munge/munge.socket.2"
    words = ("munged", "--foreground", f"--key-file={site.at.root}/munge.key", "--seed-file=/run/munge/seed",
             f"--socket={socket}", "--pid-file=/run/munge/munged.pid", "--log-file=/run/munge/munged.log")
    return Daemon(name, words, "munge", host, _socket(socket))


def _gandiva(spec: MiniSpec, site: Site) -> list[Daemon]:
    conf, programs = "/etc/slurm/gandiva.yaml", site.programs
    controller = Daemon("gandivactld", (f"{programs}/gandivactld", "-D", "--check-invariants", "-f", conf),
                        "slurm", site.controller.host, _port(layout.CONTROLLER_PORT))
    foretelling = Daemon("gandiva-forecast", (f"{programs}/gandiva", "-f", conf, "forecast"), "slurm",
                         site.controller.host, _socket(f"{site.at.spool}/gandivactld/{SOCKET_NAME}"))
    nodes = []
    for node in spec.nodes:
        words, place = (f"{programs}/gandivad", "-f", conf, "--node", node.name), site.nodes[node.name]
        nodes.append(Daemon(f"gandivad:{node.name}", words, "root", place.host, _port(place.gandivad_port)))
    return [controller, *([foretelling] if spec.forecast else []), *nodes]


def lookup(spec: MiniSpec, site: Site, name: str) -> Daemon:
    """The daemon called `name`, or UsageError listing the names there are."""
    known = table(spec, site)
    if name not in known:
        raise UsageError(f"no daemon {name!r}; there are {', '.join(known)}")
    return known[name]
