"""A node in virtual time whose jobs train as fast as a table says: the engine above, the fast clock below."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gandiva_slurm.engine import invariants
from gandiva_slurm.engine.engine import Engine, EngineSettings
from gandiva_slurm.engine.local import Gang, LocalStride
from gandiva_slurm.model import event as ev
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.node.gauge import ALONE, PACKED, Gauge
from tests.builders import SECOND_NS, a_job, a_node

#: Two of one model on a GPU: their normalised rates together (Gandiva, table of packing; at most 2).
TABLE = {
    "vae": 2.0,
    "superres": 2.0,
    "rhn": 1.46,
    "scrnn": 1.39,
    "mi-lstm": 1.17,
    "lstm": 0.84,
    "resnet50": 0.87,
    "resnext50": 0.89,
}
TICK_NS = SECOND_NS
#: Memory of each GPU.
CARD_BYTES = 16 << 30


@dataclass
class Train:
    """A job's truth."""

    key: JobKey
    user: str
    gpu: int
    model: str
    #: mini-batches a second alone
    speed: float
    steps: float = 0.0
    gauge: Gauge = field(default_factory=Gauge)
    #: of GPU memory; 0: not told yet
    peak_bytes: int = 1
    #: while it is parked
    held_bytes: int = 0
    ooms: int = 0


class PackingWorld:
    """One node `n1`; jobs run from the start, bound to the GPU they are given."""

    def __init__(self, gpus: int, settings: EngineSettings, noise: float = 0.0, seed: int = 1) -> None:
        self.engine = Engine(settings)
        self.local = LocalStride(gpus, settings.quantum_ns)
        self.now_ns = 1_000_000 * SECOND_NS
        self.trains: dict[JobKey, Train] = {}
        self.held: tuple[JobKey, ...] = ()
        self.told: list[str] = []
        self.charged: dict[int, float] = {}
        self._next_id = 1
        self._noise, self._random = noise, random.Random(seed)
        self._quantum_end_ns = 0
        self._news: list[ev.Event] = [ev.NodeSeen(a_node("n1", gpus))]

    def add(self, gpu: int, model: str, array: int = 0, speed: float = 10.0, **options: object) -> int:
        """A job that Slurm has running here; tasks of one array are one model to the engine."""
        job_id, self._next_id = self._next_id, self._next_id + 1
        fields = {"array_job_id": array} if array else {}
        job = a_job(job_id, f"user{job_id}", state="RUNNING", reason="", nodes=("n1",), **fields, **options)
        self.trains[JobKey(job_id, 0)] = Train(JobKey(job_id, 0), job.user, gpu, model, speed)
        self._news.append(ev.JobSeen(job))
        return job_id

    def end(self, key: JobKey, state: str = "COMPLETED") -> None:
        """A job is over; its processes are gone."""
        del self.trains[key]
        self.held = tuple(held for held in self.held if held != key)
        end_s = self.now_ns // SECOND_NS
        self._news += [ev.JobGone(key.job_id, state, end_s, "0:0"), ev.ResidentGone("n1", key)]

    def run(self, seconds: int) -> None:
        """Let time pass; a report and a cycle a second."""
        for _ in range(seconds):
            self._cycle()
            self._slice()
            self._train()
            self.now_ns += TICK_NS

    def packs(self) -> dict[tuple[str, str], bool]:
        """The models that are packed now, and whether it is a trial."""
        model = {key.job_id: train.model for key, train in self.trains.items()}
        packs = self.engine.state.pairs.packs
        return {(model[p.first], model[p.second]): p.is_trial for p in packs}

    def truth(self, one: str, two: str) -> float:
        """What two models come to together: the mean of what each comes to with its like."""
        return (TABLE[one] + TABLE[two]) / 2

    def _cycle(self) -> None:
        seen = [self._report(train) for train in self.trains.values()]
        actions = self.engine.handle([*self._news, *seen, ev.CycleTick()], self.now_ns)
        self._news = []
        self.told += [action.code for action in actions if action.code.startswith("Pack")]
        assert invariants.violations(self.engine) == []

    def _report(self, train: Train) -> ev.ResidentSeen:
        state = "RUNNING" if train.key in self.held else "SUSPENDED"
        mate = self._mate(train)
        reason = ("Packed" if mate else "Running") if state == "RUNNING" else "Parked"
        detail = f"shares its GPU with job {mate.key.job_id}" if mate else ""
        gauge = train.gauge
        rates = {"rate_alone": gauge.alone.rate, "rate_packed": gauge.packed.rate, "rate_noise": gauge.noise}
        memory = {"card_bytes": CARD_BYTES, "peak_bytes": train.peak_bytes, "ooms": train.ooms}
        memory["held_bytes"] = train.held_bytes if state == "SUSPENDED" else 0
        told = Measured(**rates, **memory)
        return ev.ResidentSeen("n1", train.key, state, (train.gpu,), reason, detail, measured=told)

    def _slice(self) -> None:
        plan = {place.key: place for place in self.engine.plan_jobs("n1")}
        old = {gang.key: gang.mate for gang in self.local.gangs}
        gangs = [
            Gang(k, p.user, p.tickets, p.gpus, p.submitted_ns, p.mate, p.is_opportunistic)
            for k, p in plan.items()
        ]
        for gang in gangs:
            if old.get(gang.key, 0) != gang.mate:
                self.trains[gang.key].gauge.packed = Gauge().packed
        self.local.set_gangs(gangs)
        if self.now_ns >= self._quantum_end_ns or any(old[g.key] != g.mate for g in gangs if g.key in old):
            self.local.settle()
            self.held = self.local.choose(list(plan), (), (), self.held)
            assert invariants.round_is_sound(self.local.gangs, self.local.gpus, self.held) == []
            self._quantum_end_ns = self.now_ns + self.local.quantum_ns

    def _train(self) -> None:
        for train in self.trains.values():
            mate = self._mate(train)
            condition = "" if train.key not in self.held else PACKED if mate else ALONE
            train.gauge.look(int(train.steps), self.now_ns, condition)
            if condition:
                part = self.truth(train.model, mate.model) / 2 if mate else 1.0
                train.steps += train.speed * part * (1 + self._random.gauss(0, self._noise))
                self.local.charge(train.key, TICK_NS, 0, mate is not None)
                half = 2 if mate else 1
                job_id = train.key.job_id
                self.charged[job_id] = self.charged.get(job_id, 0.0) + 1 / half

    def _mate(self, train: Train) -> Train | None:
        mate = self.local.mate_of(train.key)
        return self.trains[mate] if mate in self.held and train.key in self.held else None
