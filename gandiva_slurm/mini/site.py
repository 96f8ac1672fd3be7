"""Who runs what in a mini cluster, where it listens, where files lie: what its back ends do differently."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.mini.layout import Layout

#: A user and a group number.
Owner = tuple[int, int]


@dataclass(frozen=True)
class Address:
    """A machine as the configuration names it: host name, and what others connect to."""

    host: str
    ip: str


@dataclass(frozen=True)
class NodeAddress(Address):
    """A node: its machine, and the ports its two daemons listen on there."""

    slurmd_port: int
    gandivad_port: int


@dataclass(frozen=True)
class Site:
    """One cluster's machines and paths, as daemons inside know them."""

    at: Layout
    controller: Address
    database: Address
    nodes: Mapping[str, NodeAddress]
    #: slurmd's directory; %n is the node. Job scripts lie there, so programs must be allowed to run.
    slurmd_spool: str
    #: gandiva.so, and the directory of the hook for unchanged scripts
    plugin: str
    hook: str
    #: `CgroupPlugin` of cgroup.conf: one that touches no cgroup
    cgroup_plugin: str
    #: directory of gandivactld, gandivad and python
    programs: Path
    #: numbers of slurm, munge and mysql inside
    owners: Mapping[str, Owner]
