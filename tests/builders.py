"""Short ways to make what tests talk about."""

from __future__ import annotations

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import Association, JobOptions, SlurmJob, SlurmNode
from gandiva_slurm.slicing.local import Gang, LocalStride

SECOND_NS = 10**9
#: One ticket in the parts that plans use.
TICKET = 10**6
ACCOUNT = "research"


def a_gang(
    job_id: int, user: str, gpus: tuple[int, ...], tickets: int = 100 * TICKET, restart: int = 0
) -> Gang:
    """A resident; jobs are submitted in the order of their ids."""
    return Gang(JobKey(job_id, restart), user, tickets, gpus, job_id * SECOND_NS)


def a_job(job_id: int, user: str = "user1", gpus: int = 1, **fields: object) -> SlurmJob:
    """A held Gandiva job; options by their own names (`tickets`, `types`, …), the rest are SlurmJob's.

    `span` is the number of nodes it asks for, `gpus` the whole job's GPUs.
    """
    option_names = JobOptions.__dataclass_fields__.keys() - {"priority", "nodes"}
    options = {name: fields.pop(name) for name in list(fields) if name in option_names}
    options["nodes"] = span = fields.pop("span", 1)
    if "gandiva_priority" in fields:
        options["priority"] = fields.pop("gandiva_priority")
    values: dict[str, object] = {
        "job_id": job_id,
        "user": user,
        "uid": 1000,
        "account": ACCOUNT,
        "partition": "gandiva",
        "state": "PENDING",
        "reason": "JobHeldAdmin",
        "name": f"train{job_id}",
        "submit_s": 1000 + job_id,
        "node_count": span,
        "options": JobOptions(gpus=gpus, **options),  # type: ignore[arg-type]
    }
    return SlurmJob(**{**values, **fields})  # type: ignore[arg-type]


def a_node(name: str = "n1", gpus: int = 4, slots_per_gpu: int = 4, **fields: object) -> SlurmNode:
    """An idle node of the gandiva partition."""
    values: dict[str, object] = {
        "name": name,
        "state": frozenset({"IDLE"}),
        "gpu_type": "v100",
        "slots": gpus * slots_per_gpu,
        "cpus": 64,
        "memory_mib": 256_000,
        "partitions": ("gandiva",),
    }
    return SlurmNode(**{**values, **fields})  # type: ignore[arg-type]


def an_association_tree(**shares: int) -> tuple[Association, ...]:
    """One account below the root; its users with their shares."""
    users = [Association(ACCOUNT, user, "", share) for user, share in shares.items()]
    return (Association("root", "", "", 1), Association(ACCOUNT, "", "root", 1), *users)


class Slicer:
    """A node of perfect clients: runs LocalStride round by round and books what each user got."""

    def __init__(self, gpus: int, quantum_ns: int = SECOND_NS, yields: bool = False) -> None:
        self.local = LocalStride(gpus, quantum_ns)
        #: whether those who held the last round are asked a little later, as gandivad does
        self.yields = yields
        self.rounds: list[tuple[JobKey, ...]] = []
        self.by_user: dict[str, int] = {}
        self.by_job: dict[int, int] = {}

    def run(self, rounds: int, overrun_ns: dict[int, int] | None = None) -> Slicer:
        """Run rounds; jobs named in `overrun_ns` hold their GPUs that much longer than the quantum."""
        gangs = {gang.key: gang for gang in self.local.gangs}
        for _ in range(rounds):
            last = self.rounds[-1] if self.yields and self.rounds else ()
            chosen = self.local.choose(list(gangs), (), (), last)
            self.rounds.append(chosen)
            for key in chosen:
                over = (overrun_ns or {}).get(key.job_id, 0)
                held = self.local.quantum_ns + over
                is_shared = self.local.mate_of(key) in chosen
                self.local.charge(key, held, over, is_shared)
                work = held * len(gangs[key].gpus) // (1 + is_shared)
                user = gangs[key].user
                self.by_user[user] = self.by_user.get(user, 0) + work
                self.by_job[key.job_id] = self.by_job.get(key.job_id, 0) + work
            self.local.settle()
        return self

    def forget(self) -> Slicer:
        """Start the books anew."""
        self.rounds, self.by_user, self.by_job = [], {}, {}
        return self

    def shares(self) -> dict[str, float]:
        """Each user's part of what was given."""
        total = sum(self.by_user.values())
        return {user: work / total for user, work in self.by_user.items()}
