"""What one gandivad is told at start, in the units its code uses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.config import NS_PER_S, Config
from gandiva_slurm.node import cgroups


@dataclass(frozen=True)
class NodeSettings:
    """One node's part of gandiva.yaml; the quantum holds until the first plan brings its own."""

    node: str
    host: str
    port: int
    socket: Path
    state_dir: Path
    #: whose signatures this node obeys
    obeyed_uids: frozenset[int]
    quantum_ns: int = 60 * NS_PER_S
    client_wait_ns: int = 120 * NS_PER_S
    park_deadline_ns: int = 30 * NS_PER_S
    #: how much longer it may take where the ranks are to save themselves
    save_deadline_ns: int = 300 * NS_PER_S
    max_park_ns: int = 3600 * NS_PER_S
    freeze_bound_ns: int = 300 * NS_PER_S
    #: the driver may move a process's memory to the host
    driver_checkpoint: bool = False
    #: how long a gang that does not park may hold its GPUs while others wait for them; 0 = for ever
    refusal_bound_ns: int = 600 * NS_PER_S
    #: how long after its bound a parked rank goes on by itself when this daemon is gone
    wake_grace_s: float = 60.0
    #: where jobs keep their checkpoints, %u the user and %j the job; "": where the client likes
    checkpoint_dir: str = ""
    #: how long the guard waits for a new gandivad before it thaws what the dead one froze
    guard_grace_ns: int = 30 * NS_PER_S
    #: a job's process on a GPU that was not given to the job is stopped, not only told of
    stops_strangers: bool = False
    #: part of a GPU's threads that an opportunistic job gets where MPS runs; 0: all
    mps_percent: int = 0
    mps_memory_percent: int = 0
    #: host memory that a rank of an opportunistic job may spill into beside a guaranteed one
    spill_bytes: int = 0
    #: memory of each GPU; 0: as NVML tells
    card_bytes: int = 0
    #: where control groups can be frozen; None: nowhere
    hierarchy: Path | None = None
    #: which devices are GPUs: auto (NVIDIA's), none, or how their files' names begin, before a GPU's number
    gpu_files: str = "none"
    #: silence of both gandivactld and slurmctld after which jobs are frozen; 0: they never are
    isolation_ns: int = 0
    #: GPU time of a job after which it is written to disk while it is parked (`behind`); 0: it never is
    checkpoint_parked_ns: int = 0
    #: where DCGM's exporter and jobstats look for who holds each GPU; None: nothing is written
    dcgm_mapping_dir: Path | None = None
    gpustat_dir: Path | None = None
    #: where images of processes lie; None: none are made (ADR 0054)
    image_dir: Path | None = None
    #: images of GPU programs are made, too, where the node has proven them
    image_cards: bool = False
    #: bytes of the largest image
    image_most: int = 64 << 30
    #: now and then one is made of a parked job that knows no other way, in case this node is lost
    image_parked: bool = False
    #: each node has images of its own, and a job's is fetched from where that was
    are_images_fetched: bool = False

    @property
    def root_socket(self) -> Path:
        """Where root's hook of slurmstepd speaks, beside the socket of all: nobody else can connect."""
        return self.socket.with_name(self.socket.name + ".root")

    @classmethod
    def of(cls, config: Config, node: str) -> NodeSettings:
        """Take a node's settings out of the configuration."""
        host, port = config.node_address(node)
        part = config.node
        return cls(
            node=node,
            host=host,
            port=port,
            socket=Path(config.node_socket(node)),
            state_dir=config.node_state_dir(node),
            obeyed_uids=frozenset({0, config.slurm_uid()}),
            quantum_ns=config.quantum_ns,
            client_wait_ns=round(part.client_wait_s * NS_PER_S),
            park_deadline_ns=round(part.park_deadline_s * NS_PER_S),
            save_deadline_ns=round(part.save_deadline_s * NS_PER_S),
            max_park_ns=round(part.max_park_s * NS_PER_S),
            freeze_bound_ns=round(part.freeze_bound_s * NS_PER_S),
            driver_checkpoint=part.driver_checkpoint,
            refusal_bound_ns=config.refusal_bound_ns,
            wake_grace_s=part.wake_grace_s,
            checkpoint_dir=part.checkpoint_dir,
            stops_strangers=part.strangers == "stop",
            mps_percent=part.mps_percent,
            mps_memory_percent=part.mps_memory_percent,
            spill_bytes=part.spill_mib << 20,
            card_bytes=part.gpu_memory_mib << 20,
            hierarchy=cgroups.hierarchy(),
            gpu_files=part.gpu_files,
            isolation_ns=0 if config.isolation == "never" else round(config.isolation * NS_PER_S),
            checkpoint_parked_ns=0
            if config.checkpoint_parked == "never"
            else round(config.checkpoint_parked * NS_PER_S),
            dcgm_mapping_dir=Path(part.dcgm_mapping_dir) if part.dcgm_mapping_dir else None,
            gpustat_dir=Path(part.gpustat_dir) if part.gpustat_dir else None,
            image_dir=Path(part.image_dir) if part.process_images else None,
            image_cards=part.process_images_gpu,
            image_most=round(part.image_most_gib * (1 << 30)),
            image_parked=part.image_parked,
            are_images_fetched=part.image_store == "nodes",
        )
