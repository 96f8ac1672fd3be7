"""Packs over whatever happens to jobs and controller: invariants hold after each cycle, and all settles."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gandiva_slurm.engine import invariants
from gandiva_slurm.engine.engine import Engine, EngineSettings
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.policy.room import need
from tests.builders import SECOND_NS
from tests.sim.packing_world import CARD_BYTES, TABLE, PackingWorld
from tests.slow import drawn

GPUS, SLOTS = 2, 4
GIB = 1 << 30
SETTINGS = EngineSettings(quantum_ns=5 * SECOND_NS)


class PackMachine(RuleBasedStateMachine):
    """One node; jobs come, end, are requeued; the controller is started anew, told to stop packing, or on."""

    def __init__(self) -> None:
        super().__init__()
        self.world = PackingWorld(GPUS, SETTINGS, noise=0.05)

    @precondition(lambda self: len(self.world.trains) < 10)
    @rule(
        gpu=st.integers(0, GPUS - 1),
        model=st.sampled_from(sorted(TABLE)),
        pack=st.sampled_from(["auto", "auto", "never"]),
    )
    def a_job_comes(self, gpu: int, model: str, pack: str) -> None:
        if sum(train.gpu == gpu for train in self.world.trains.values()) < SLOTS:
            self.world.add(gpu, model, pack=pack)
            self.world.run(2)

    @precondition(lambda self: self.world.trains)
    @rule(which=st.integers(0, 9))
    def a_job_ends(self, which: int) -> None:
        keys = sorted(self.world.trains)
        self.world.end(keys[which % len(keys)])
        self.world.run(1)

    @precondition(lambda self: self.world.trains)
    @rule(which=st.integers(0, 9), peak=st.sampled_from([0, 1, GIB, 6 * GIB, 9 * GIB, 13 * GIB]))
    def its_peak_is_another(self, which: int, peak: int) -> None:
        keys = sorted(self.world.trains)
        self.world.trains[keys[which % len(keys)]].peak_bytes = peak
        self.world.run(1)

    @rule(seconds=st.integers(1, 60))
    def time_passes(self, seconds: int) -> None:
        self.world.run(seconds)

    @rule()
    def the_controller_is_started_anew(self) -> None:
        data = json.loads(json.dumps(self.world.engine.to_json()))
        engine = Engine.from_json(self.world.engine.settings, data)
        assert engine.state.pairs == self.world.engine.state.pairs
        self.world.engine = engine

    @rule(packing=st.booleans())
    def the_site_decides(self, packing: bool) -> None:
        self.world.engine.settings = replace(SETTINGS, packing=packing)

    @invariant()
    def packs_fit_into_their_gpus(self) -> None:
        sightings = {key: seen for (_, key), seen in self.world.engine.state.sightings.items()}
        for pack in self.world.engine.state.pairs.packs:
            peaks = [sightings[JobKey(job_id, 0)].measured.peak_bytes for job_id in pack.jobs]
            assert all(peaks)
            assert sum(need(peak) for peak in peaks) <= CARD_BYTES

    def teardown(self) -> None:
        self.world.engine.settings = SETTINGS
        self.world.run(500)
        self.world.told.clear()
        self.world.run(200)
        assert self.world.told == []
        model = {key.job_id: train.model for key, train in self.world.trains.items()}
        for pack in self.world.engine.state.pairs.packs:
            assert self.world.truth(model[pack.first], model[pack.second]) > 1.0
        assert invariants.violations(self.world.engine) == []


TestPackMachine = PackMachine.TestCase
TestPackMachine.settings = settings(max_examples=drawn(15), stateful_step_count=15)
