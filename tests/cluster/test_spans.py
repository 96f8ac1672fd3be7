"""Gangs over two nodes on a real Slurm: shares, losses, overlaps, and what dies in the middle.

One cluster for the module. Its first tests watch one run: a gang of 2 x 2 GPUs beside four jobs of one GPU,
three users. The later ones kill one daemon after the other under a gang that takes turns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_alone import Reference, run_references, start_inside
from gandiva_slurm.mini.demo_jobs import DemoJob
from tests import patience
from tests.cluster.fleet import START_S, TRAIN, Fleet, changed_ns, own_cluster, wait_for, window_of
from tests.records import holds_of, read_lines
from tests.slow import long_form, slow
from tests.span_figures import Parks, held_s, overlaps, parks_of

LIGHT_GANG = Path(__file__).with_name("light_gang.py")
NODES = ("n1", "n2")
QUANTUM_S = 0.5
#: How long the shares are measured at least, and at most; GANDIVA_SPAN_WINDOW=330: some two hundred parks.
WINDOW_S, MOST_S = float(os.environ.get("GANDIVA_SPAN_WINDOW", "15")), 150.0
#: What the window is to come to, and what is taken of one that a stall cut short (`sharing.PARTS`).
FAIR, NEARLY = (
    dict.fromkeys(("user1", "user2", "user3"), pytest.approx(1 / 3, rel=rel)) for rel in (0.05, 0.10)
)
#: Losses are compared with those of runs alone up to here; parks come every second or two, some 20 steps.
MOST_STEPS = 3000 if os.environ.get("GANDIVA_SPAN_WINDOW") else 120
#: Jobs of one GPU: a is user2's, b is user3's.
SINGLE = ("a1", "b1", "a2", "b2")
LATER = ("gandivad:n2", "slurmctld", "slurmd:n2")
VICTIMS = [
    "gandivactld",
    "gandivad:n1",
    *(long_form(name, why="15 s; the two above die in make test") for name in LATER),
]

#: Rank and world as srun numbers them; the batch script runs on the first node, where rank 0 is.
BY_SRUN = f"""\
export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID)) WORLD_SIZE=$SLURM_NTASKS
srun sh -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec {TRAIN} ARGUMENTS'
"""
#: The same, light: it starts at once, so that nothing has to be given back for a long start-up.
LIGHT = """\
export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID)) WORLD_SIZE=$SLURM_NTASKS
srun sh -c 'RANK=$SLURM_PROCID exec python light_gang.py NAME NAME.stop'
"""
LIGHT_ALONE = """\
export RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=0
exec python light_gang.py NAME NAME.stop
"""
BY_TORCHRUN = """\
export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID))
srun --ntasks-per-node=1 sh -c 'exec torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d \\
    --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT --local-addr=$(hostname -i) \\
    -m gandiva_slurm.mini.workloads.train ARGUMENTS'
"""


@dataclass
class SpanRun:
    """A gang over nodes and what runs beside it."""

    fleet: Fleet
    jobs: dict[str, tuple[str, int]] = field(default_factory=dict)
    window_ns: tuple[int, int] = (0, 0)
    #: what is parked after that may have no ranks any more
    until_ns: int = 0

    def gang(self, user: str, name: str, script: str = BY_SRUN, tasks: int = 2) -> int:
        """Submit a gang of 2 x 2 ranks that trains until it is told to stop."""
        arguments = f"--model mlp --wait-ms 50 --seed 3 --out ~/{name} --stop-file ~/{name}.stop"
        flags = ("--nodes=2", f"--ntasks-per-node={tasks}", f"--job-name={name}", f"--output={name}.out")
        lines = script.replace("ARGUMENTS", arguments).replace("NAME", name)
        number = self.fleet.submit(user, lines, *flags, gpus=2)
        self.jobs[name] = (user, number)
        return number

    def light(self, user: str, name: str, gpus: int) -> int:
        """Submit a light job of one node."""
        lines = LIGHT_ALONE.replace("NAME", name)
        number = self.fleet.submit(user, lines, f"--job-name={name}", gpus=gpus)
        self.jobs[name] = (user, number)
        return number

    def single(self, user: str, name: str, seed: int) -> int:
        """Submit a job of one GPU."""
        arguments = f"--model mlp --wait-ms 50 --seed {seed} --out ~/{name} --stop-file ~/{name}.stop"
        number = self.fleet.submit(user, f"exec {TRAIN} {arguments}", f"--job-name={name}")
        self.jobs[name] = (user, number)
        return number

    def stop(self) -> None:
        """Let all of them end after a step, and wait for that."""
        for name, (user, _) in self.jobs.items():
            self.fleet.stop(user, name)
        for _, number in self.jobs.values():
            self.fleet.wait_ended(number, "COMPLETED", deadline_s=90)

    def parks(self, name: str = "gang") -> Parks:
        """The gang's parks, by the controller's record."""
        record = read_lines(self.fleet.mini.path("spool", "gandivactld", "spans.jsonl"))
        return parks_of(record, self.jobs[name][1])

    def wait_parks(self, more: int, name: str = "gang", deadline_s: float = 90) -> None:
        """Wait until the gang has been parked so often from now on."""
        begin = len(self.parks(name).good)
        wait_for(
            lambda: len(self.parks(name).good) >= begin + more,
            lambda: f"{more} parks of {name}\n{self.fleet.told_of(self.jobs[name][1])}",
            deadline_s,
        )

    def shares(self, window_ns: tuple[int, int]) -> dict[str, float]:
        """Each user's part of what was held on both nodes, by their own logs."""
        found: dict[str, float] = {}
        for node in NODES:
            holds = holds_of(self.fleet.events(node), window_ns[1])
            for user, seconds in held_s(holds, window_ns).items():
                found[user] = found.get(user, 0.0) + seconds
        total = sum(found.values()) or 1.0
        return {user: seconds / total for user, seconds in found.items()}

    def stops(self, name: str = "gang") -> dict[str, list[set[int]]]:
        """At which boundaries its ranks stopped, by node and park, before they were told to end."""
        number, until_ns = self.jobs[name][1], self.until_ns or 1 << 63
        return {
            node: [
                {seq for seqs in line["seqs"] for seq in seqs}
                for line in self.fleet.events(node)
                if line["event"] == "parked" and line["job"] == number and line["mono_ns"] < until_ns
            ]
            for node in NODES
        }

    def boundaries(self, name: str = "gang") -> set[int]:
        """The boundaries at which it stopped on both nodes."""
        one, two = (set().union(*parks) for parks in self.stops(name).values())
        return one & two

    def is_fair(self, window_ns: tuple[int, int]) -> bool:
        """True when each of the three users had a third of the GPU time."""
        return self.shares(window_ns) == FAIR

    def check_gpus(self) -> None:
        """No GPU was held twice."""
        assert overlaps({node: self.fleet.events(node) for node in NODES}) == []


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of two GPUs."""
    # A rank that is frozen while its gang imports PyTorch takes minutes to come on a busy machine.
    with own_cluster("spans", "v100:2x2", QUANTUM_S, node={"client_wait_s": 600}) as made:
        yield made


@pytest.fixture(scope="module")
def run(cluster: MiniCluster) -> Iterator[SpanRun]:
    """The gang and four jobs beside it, measured, then stopped."""
    fleet = Fleet(cluster)
    made = SpanRun(fleet)
    try:
        made.gang("user1", "gang")
        for n, name in enumerate(SINGLE):
            made.single({"a": "user2", "b": "user3"}[name[0]], name, 11 + n)
        numbers = [number for _, number in made.jobs.values()]
        wait_for(lambda: fleet.are_there(numbers), "all jobs to be started", START_S + 60)
        for name, (user, _) in made.jobs.items():
            wait_for(lambda user=user, name=name: fleet.steps(user, name), f"{name} to train", 90)
        # The gang was parked and came back: what start-ups overran has been given back.
        made.wait_parks(3)
        begin_ns = time.monotonic_ns()
        made.window_ns = window_of(made.is_fair, WINDOW_S, WINDOW_S + MOST_S, begin_ns)
        wait_for(lambda: len(made.boundaries("gang")) >= 5, "five boundaries at which all ranks stopped", 120)
        made.until_ns = time.monotonic_ns()
        made.stop()
        yield made
    finally:
        fleet.finish()


@pytest.fixture
def beside(fleet: Fleet) -> SpanRun:
    """A gang that takes turns with one job of one GPU; all daemons are up again at the end."""
    made = SpanRun(fleet)
    for user in ("user1", "user2"):
        for file in ("turns.stop", "other.stop", "turns.0.steps", "other.0.steps"):
            fleet.home(user, file).unlink(missing_ok=True)
        fleet.home(user, "light_gang.py").write_text(LIGHT_GANG.read_text())
    return made


def take_turns(run: SpanRun, script: str = LIGHT, tasks: int = 2) -> int:
    """Start a gang and a job of two GPUs beside it, and wait until the gang was parked twice."""
    number = run.gang("user1", "turns", script, tasks)
    run.light("user2", "other", 2)
    run.wait_parks(2, "turns", START_S + 120)
    return number


def test_three_users_share_two_nodes_equally(run: SpanRun) -> None:
    shares = run.shares(run.window_ns)
    print(shares)
    assert shares == NEARLY


def test_no_gpu_is_held_twice_and_every_park_is_at_one_boundary(run: SpanRun) -> None:
    run.check_gpus()
    parked = run.stops()
    print(run.parks())
    assert len(run.parks().good) >= 5
    # The gang's own end may cut its last park, and that of what is looked at may be one node's alone; a busy
    # machine may be late.
    failed = run.parks().failed
    assert len(failed) <= 1 + len(run.parks().good) // 4, failed
    stops = {node: set().union(*parks) for node, parks in parked.items()}
    # Where its ranks start slowly it may be parked before they are there: no boundary then.
    assert all(len(park) <= 1 for parks in parked.values() for park in parks), parked
    assert len(stops["n1"] & stops["n2"]) >= 5, stops
    assert len(stops["n1"] ^ stops["n2"]) <= 1 + len(failed), (stops, failed)


def test_losses_are_those_of_the_runs_alone(run: SpanRun) -> None:
    references = []
    for name, (user, _) in run.jobs.items():
        gpus = 4 if name == "gang" else 1
        seed = 3 if name == "gang" else 11 + SINGLE.index(name)
        # The gang to its end; single jobs come far in a long window, and their first steps will do.
        steps = min(sum(1 for _ in run.fleet.home(user, f"{name}.0.loss").open()), MOST_STEPS)
        assert steps > 20
        out = run.fleet.home(user, f"alone-{name}")
        references.append(Reference(DemoJob(name, user, gpus, "mlp", seed), steps, out))
    log = run.fleet.mini.at.log / "alone.log"
    run_references(references, 4, 300 * patience.slowness(), log, start_inside(run.fleet.mini))
    for reference in references:
        for rank in range(reference.job.gpus):
            here = run.fleet.home(reference.job.user, f"{reference.job.name}.{rank}.loss").read_text()
            alone = Path(f"{reference.out}.{rank}.loss").read_text()
            assert here.splitlines()[: reference.steps] == alone.splitlines(), (reference.job.name, rank)


@slow("40 s, torch starts on four ranks; node/test_spans has torchrun without Slurm")
def test_gang_by_torchrun_takes_turns(beside: SpanRun) -> None:
    take_turns(beside, BY_TORCHRUN, tasks=1)
    beside.wait_parks(3, "turns")
    parks = beside.parks("turns")
    assert len(parks.failed) <= 1 + len(parks.good) // 4, f"a busy machine may be late: {parks.failed}"
    beside.stop()


@pytest.mark.parametrize("victim", VICTIMS)
def test_turns_go_on_after_a_daemon_was_killed(beside: SpanRun, victim: str) -> None:
    """Nobody is stuck, nobody dies, no GPU is held twice, and both jobs end well."""
    number = take_turns(beside)
    if victim == "slurmctld":
        # It writes its state some seconds late: what it has not written yet, it does not know afterwards.
        beside.wait_parks(12, "turns")
    steps = beside.fleet.steps("user1", "turns")
    beside.fleet.mini.kill(victim)
    back_s = time.monotonic() + 3
    wait_for(lambda: time.monotonic() >= back_s, "three seconds without it", 5)
    beside.fleet.mini.start_daemon(victim)
    wait_for(lambda: beside.fleet.steps("user1", "turns") > steps + 40, f"steps without {victim}", 60)
    beside.wait_parks(3, "turns")
    assert beside.fleet.slurm_state(number) == "RUNNING"
    beside.stop()
    beside.check_gpus()


@slow("15 s; unit/test_slurm_reader has the node's state")
def test_gang_has_its_gpus_where_jobs_ended_right_behind_slurmctlds_start(beside: SpanRun) -> None:
    """Slurm 22.05 has such nodes for idle before they have registered, and gives a job none of their GPUs."""
    mini, fleet = beside.fleet.mini, beside.fleet
    first = beside.gang("user1", "turns", LIGHT)
    wait_for(lambda: fleet.steps("user1", "turns") > 20, "the first gang to train", START_S)
    began_s, state = time.time(), mini.path("spool", "slurmctld", "job_state")
    # It writes what has changed, and a gang that runs changes nothing.
    change = ["scontrol", "update", f"JobId={first}", "Comment=known"]
    wait_for(lambda: mini.exec(change, check=False).returncode == 0, "slurmctld to have news")
    wait_for(lambda: changed_ns(state) > began_s * 1e9, "slurmctld to write its state")
    mini.kill("slurmctld")
    mini.start_daemon("slurmctld")
    fleet.stop("user1", "turns")
    fleet.wait_ended(first, "COMPLETED")
    beside.gang("user1", "second", LIGHT)
    wait_for(
        lambda: fleet.steps("user1", "second") > 20,
        lambda: f"the second gang to train: {fleet.told_of(beside.jobs['second'][1])}",
        START_S,
    )
    beside.stop()


def test_gang_runs_on_while_the_controller_stays_dead(beside: SpanRun) -> None:
    """Its lease ends: the nodes bring it in by themselves and keep it; then it takes turns again."""
    take_turns(beside)
    before = len(beside.fleet.events("n1"))
    beside.fleet.mini.kill("gandivactld")

    def is_over() -> bool:
        return any(line["event"] == "lease_over" for line in beside.fleet.events("n1")[before:])

    wait_for(is_over, "the lease to end", 30)
    steps = beside.fleet.steps("user1", "turns")
    wait_for(lambda: beside.fleet.steps("user1", "turns") > steps + 40, "steps without a controller", 30)
    beside.fleet.mini.start_daemon("gandivactld")
    beside.wait_parks(2, "turns")
    beside.stop()
    beside.check_gpus()
