"""gandiva.yaml: typed, with defaults, and errors that name file, line, key and what is allowed.

All daemons and the command line read the same file. Durations are in seconds, as the keys' names say.
`slurm_conf/gandiva.yaml` is this file's commented form.
"""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from gandiva_slurm.config_served import MetricsConfig, WebConfig, is_address
from gandiva_slurm.config_served import Section as _Section
from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.yaml_lines import Lines, parse

#: Environment variables that tell where the file lies, and where it lies when none does.
CONF_ENV, SLURM_CONF_ENV = "GANDIVA_CONF", "SLURM_CONF"
CONF_NAME, DEFAULT_DIRECTORY = "gandiva.yaml", "/etc/slurm"
#: A configuration is small; more than this is another file.
MAX_BYTES = 1024 * 1024

NS_PER_S = 1_000_000_000
#: refusal_bound_s: auto. So often was it asked, and so many turns did the others lose, at the least.
AUTO_DEADLINES, AUTO_QUANTA = 4, 10

log = logging.getLogger(__name__)

Port = Annotated[int, Field(ge=1, le=65535)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/")]

class ControllerConfig(_Section):
    """gandivactld: where it listens, where it keeps its state, how it cycles."""

    host: str = Field(min_length=1)
    port: Port = 7321
    state_dir: AbsolutePath = "/var/lib/gandivactld"
    #: length of one cycle; a change wakes it earlier
    cycle_s: float = Field(default=1.0, ge=0.1, le=60)
    #: a released job that Slurm has not started by then is held again
    start_deadline_s: float = Field(default=60, ge=1, le=3600)
    #: the user gandivactld runs as, and whose signature the nodes obey (root's too)
    slurm_user: Name = "slurm"
    #: parked time is given back to a job's time limit, up to its partition's MaxTime times this
    time_limit_stretch: float = Field(default=2.0, ge=1, le=100)
    #: how long one call to Slurm may take
    slurm_timeout_s: float = Field(default=10, ge=1, le=300)
    #: a node that has not answered for so long gets no new jobs
    silent_after_s: float = Field(default=10, ge=1, le=3600)
    #: how long, and how large, the journal keeps what the engine heard, for `gandiva replay`; 0: not at all
    replay_hours: float = Field(default=24, ge=0, le=8760)
    replay_mib: int = Field(default=256, ge=1, le=1048576)
    #: single holds that ended longer ago are removed from the ledger; their sums by day stay
    keep_holds_days: int = Field(default=30, ge=1, le=36500)


#: freeze: nothing of a parked job runs; trust: its ranks wait at their boundary, what else it has runs on.
Parked = Literal["freeze", "trust"]


class SlurmConfig(_Section):
    """How gandivactld talks with Slurm."""

    #: pyslurm or Slurm's own commands; auto takes pyslurm where it works with this slurmctld
    backend: Literal["auto", "pyslurm", "commands"] = "auto"


class NodeConfig(_Section):
    """gandivad: where it listens, and the bounds of every park and freeze. `%n` is the node's name."""

    port: Port = 7322
    socket: AbsolutePath = "/run/gandiva/%n.sock"
    state_dir: AbsolutePath = "/var/lib/gandivad/%n"
    #: a started job that has not shown itself by then has no client and is frozen whole
    client_wait_s: float = Field(default=120, ge=1, le=86400)
    park_deadline_s: float = Field(default=30, ge=0.1, le=3600)
    #: a park in which a job saves itself, to be moved, may take so much longer
    save_deadline_s: float = Field(default=300, ge=1, le=86400)
    #: the bound of every park: a rank wakes by itself then (and wake_grace_s later for sure)
    max_park_s: float = Field(default=3600, ge=1, le=604800)
    #: the longest freeze: half of NCCL's default time-out
    freeze_bound_s: float = Field(default=300, ge=1, le=3600)
    #: NVIDIA's process checkpoint may move the memory of a job of one process that cannot move it itself
    driver_checkpoint: bool = False
    #: a gang that does not park and holds GPUs for so long while others wait is frozen, too; 0: never;
    #: auto (None): the longer of 4 park_deadline_s and 10 quanta
    refusal_bound_s: float | None = Field(default=None, ge=0, le=86400)
    wake_grace_s: float = Field(default=60, ge=0, le=3600)
    #: where jobs keep their checkpoints, seen by all nodes: %u the user, %j the job; empty: as each job likes
    checkpoint_dir: str = Field(default="", pattern=r"^(/\S*%j\S*)?$")
    #: a job's process on a GPU that was not given to the job is told of, or stopped as well
    strangers: Literal["report", "stop"] = "report"
    #: the GPUs' devices, closed to jobs that they were not given to: auto (NVIDIA's own), none, or how the
    #: names of their files begin, before a GPU's number
    gpu_files: str = Field(default="auto", pattern=r"^(auto|none|/\S+)$")
    #: in percent: the part of a GPU's threads an opportunistic job gets where MPS runs; 0: MPS is left alone
    mps_percent: int = Field(default=0, ge=0, le=100)
    #: memory of each GPU, where NVML does not tell it; 0: as NVML tells
    gpu_memory_mib: int = Field(default=0, ge=0, le=1 << 24)
    #: directories for DCGM's exporter and for jobstats: which job holds each GPU (ADR 0056); empty: none
    dcgm_mapping_dir: str = Field(default="", pattern=r"^(/.*)?$")
    gpustat_dir: str = Field(default="", pattern=r"^(/.*)?$")
    #: node name -> host:port, where that is not NAME:port
    addresses: dict[Name, str] = Field(default_factory=dict)

    @field_validator("refusal_bound_s", mode="before")
    @classmethod
    def _auto(cls, value: object) -> object:
        return None if value == "auto" else value

    @field_validator("addresses")
    @classmethod
    def _host_and_port(cls, value: dict[str, str]) -> dict[str, str]:
        for node, address in value.items():
            if not is_address(address):
                raise ValueError(f"{node}: expected host:port with a port of 1..65535, got {address!r}")
        return value


class MovesConfig(_Section):
    """Whether running jobs are moved to other GPUs, what that costs, and its bounds (ADR 0037)."""

    enabled: bool = True
    #: a job stays so long after a start or a move, whatever the policy would rather do
    min_run_s: float = Field(default=0, ge=0, le=604800)
    #: how often a job is moved within an hour; 0: as often as the policy likes
    per_hour: int = Field(default=0, ge=0, le=3600)
    #: what a move costs a job, until one of its own was measured
    cost_s: float = Field(default=60, ge=0, le=86400)
    #: a job told to leave that has not saved itself by then stays where it is
    deadline_s: float = Field(default=900, ge=1, le=86400)


class PackingConfig(_Section):
    """Whether two jobs may share a GPU at the same time, and what that must bring (ADR 0023)."""

    enabled: bool = True
    #: what the speeds of both must sum to, each as a part of that alone, noise aside; 1: what turns give
    floor: float = Field(default=1.05, ge=1, le=2)


class Config(_Section):
    """The whole file."""

    cluster: Name
    #: the partitions whose nodes and jobs are Gandiva's
    partitions: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]
    #: the time slice of a gang
    quantum_s: float = Field(default=60, ge=0.2, le=3600)
    #: gres/gpu slots Slurm advertises for each real GPU
    slots_per_gpu: int = Field(default=4, ge=1, le=64)
    #: users that used much before get less for a while: use is forgotten by this half-life; 0: not so
    use_half_life_s: float = Field(default=0, ge=0, le=31536000)
    #: the policy that decides what runs where (ADR 0037)
    policy: str = Field(default="gandiva_fair", pattern=r"^[A-Za-z0-9_.-]+$")
    #: whether what is parked is frozen whole, or its ranks alone wait; also by partition (others: freeze)
    parked: Parked | dict[Name, Parked] = "freeze"
    #: how long a node may hear neither gandivactld nor slurmctld before it freezes what Slurm may requeue
    isolation: Literal["never"] | Annotated[float, Field(ge=10, le=604800)] = "never"
    #: where munged listens; empty = munge's own default
    munge_socket: str = Field(default="", pattern=r"^(/.*)?$")
    controller: ControllerConfig
    node: NodeConfig = NodeConfig()
    slurm: SlurmConfig = SlurmConfig()
    moves: MovesConfig = MovesConfig()
    packing: PackingConfig = PackingConfig()
    metrics: MetricsConfig = MetricsConfig()
    web: WebConfig = WebConfig()
    #: GPUs that each owns, by type; dealt out in this order (ADR 0035)
    virtual_clusters: dict[Name, dict[Name, Annotated[int, Field(ge=1, le=1 << 20)]]] = Field(
        default_factory=dict
    )

    #: GPUs of each switch and socket of nodes by GPU type, in the order of their numbers (ADR 0039)
    cells: dict[Name, dict[Literal["switch", "socket"], Annotated[int, Field(ge=1, le=1024)]]] = Field(
        default_factory=dict
    )

    @field_validator("cells")
    @classmethod
    def _switches_in_sockets(cls, value: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        for gpu_type, told in value.items():
            if told.get("socket", 0) % told.get("switch", 1):
                raise ValueError(f"{gpu_type}: a socket has a whole number of switches, got {told}")
        return value

    @property
    def quantum_ns(self) -> int:
        """The quantum in nanoseconds."""
        return round(self.quantum_s * NS_PER_S)

    @property
    def refusal_bound_ns(self) -> int:
        """How long others bear a gang that does not park, in nanoseconds; 0: for ever."""
        told_s = self.node.refusal_bound_s
        auto_s = max(AUTO_DEADLINES * self.node.park_deadline_s, AUTO_QUANTA * self.quantum_s)
        return round((auto_s if told_s is None else told_s) * NS_PER_S)

    def trusts(self, partition: str) -> bool:
        """True when what is parked of this partition's jobs is not frozen."""
        told = self.parked if isinstance(self.parked, str) else self.parked.get(partition, "freeze")
        return told == "trust"

    @property
    def controller_url(self) -> str:
        """Base address of gandivactld."""
        return f"http://{self.controller.host}:{self.controller.port}"

    def node_address(self, name: str) -> tuple[str, int]:
        """(host, port) where gandivad of this node listens."""
        host, _, port = self.node.addresses.get(name, f"{name}:{self.node.port}").rpartition(":")
        return host, int(port)

    def node_url(self, name: str) -> str:
        """Base address of gandivad on this node."""
        return "http://{}:{}".format(*self.node_address(name))

    def node_socket(self, name: str) -> str:
        """Path of the node's unix socket."""
        return expand(self.node.socket, name)

    def node_state_dir(self, name: str) -> Path:
        """Where gandivad of this node keeps its state."""
        return Path(expand(self.node.state_dir, name))

    def slurm_uid(self) -> int:
        """The uid of controller.slurm_user; ConfigError where that user does not exist."""
        try:
            return pwd.getpwnam(self.controller.slurm_user).pw_uid
        except KeyError as err:
            text = f"controller.slurm_user: no user {self.controller.slurm_user!r} on this host"
            raise ConfigError(f"{text}; name the user slurmctld runs as (SlurmUser in slurm.conf)") from err


def expand(text: str, node: str) -> str:
    """Replace %n by the node's name and %% by %."""
    return text.replace("%%", "\0").replace("%n", node).replace("\0", "%")


def find_config(environ: Mapping[str, str] | None = None) -> Path:
    """Where the file lies: $GANDIVA_CONF, beside $SLURM_CONF, /etc/slurm; ConfigError when it is nowhere."""
    environ = os.environ if environ is None else environ
    if environ.get(CONF_ENV):
        return Path(environ[CONF_ENV])
    places = [Path(DEFAULT_DIRECTORY) / CONF_NAME]
    if environ.get(SLURM_CONF_ENV):
        places.insert(0, Path(environ[SLURM_CONF_ENV]).parent / CONF_NAME)
    for place in places:
        if place.exists():
            return place
    tried = ", ".join(str(place) for place in places)
    raise ConfigError(f"no {CONF_NAME}: looked at {tried}; write one, or name it with -f or ${CONF_ENV}")


def load_config(path: str | os.PathLike[str] | None = None) -> Config:
    """Read and check the file; ConfigError has one line for each thing that is wrong."""
    file = Path(path) if path is not None else find_config()
    raw, lines = parse(_read(file), file)
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: expected keys and values ({_allowed(Config)}), got {_shown(raw)}")
    for sentence in _drop_unused(raw, file, lines):
        log.info("%s", sentence)
    try:
        return Config.model_validate(raw)
    except ValidationError as err:
        # A list whose items are wrong is reported as too short besides.
        details = [item for item in err.errors() if item["type"] != "too_short" or not item["input"]]
        raise ConfigError("\n".join(_sentence(file, lines, detail) for detail in details)) from err


#: Keys of former releases by section: the policy decides what they once did.
_UNUSED = {"moves": ("at_once", "balance_percent", "faster_percent"), "packing": ("trial_quanta", "retry_s")}

_SECTIONS: dict[tuple[str, ...], type[BaseModel]] = {
    ("controller",): ControllerConfig,
    ("node",): NodeConfig,
    ("slurm",): SlurmConfig,
    ("moves",): MovesConfig,
    ("packing",): PackingConfig,
    ("metrics",): MetricsConfig,
    ("web",): WebConfig,
}


def outdated(path: str | os.PathLike[str] | None = None) -> list[str]:
    """Return what the file says that means nothing any more, or something else, with the line of each."""
    file = Path(path) if path is not None else find_config()
    raw, lines = parse(_read(file), file)
    return [*_drop_unused(raw, file, lines)] if isinstance(raw, dict) else []


def _drop_unused(raw: dict[str, Any], file: Path, lines: Lines) -> Iterator[str]:
    """Take out what has no effect any more, and yield a sentence on each."""
    if raw.get("policy") == "":  # so said the example when this meant the rules of the engine
        del raw["policy"]
        yield f"{file}: policy is empty: {Config.model_fields['policy'].default} decides"
    for name, keys in _UNUSED.items():
        section = raw.get(name)
        told = section if isinstance(section, dict) else {}
        for key in keys:
            if told.pop(key, None) is not None:
                at = f"{file}:{lines.get((name, key), 1)}"
                yield f"{at}: {name}.{key} has no effect any more, the policy decides: leave it out"
    moves = raw.get("moves")
    if isinstance(moves, dict) and (moves.get("min_run_s") or moves.get("per_hour")):
        yield f"{file}: moves.min_run_s and per_hour bound the policy now, and jobs wait; 0: it decides"


def _read(file: Path) -> str:
    try:
        with open(file, encoding="utf-8") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            if mode & 0o002:
                raise ConfigError(f"{file}: everybody may write it (mode {mode & 0o7777:o}); chmod o-w it")
            text = stream.read(MAX_BYTES + 1)
    except OSError as err:
        raise ConfigError(f"{file}: {err.strerror}; name another with -f or ${CONF_ENV}") from err
    except UnicodeDecodeError as err:
        raise ConfigError(f"{file}: not UTF-8 text") from err
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{file}: longer than {MAX_BYTES} bytes; is this a {CONF_NAME}?")
    return text


def _sentence(file: Path, lines: Lines, detail: Any) -> str:
    path = tuple(str(part) for part in detail["loc"] if part != "[key]")
    known = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in lines), ())
    where = f"{file}:{lines[known]}" if known else str(file)
    return f"{where}: {'.'.join(path)}: {_complaint(detail, path)}"


def _complaint(detail: Any, path: tuple[str, ...]) -> str:
    kind, got = detail["type"], _shown(detail["input"])
    if kind == "extra_forbidden":
        return f"unknown key; allowed: {_allowed(_section(path[:-1]))}"
    if kind == "missing":
        return f"missing; allowed here: {_allowed(_section(path[:-1]))}"
    if kind == "model_type":
        return f"expected keys and values ({_allowed(_section(path))}), got {got}"
    if kind in ("tuple_type", "too_short"):
        return f"expected a list with at least one item, got {got}"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "string_pattern_mismatch":
        pattern, meaning = detail["ctx"]["pattern"], "a name of letters, digits, _ . -"
        if "/" in pattern:
            meaning = f"an absolute path{' with %j' * ('%j' in pattern)}{' or nothing' * ('?' in pattern)}"
        return f"expected {meaning}, got {got}"
    if kind == "dict_type":
        return f"expected names and their values, as {{NAME: …}}, got {got}"
    message = detail["msg"].replace("Input should be", "expected")
    return f"{message}{_range(path)}, got {got}"


def _range(path: tuple[str, ...]) -> str:
    field = _section(path[:-1]).model_fields.get(path[-1]) if path else None
    bounds = {type(item).__name__: item for item in (field.metadata if field else ())}
    if {"Ge", "Le"} <= bounds.keys():
        return f" (allowed: {bounds['Ge'].ge:g} .. {bounds['Le'].le:g})"
    return ""


def _section(path: tuple[str, ...]) -> type[BaseModel]:
    return _SECTIONS.get(path, Config)


def _allowed(section: type[BaseModel]) -> str:
    return ", ".join(section.model_fields)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
