"""The sections of gandiva.yaml, each with its keys, their defaults and what is allowed.

Durations are in seconds, as the keys' names say. The whole file is `config.Config`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Port = Annotated[int, Field(ge=1, le=65535)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/")]
#: Where a secret may be sent in clear text.
LOOPBACK = ("127.0.0.1", "localhost")
#: The longest path of a unix socket, in bytes, its final zero aside.
MOST_PATH = 107
_ADDRESS = re.compile(r"^(?P<host>[^:\s]+):(?P<port>\d{1,5})$")


class Section(BaseModel):
    """Keys that are not known are refused, and values are what they are written as."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def is_address(text: str) -> bool:
    """True for host:port with a port there may be."""
    match = _ADDRESS.match(text)
    return match is not None and 1 <= int(match["port"]) <= 65535


class ControllerConfig(Section):
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


class SlurmConfig(Section):
    """How gandivactld talks with Slurm."""

    #: pyslurm or Slurm's own commands; auto takes pyslurm where it works with this slurmctld
    backend: Literal["auto", "pyslurm", "commands"] = "auto"


class NodeConfig(Section):
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
    #: the same of its memory, whatever takes it, and one step down in priority
    mps_memory_percent: int = Field(default=0, ge=0, le=100)
    #: host memory that an opportunistic job beside a guaranteed one goes on in where its GPU is full; 0: none
    spill_mib: int = Field(default=0, ge=0, le=1 << 24)
    #: memory of each GPU, where NVML does not tell it; 0: as NVML tells
    gpu_memory_mib: int = Field(default=0, ge=0, le=1 << 24)
    #: directories for DCGM's exporter and for jobstats: which job holds each GPU (ADR 0056); empty: none
    dcgm_mapping_dir: str = Field(default="", pattern=r"^(/.*)?$")
    gpustat_dir: str = Field(default="", pattern=r"^(/.*)?$")
    #: jobs that know no other way are moved by an image of their processes (ADR 0054)
    process_images: bool = False
    #: those that have a GPU open, too, where the node has proven that with its driver (ADR 0073)
    process_images_gpu: bool = False
    #: root's directory for them
    image_dir: str = Field(default="", pattern=r"^(/.*)?$")
    #: shared: all nodes see it at this path; nodes: each has its own, and fetches a job's from where that was
    image_store: Literal["shared", "nodes"] = "shared"
    #: an image larger than this is not made; GiB
    image_most_gib: float = Field(default=64, ge=0.01, le=65536)
    #: an image of each is made now and then while it is parked, from which it goes on when its node is lost
    image_parked: bool = False
    #: node name -> host:port, where that is not NAME:port
    addresses: dict[Name, str] = {}

    @field_validator("refusal_bound_s", mode="before")
    @classmethod
    def _auto(cls, value: object) -> object:
        return None if value == "auto" else value

    @model_validator(mode="after")
    def _images_lie_somewhere(self) -> NodeConfig:
        if self.process_images and not self.image_dir:
            raise ValueError("process_images: name root's directory for them in image_dir")
        if self.process_images_gpu and not self.process_images:
            raise ValueError("process_images_gpu: it needs process_images")
        if self.image_parked and not self.process_images:
            raise ValueError("image_parked: it needs process_images")
        if self.image_parked and self.image_store == "nodes":
            raise ValueError("image_parked: a node that is lost takes its images along; image_store: shared")
        return self

    @field_validator("addresses")
    @classmethod
    def _host_and_port(cls, value: dict[str, str]) -> dict[str, str]:
        for node, address in value.items():
            if not is_address(address):
                raise ValueError(f"{node}: expected host:port with a port of 1..65535, got {address!r}")
        return value


class MovesConfig(Section):
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


class PackingConfig(Section):
    """Whether two jobs may share a GPU at the same time, and what that must bring (ADR 0023)."""

    enabled: bool = True
    #: what the speeds of both must sum to, each as a part of that alone, noise aside; 1: what turns give
    floor: float = Field(default=1.05, ge=1, le=2)


class IdleConfig(Section):
    """What is done about jobs that hold GPUs and do nothing with them, by NVML (ADR 0063); off by default."""

    #: so long of the time it holds its GPUs they may be idle; then that is told. 0: never
    tell_after_s: float = Field(default=0, ge=0, le=604800)
    #: when they have been idle for so long besides, all others go before it; 0: never
    park_after_s: float = Field(default=0, ge=0, le=604800)
    #: one that can be saved is requeued then where others need its room; else it is not moved while it idles
    requeue: bool = False

    @model_validator(mode="after")
    def _told_first(self) -> IdleConfig:
        if (self.park_after_s and not self.tell_after_s) or (self.requeue and not self.park_after_s):
            raise ValueError("a job is told first (tell_after_s), then parked (park_after_s), then requeued")
        return self


class MetricsConfig(Section):
    """What `gandiva metrics` shows a Prometheus, and where (docs/metrics.md)."""

    #: host:port; empty: it does not serve
    listen: str = ""
    #: how often gandivactld is asked, however often Prometheus asks here
    interval_s: float = Field(default=15, ge=1, le=3600)
    #: figures of each user, too
    users: bool = False

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        if value and not is_address(value):
            raise ValueError(f"expected host:port with a port of 1..65535, or nothing, got {value!r}")
        return value


class WebConfig(Section):
    """Where `gandiva web` serves its API and its page, and how it knows who asks (docs/web.md)."""

    #: the path of a unix socket, or a host:port of the loopback; empty: it does not serve
    listen: str = ""
    #: the request header in which the reverse proxy names the user
    user_header: str = Field(default="X-Remote-User", pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$")
    #: a file with the secret that the proxy sends along; needed on host:port
    secret_file: str = Field(default="", pattern=r"^(/.*)?$")
    #: Slurm's key of auth/jwt: who shows a token that it signed is that user, without a proxy
    jwt_key_file: str = Field(default="", pattern=r"^(/.*)?$")

    @field_validator("listen")
    @classmethod
    def _socket_or_loopback(cls, value: str) -> str:
        if value.startswith("/"):
            if len(value.encode()) > MOST_PATH:
                raise ValueError(f"the path of a socket has {MOST_PATH} bytes at most")
        elif value and not (is_address(value) and value.rpartition(":")[0] in LOOPBACK):
            raise ValueError(f"expected a socket's path or 127.0.0.1:port, behind a proxy, got {value!r}")
        return value

    @model_validator(mode="after")
    def _secret_beside_a_port(self) -> WebConfig:
        if self.listen and not self.listen.startswith("/") and not (self.secret_file or self.jwt_key_file):
            needed = "secret_file or jwt_key_file is needed where listen is a port"
            raise ValueError(f"{needed}: anyone here may connect to it")
        return self
