"""A small Slurm whose controller is away now and then: each node goes by its own stride meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.slicing.local import Gang, LocalStride
from tests.fake_world import FakeWorld


@dataclass
class OutageWorld(FakeWorld):
    """Nodes have a stride each, as gandivad has, and take over the policy's passes with each plan."""

    def __post_init__(self) -> None:
        super().__post_init__()
        quantum_ns = self.settings.quantum_ns
        self.strides = {name: LocalStride(gpus, quantum_ns) for name, gpus in self.nodes.items()}

    def led(self, quanta: int = 1) -> None:
        """So many quanta pass, at each of whose ends the policy decides."""
        for _ in range(quanta):
            self.cycle(self.settings.quantum_ns / 1e9)

    def alone(self, quanta: int = 1) -> None:
        """So many quanta pass without a controller."""
        for _ in range(quanta):
            self.now_ns += self.settings.quantum_ns
            for name, stride in self.strides.items():
                self._charge(name, self.settings.quantum_ns)
                stride.settle()
                held = [key for (where, key), proc in self.procs.items() if where == name and proc.is_on]
                runnable = [gang.key for gang in stride.gangs]
                chosen = stride.choose(runnable, (), (), held)
                for key in runnable:
                    self.procs[name, key].is_on = key in chosen
                    self.procs[name, key].state = states.RUNNING if key in chosen else states.SUSPENDED

    def cycle(self, dt_s: float = 1.0, reports: bool = True, twice: bool = False) -> list[Action]:
        """One cycle of the controller; nodes charge what was held until then, by themselves too."""
        for name in self.nodes:
            self._charge_stride(name, round(dt_s * 1e9))
        return super().cycle(dt_s, reports, twice)

    def held_s(self) -> Counter[str]:
        """GPU seconds that each user has held."""
        held: Counter[str] = Counter()
        for (_, key), proc in self.procs.items():
            held[self.jobs[key.job_id].user] += round(proc.held_ns / 1e9)
        return held

    def _charge(self, name: str, held_ns: int) -> None:
        self._charge_stride(name, held_ns)
        for (where, _), proc in self.procs.items():
            if where == name:
                proc.held_ns += proc.is_on * len(proc.gpus) * held_ns

    def _charge_stride(self, name: str, held_ns: int) -> None:
        for (where, key), proc in self.procs.items():
            if where == name and proc.is_on:
                self.strides[name].charge(key, held_ns, 0)

    def _publish(self) -> None:
        super()._publish()
        for name, stride in self.strides.items():
            places = [each for each in self.engine.plan_jobs(name) if (name, each.key) in self.procs]
            stride.set_gangs(
                [
                    Gang(JobKey(*each.key), each.user, each.tickets, each.gpus, each.submitted_ns)
                    for each in places
                ]
            )
            stride.adopt({job_id: (user, own) for job_id, user, own in self.engine.ahead(name)})
