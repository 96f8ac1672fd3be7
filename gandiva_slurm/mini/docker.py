"""The back end `docker`: each machine is a container with Debian's Slurm, on a private bridge.

container/compose.yaml says what a machine is, container/Dockerfile what is in it. The clone's package is
copied when the cluster comes up, so that a change of the code needs no new image. Users' commands enter the
containers by their namespaces, as in the back end `local`; daemons are started by the engine, with the rights
of a container.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import stat
import subprocess
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from string import Template

import yaml

from gandiva_slurm.mini import conffiles, layout, probe, shares
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.engine import Engine
from gandiva_slurm.mini.layout import CLONE, Layout
from gandiva_slurm.mini.record import remove_directory
from gandiva_slurm.mini.shares import Share
from gandiva_slurm.mini.site import Address, NodeAddress, Site
from gandiva_slurm.mini.spec import PLAIN_NODE, SUITES, MiniSpec
from gandiva_slurm.model.errors import GandivaError

CONTROLLER, DATABASE = "ctl", "db"
FIRST_NODE_NUMBER, PLAIN_NUMBER = 11, 10
SLURMD_PORT = 6818
#: Accounts of the image (container/image/base.sh).
OWNERS = {"slurm": (64030, 64030), "munge": (64101, 64101), "mysql": (64102, 64102)}
#: Where the package lies inside.
SOURCE = Path("/opt/gandiva-slurm")
READY_DEADLINE_S = 90.0


class DockerCluster(MiniCluster):
    """Every daemon's machine is a container: db, ctl, n1, n2 ... and the plain node p1."""

    @classmethod
    def require_here(cls) -> None:
        """Raise unless this is root in a clone."""
        if os.geteuid() != 0:
            raise GandivaError("a mini cluster needs root, to enter its containers: run it as root (sudo)")
        if not (CLONE / "container/compose.yaml").exists():
            raise GandivaError(f"no container/ in {CLONE}: run it from a clone")

    @classmethod
    def require(cls, spec: MiniSpec) -> None:
        """Raise unless a Docker engine answers, too."""
        cls.require_here()
        Engine.find()

    @classmethod
    def _make(cls, spec: MiniSpec, at: Layout, say: Callable[[str], None]) -> DockerCluster:
        engine, suite = Engine.find(), suite_of(spec)
        engine.build(suite, say)
        pinned = shares.pin(spec)
        with engine.free_network(zlib.crc32(spec.name.encode()) % 254) as network:
            site = site_of(spec, at, network)
            conffiles.write_all(spec, site)
            conffiles.write(at.root / "network", network)
            conffiles.write(at.root / "host/hosts", _hosts(site))
            (at.root / "sockets").mkdir()
            _copy_source(at.root / "source")
            compose = at.root / "compose.yaml"
            conffiles.write(compose, json.dumps(compose_of(spec, site, network), indent=1))
            say(f"starting {len(site.nodes) + 2} containers of {image_of(suite)}")
            engine.compose(compose, project_of(at), "up", "-d")
        cluster = cls(spec, site, engine.hosts(project_of(at)))
        cluster._wait_machines(engine)
        for host in cluster._sharing_hosts():
            require_shares(Path(f"/proc/{cluster.pids[host]}/root"), pinned)
        return cluster

    @classmethod
    def _find(cls, spec: MiniSpec, at: Layout) -> DockerCluster | None:
        try:
            network = (at.root / "network").read_text()
            known = json.loads((at.root / "pids.json").read_text())
        except OSError:
            return None
        pids = {host: pid for host, (pid, ticks) in known.items() if probe.start_ticks(pid) == ticks}
        if set(pids) != set(known):
            # A container was restarted by hand: its process 1 has another number.
            pids = Engine.find().hosts(project_of(at))
        site = site_of(spec, at, network)
        return cls(spec, site, pids) if CONTROLLER in pids else None

    @classmethod
    def _remove(cls, at: Layout) -> None:
        if at.root.exists():
            Engine.find().remove(project_of(at))
        remove_directory(at)

    def _enter(self, host: str) -> list[str]:
        if self.spec.process_images and host in self.site.nodes:
            # An engine may know no name for CAP_CHECKPOINT_RESTORE: a node's rights are this process's own.
            return ["nsenter", "-t", str(self._pid_of(host)), "-a", "--"]
        address = Engine.find().address
        return ["docker", "-H", address, "exec", container_of(self.at, host)]

    def _link(self, host: str, state: str) -> None:
        enter = ["nsenter", "-t", str(self._pid_of(host)), "-n", "--"]
        subprocess.run([*enter, "ip", "link", "set", "eth0", state], check=True,
                       env={"PATH": layout.system_path()})

    def _wait_machines(self, engine: Engine) -> None:
        """Each machine has made its directories; note who it is."""
        missing = set(self._all_hosts()) - set(self.pids)
        if missing:
            raise GandivaError(f"containers that ended at once: {', '.join(sorted(missing))}; "
                               f"see docker -H {engine.address} logs")
        for host, pid in self.pids.items():
            probe.wait_until(Path(f"/proc/{pid}/root/run/ready").exists, f"the container {host} to be ready",
                             READY_DEADLINE_S)
        known = {host: (pid, probe.start_ticks(pid)) for host, pid in self.pids.items()}
        if any(ticks is None for _, ticks in known.values()):
            raise GandivaError(f"the engine at {engine.address} runs its containers elsewhere; "
                               "next: use an engine of this machine (make engine)")
        conffiles.write(self.at.root / "pids.json", json.dumps(known))

    def _sharing_hosts(self) -> list[str]:
        return [host for host in self.pids if host != DATABASE]

    def _all_hosts(self) -> list[str]:
        return [self.site.database.host, self.site.controller.host,
                *(place.host for place in self.site.nodes.values())]


def suite_of(spec: MiniSpec) -> str:
    """The Debian release of a `docker:SUITE` cluster."""
    return spec.backend.partition(":")[2]


def image_of(suite: str) -> str:
    """The image container/build.sh makes."""
    return f"gandiva-mini:{suite}"


def project_of(at: Layout) -> str:
    """The name docker-compose has for a cluster."""
    return f"gandiva-{at.root.name}"


def container_of(at: Layout, host: str) -> str:
    """The name of a machine's container."""
    return f"{project_of(at)}-{host}"


def site_of(spec: MiniSpec, at: Layout, network: str) -> Site:
    """A machine for the database, one for the controller, one for each node."""
    nodes = {}
    for i, node in enumerate(spec.all_nodes):
        number = PLAIN_NUMBER if node.name == PLAIN_NODE else FIRST_NODE_NUMBER + i
        nodes[node.name] = NodeAddress(node.name, f"{network}.{number}", SLURMD_PORT,
                                       layout.FIRST_GANDIVAD_PORT)
    return Site(
        at, Address(CONTROLLER, f"{network}.3"), Address(DATABASE, f"{network}.2"), nodes,
        slurmd_spool="/var/spool/slurmd", plugin="/usr/lib/gandiva/gandiva.so",
        hook=str(SOURCE / "gandiva_slurm/client/hook"),
        cgroup_plugin=conffiles.cgroup_plugin(SUITES[suite_of(spec)]),
        programs=Path("/opt/gandiva/bin"), owners=OWNERS,
    )


def compose_of(spec: MiniSpec, site: Site, network: str) -> dict[str, object]:
    """container/compose.yaml with this cluster's nodes: each is made after the pattern of n1."""
    text = (CLONE / "container/compose.yaml").read_text()
    words = {"GANDIVA_ROOT": str(site.at.root), "GANDIVA_SUITE": suite_of(spec), "GANDIVA_NET": network}
    compose: dict[str, object] = yaml.safe_load(Template(text).substitute(words))
    services = compose["services"]
    assert isinstance(services, dict)
    kept = {name: services[name] for name in (DATABASE, CONTROLLER)}
    for place in site.nodes.values():
        kept[place.host] = copy.deepcopy(services["n1"]) | {
            "hostname": place.host, "networks": {"private": {"ipv4_address": place.ip}}}
    # compose reads $ as the beginning of a variable.
    binds = [{"type": "bind", "source": path, "target": path} for path in
             (path.replace("$", "$$") for path in spec.shares)]
    for host, service in kept.items():
        service["container_name"] = container_of(site.at, host)
        service["volumes"] = service["volumes"] + (binds if host != DATABASE else [])
    return compose | {"services": kept}


def require_shares(root: Path, pinned: Iterable[Share]) -> None:
    """Let users reach the shares below `root`, a machine's own; GandivaError: they are not what was judged.

    The engine opened them by name. No user can run anything here before this has looked.
    """
    for share in pinned:
        inside = root / share.path.lstrip("/")
        try:
            seen = os.stat(inside, follow_symlinks=False)
        except OSError as err:
            raise GandivaError(f"the shared directory {share.path}: {err.strerror}") from None
        if (seen.st_dev, seen.st_ino) != (share.device, share.inode):
            raise GandivaError(f"the shared directory {share.path} was changed while the cluster came up; "
                               "next: see to it that nobody else may rename it, and bring it up again")
        for place in list(inside.parents)[:len(Path(share.path).parts) - 2]:
            place.chmod(stat.S_IMODE(place.stat().st_mode) | stat.S_IXOTH)


def _hosts(site: Site) -> str:
    places = [site.database, site.controller, *site.nodes.values()]
    return "127.0.0.1 localhost\n" + "".join(f"{place.ip} {place.host}\n" for place in places)


def _copy_source(to: Path) -> None:
    """The package as it is now, readable by everybody inside whatever the clone's modes are."""
    shutil.copytree(CLONE / "gandiva_slurm", to / "gandiva_slurm",
                    ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copyfile(CLONE / name, to / name)
    for path in (to, *to.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
