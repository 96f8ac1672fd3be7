"""gandiva.yaml: typed, with defaults, and errors that name file, line, key and what is allowed.

All daemons and the command line read the same file. Durations are in seconds, as the keys' names say.
`slurm_conf/gandiva.yaml` is this file's commented form.
"""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from gandiva_slurm.config_file import CONF_ENV as CONF_ENV
from gandiva_slurm.config_file import find_config as find_config
from gandiva_slurm.config_file import read
from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.sections import (
    ControllerConfig,
    IdleConfig,
    MetricsConfig,
    MovesConfig,
    Name,
    NodeConfig,
    PackingConfig,
    Parked,
    Section,
    SlurmConfig,
    WebConfig,
)
from gandiva_slurm.yaml_lines import Lines, parse

#: So many things that are wrong are told one by one.
MOST_COMPLAINTS = 20

NS_PER_S = 1_000_000_000
#: refusal_bound_s: auto. So often was it asked, and so many turns did the others lose, at the least.
AUTO_DEADLINES, AUTO_QUANTA = 4, 10

log = logging.getLogger(__name__)


class Config(Section):
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
    #: an attached job that is parked is written to disk when it has held its GPUs for so long since
    checkpoint_parked: Literal["never"] | Annotated[float, Field(ge=1, le=604800)] = "never"
    #: where munged listens; empty = munge's own default
    munge_socket: str = Field(default="", pattern=r"^(/.*)?$")
    controller: ControllerConfig
    node: NodeConfig = NodeConfig()
    slurm: SlurmConfig = SlurmConfig()
    moves: MovesConfig = MovesConfig()
    packing: PackingConfig = PackingConfig()
    idle: IdleConfig = IdleConfig()
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


def load_config(path: str | os.PathLike[str] | None = None) -> Config:
    """Read and check the file; ConfigError has a line for each of the first things that are wrong."""
    file = Path(path) if path is not None else find_config()
    raw, lines = parse(read(file), file)
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: expected keys and values ({_allowed(Config)}), got {_shown(raw)}")
    for sentence in _drop_unused(raw, file, lines):
        log.info("%s", sentence)
    try:
        return Config.model_validate(raw)
    except ValidationError as err:
        # A list whose items are wrong is reported as too short besides.
        details = [item for item in err.errors() if item["type"] != "too_short" or not item["input"]]
        sentences = [_sentence(file, lines, detail) for detail in details[:MOST_COMPLAINTS]]
        if more := len(details) - len(sentences):
            sentences.append(f"{file}: {more} more like these")
        raise ConfigError("\n".join(sentences)) from err


#: Keys of former releases by section: the policy decides what they once did.
_UNUSED = {"moves": ("at_once", "balance_percent", "faster_percent"), "packing": ("trial_quanta", "retry_s")}

_SECTIONS: dict[tuple[str, ...], type[BaseModel]] = {
    ("controller",): ControllerConfig,
    ("node",): NodeConfig,
    ("slurm",): SlurmConfig,
    ("moves",): MovesConfig,
    ("packing",): PackingConfig,
    ("idle",): IdleConfig,
    ("metrics",): MetricsConfig,
    ("web",): WebConfig,
}


def outdated(path: str | os.PathLike[str] | None = None) -> list[str]:
    """Return what the file says that means nothing any more, or something else, with the line of each."""
    file = Path(path) if path is not None else find_config()
    raw, lines = parse(read(file), file)
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
