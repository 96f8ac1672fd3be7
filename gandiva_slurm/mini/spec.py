"""What a mini cluster is asked to be: the text of `--nodes` and `--backend`, checked, as values."""

import os
import platform
import re
from dataclasses import dataclass, field

from gandiva_slurm.config import NS_PER_S, Config
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.port import PolicySettings
from gandiva_slurm.policy.registry import maker_for_a_cluster

#: Users of every mini cluster, with their uid (= gid); each has fair-share 1 under the account `research`.
USERS = {"user1": 5001, "user2": 5002, "user3": 5003}
#: Slots Slurm advertises for each GPU, as in gandiva.yaml.
SLOTS_PER_GPU = 4
DEFAULT_NODES = "v100:1x4"
#: The one node without GPUs, alone in the partition `plain`, for ordinary jobs.
PLAIN_NODE = "p1"
MAX_NODES = 32
MAX_GPUS_PER_NODE = 16

#: What `--backend` takes: this host's own Slurm, or containers with Debian's.
BACKENDS = ("local", "docker")
#: Debian releases the containers are made of, and Slurm's version there.
SUITES = {"bookworm": "22.05", "trixie": "24.11", "forky": "26.05"}
#: What `--cgroups` takes: version 1 for Slurm beside version 2 for gandivad, or version 2 for both.
CGROUPS = ("hybrid", "v2")
#: Names them where none are asked for.
CGROUPS_VARIABLE = "GANDIVA_MINI_CGROUPS"
#: Names the back end where none is asked for: `local`, or `docker:SUITE`.
BACKEND_VARIABLE = "GANDIVA_MINI_BACKEND"
#: Names the policy that decides where none is asked for.
POLICY_VARIABLE = "GANDIVA_MINI_POLICY"

_GROUP = re.compile(r"(?P<type>[a-z][a-z0-9_]{0,15}):(?P<nodes>[1-9][0-9]?)x(?P<gpus>[1-9][0-9]?)")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class MiniNode:
    """One slurmd: name, GPU type, number of (fake) GPUs; the plain node has type "" and none."""

    name: str
    gpu_type: str
    gpus: int

    @property
    def slots(self) -> int:
        """How many gres/gpu Slurm advertises here."""
        return self.gpus * SLOTS_PER_GPU


@dataclass(frozen=True)
class MiniSpec:
    """Everything `mini up` needs to know."""

    name: str = "mini"
    nodes: tuple[MiniNode, ...] = field(default_factory=lambda: parse_nodes(DEFAULT_NODES))
    quantum_s: float = 1.0
    daemons: bool = True
    #: whether jobs may be packed: fake GPUs are the machine's own cores, so what a pair gains says little
    packing: bool = False
    #: "local", or "docker:SUITE"
    backend: str = field(default_factory=lambda: default_backend())
    #: directories of this machine that users inside see read-write at the same path (shares.py)
    shares: tuple[str, ...] = ()
    #: where the logs are copied before the cluster's directory is deleted; "" for nowhere
    keep_logs: str = ""
    #: whether its one node has this machine's own GPUs (own_gpus.py) instead of fake ones
    real_gpus: bool = False
    #: how long a job may load before it is frozen whole for its turns, seconds
    client_wait_s: float = 30.0
    #: whether jobs that know no other way are moved by images of their processes, where criu is
    process_images: bool = False
    #: the control groups Slurm has its jobs in: "" for none, "hybrid" (version 1, beside 2) or "v2"
    cgroups: str = field(default_factory=lambda: os.environ.get(CGROUPS_VARIABLE, ""))
    #: whether `gandiva forecast` runs beside gandivactld
    forecast: bool = False
    #: the policy that decides
    policy: str = field(default_factory=lambda: default_policy())

    def __post_init__(self) -> None:
        maker_for_a_cluster(self.policy, PolicySettings(round(self.quantum_s * NS_PER_S)))
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"cluster name {self.name!r} (variable GANDIVA_MINI): "
                             "use lower-case letters, digits and dashes, at most 31")
        if self.real_gpus and self.backend != "local":
            raise UsageError("--real-gpus: containers are given no GPUs; next: --backend local")
        if self.cgroups not in ("", *CGROUPS):
            raise UsageError(f"--cgroups {self.cgroups}: choose from {', '.join(CGROUPS)}")
        if self.cgroups and self.backend != "local":
            raise UsageError("--cgroups: containers are given none of their own; next: --backend local")
        if not 0.2 <= self.quantum_s <= 3600:
            raise UsageError(f"--quantum {self.quantum_s:g}: give seconds from 0.2 to 3600")

    @property
    def all_nodes(self) -> tuple[MiniNode, ...]:
        """GPU nodes, then the plain node."""
        return (*self.nodes, MiniNode(PLAIN_NODE, "", 0))

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """The most GPUs one node of each type has."""
        most: dict[str, int] = {}
        for node in self.nodes:
            most[node.gpu_type] = max(most.get(node.gpu_type, 0), node.gpus)
        return most


def default_policy() -> str:
    """The policy meant when none is named: $GANDIVA_MINI_POLICY, else that of a site that names none."""
    return os.environ.get(POLICY_VARIABLE) or str(Config.model_fields["policy"].default)


def default_backend(suite: str = "") -> str:
    """The back end meant when none is named: $GANDIVA_MINI_BACKEND, else `local`."""
    kind, _, usual = (os.environ.get(BACKEND_VARIABLE) or "local").partition(":")
    return backend_text(kind, suite or usual)


def backend_text(kind: str, suite: str) -> str:
    """`--backend` and `--suite`, checked, as one word: `local` or `docker:SUITE`."""
    if kind not in BACKENDS:
        raise UsageError(f"--backend {kind}: choose from {', '.join(BACKENDS)}")
    if suite and suite not in SUITES:
        raise UsageError(f"--suite {suite}: choose from {', '.join(SUITES)}")
    if kind == "local" and suite and suite != _release():
        raise UsageError(f"--suite {suite}: local runs this machine's own Slurm; next: --backend docker")
    return kind if kind == "local" else f"{kind}:{suite or 'bookworm'}"


def _release() -> str:
    """The Debian release of this machine; "" where nothing tells."""
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def parse_nodes(text: str) -> tuple[MiniNode, ...]:
    """Read `v100:2x4,k80:1x4` (TYPE:NODESxGPUS, ...) into nodes n1, n2, ... in that order."""
    nodes: list[MiniNode] = []
    for group in text.replace(" ", "").split(","):
        match = _GROUP.fullmatch(group)
        if match is None:
            raise UsageError(f"--nodes: {group!r} is not TYPE:NODESxGPUS; for example v100:2x4,k80:1x4")
        gpus = int(match["gpus"])
        if gpus > MAX_GPUS_PER_NODE:
            raise UsageError(f"--nodes: {group!r} asks {gpus} GPUs a node; at most {MAX_GPUS_PER_NODE}")
        for _ in range(int(match["nodes"])):
            nodes.append(MiniNode(f"n{len(nodes) + 1}", match["type"], gpus))
    if len(nodes) > MAX_NODES:
        raise UsageError(f"--nodes: {len(nodes)} nodes asked; a mini cluster takes at most {MAX_NODES}")
    return tuple(nodes)
