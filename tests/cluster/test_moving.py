"""A training is moved from one node to another by a checkpoint and a requeue, and nothing of it is lost."""

import re
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests import patience
from tests.cluster.fleet import Fleet, own_cluster, said, set_slurm, wait_for
from tests.cluster.moved import END_S, GPUS, MOVE_S, Crowd, cost, rows, wait_all_up
from tests.cluster.sharing import LIGHT
from tests.slow import slow

TESTS = Path(__file__).parents[1]
GANG_IS_SLOW = slow("60 s; attach/test_moved has gangs without Slurm")
LIGHT_TRAINING = TESTS / "node/scripts/attached.py"
GANG = TESTS / "node/scripts/attached_gang.py"
UNASKED = TESTS / "node/scripts/unasked.py"
#: A training that knows nothing of Gandiva, and goes on from its own file.
OWN = TESTS / "node/scripts/own.py"
OWN_GANG = TESTS / "node/scripts/own_gang.py"
#: Submits itself by submitit.
SUBMITTED = TESTS / "node/scripts/submitted.py"
#: A gang of a rank on each of two nodes.
OVER_NODES = f"""\
export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID)) WORLD_SIZE=2 OUT=~
srun sh -c 'RANK=$SLURM_PROCID LOCAL_RANK=0 exec python {GANG.name} ENDLESS'
"""
QUANTUM_S = 0.5
#: More than any test waits for.
ENDLESS = 10**9
#: A turn lasts 18 minutes: in it a job moves to GPUs on which no other lives, or that are its own, and to no
#: others. One that does not save itself soon stays.
MOVES = {"min_run_s": 2, "cost_s": 60, "deadline_s": 20}
#: How long a requeue takes of what does not heed SIGTERM: shorter than a move may take.
KILL_WAIT_S = 15
#: As sites teach it: the batch shell hears the signal, has its training save itself, and requeues the job.
TRAPS = """\
trap 'kill -USR1 $!; wait; scontrol requeue $SLURM_JOB_ID' USR1
python own.py {0} &
wait
wait
"""


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of one GPU, two of two, and a controller that is quick to move jobs."""
    # A rank that is frozen while its gang imports PyTorch takes minutes to come on a busy machine.
    waits = {"client_wait_s": 600}
    with own_cluster("moving", "v100:2x1,k80:2x2", QUANTUM_S, moves=MOVES, node=waits) as made:
        made.path("/home/user2/light.py").write_text(LIGHT)
        home = made.path("/home/user1")
        for script in (LIGHT_TRAINING, GANG, UNASKED, OWN, OWN_GANG, SUBMITTED):
            home.joinpath(script.name).write_text(script.read_text())
        home.joinpath("tests").mkdir()
        for name in ("attach_train.py", "attach_recipes.py", "stopping.py"):
            home.joinpath("tests", name).write_text((TESTS / name).read_text())
        yield made


def light(fleet: Fleet, name: str, before: str = "") -> Crowd:
    """A training without PyTorch that has begun."""
    crowd = Crowd(fleet, name, f"{before}\nOUT=~ exec python {LIGHT_TRAINING.name} 10 {ENDLESS}")
    crowd.trains()
    return crowd


def restart_controller(fleet: Fleet) -> None:
    """Kill gandivactld as nothing can prepare for, and start it again."""
    fleet.mini.kill("gandivactld")
    fleet.mini.start_daemon("gandivactld")


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [pytest.param("sgd", "v100", id="alone"), pytest.param("wrapped", "k80", id="gang", marks=GANG_IS_SLOW)],
)
def test_a_moved_training_ends_with_the_same_weights(fleet: Fleet, recipe: str, kind: str) -> None:
    """Real PyTorch, one rank or two: losses and weights are those of a training that nobody touched."""
    ranks = GPUS[kind]
    world = f"export WORLD_SIZE={ranks} STORE=$PWD/{recipe}.$SLURM_JOB_ID.$SLURM_RESTART_COUNT"
    train = f"python -m tests.attach_train {recipe} {recipe} --store $STORE"
    script = f"{world}\nsrun sh -c 'RANK=$SLURM_PROCID exec {train} --epochs {ENDLESS} --step-ms 20'"
    crowd = Crowd(fleet, recipe, script, kind, f"--ntasks={ranks}")
    wait_for(lambda: len(rows(fleet, f"{recipe}.0")) > 50, f"{recipe} to train", 90)
    crowd.make_room()
    crowd.wait_moved()
    before = len(rows(fleet, f"{recipe}.0"))
    wait_for(lambda: len(rows(fleet, f"{recipe}.0")) > before + 20, f"{recipe} to go on", 90)
    fleet.home("user1", f"{recipe}.stop").touch()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)
    # Seven mini-batches an epoch, and a digest behind the last one.
    epochs = len(rows(fleet, f"{recipe}.0")) // 7
    alone = train.replace(f" {recipe} --store", f" {recipe}-alone --epochs {epochs} --store")
    started = [f"RANK={rank} {alone} &" for rank in range(ranks)]
    untouched = f"cd; export WORLD_SIZE={ranks} STORE=$PWD/alone; {' '.join(started)} wait"
    fleet.mini.exec(["sh", "-c", untouched], user="user1")
    for rank in range(ranks):
        assert rows(fleet, f"{recipe}.{rank}") == rows(fleet, f"{recipe}-alone.{rank}")
    crowd.wait_runs(f"REQUEUED {crowd.home}", f"COMPLETED {crowd.target}")
    lost, ckpt_s = crowd.cost()
    assert lost == 0 and ckpt_s and ckpt_s < MOVES["deadline_s"] * patience.slowness()
    story = [code for code in crowd.codes() if code in ("Leaving", "Saved", "MovedOut")]
    assert story == ["Leaving", "Saved", "MovedOut"]


@slow("55 s; attach/test_frameworks_tried moves a script without a line, tests around it move on Slurm")
def test_a_framework_without_a_line_is_moved(fleet: Fleet) -> None:
    """A Trainer's script that knows nothing of Gandiva computes, moved, what it does alone."""
    crowd = Crowd(fleet, "unasked", f"exec python {UNASKED.name} unasked")
    wait_for(lambda: len(rows(fleet, "unasked")) > 50, "it to train", 90)
    fleet.wait_moves_by(crowd.job, "transformers")
    told = said(fleet.mini, "why", str(crowd.job))
    assert "it can be moved: it saves itself and goes on from there (transformers)" in told
    told = said(fleet.mini, "why", str(crowd.elsewhere))
    assert "it cannot be moved: not all its ranks are attached" in told
    crowd.make_room()
    crowd.wait_moved()
    before = len(rows(fleet, "unasked"))
    wait_for(lambda: len(rows(fleet, "unasked")) > before + 20, "it to go on", 90)
    fleet.home("user1", "unasked.stop").touch()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)
    losses = rows(fleet, "unasked")
    fleet.mini.exec(["python", UNASKED.name, "alone", str(len(losses))], user="user1")
    assert losses == rows(fleet, "alone")
    crowd.wait_runs(f"REQUEUED {crowd.home}", f"COMPLETED {crowd.target}")
    assert crowd.cost()[0] == 0


def own(fleet: Fleet, name: str, script: str) -> tuple[Crowd, list[tuple[int, int]]]:
    """Move a training by its own checkpoint and end it; return it and (run, mini-batch) of each line."""
    crowd = Crowd(fleet, name, script)
    wait_for(lambda: len(rows(fleet, f"{name}.out")) > 70, f"{name} to train", 90)
    fleet.wait_moves_by(crowd.job, name)
    assert "it can be moved: " in said(fleet.mini, "why", str(crowd.job))
    crowd.make_room()
    crowd.wait_moved()
    wait_for(lambda: rows(fleet, f"{name}.out")[-1].startswith("1 "), f"{name} to go on", 90)
    fleet.home("user1", f"{name}.stop").touch()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)
    crowd.wait_runs(f"REQUEUED {crowd.home}", f"COMPLETED {crowd.target}")
    lines = map(str.split, rows(fleet, f"{name}.out"))
    return crowd, [(int(run), int(number)) for run, number in lines]


@slow("20 s; the test after it has a move by a signal, unit/test_engine_own_checkpoint this one")
def test_a_script_that_goes_on_from_its_own_file_is_moved(fleet: Fleet) -> None:
    """What it did since its last file it does again, and nothing else."""
    crowd, found = own(fleet, "self", "#SBATCH --gandiva-checkpoint=self\nexec python own.py self")
    last = max(number for run, number in found if run == 0)
    again = [number for run, number in found if run == 1]
    # It may have been killed behind a line, and before the file that it is in had its name.
    assert again[0] in (last // 50 * 50, (last + 1) // 50 * 50)
    assert again == list(range(again[0], again[0] + len(again)))
    lost, ckpt_s = crowd.cost()
    assert lost - (last + 1 - again[0]) in (0, 1), "the last one may have been done and not printed"
    assert ckpt_s == 0


@slow("70 s; unit/test_client_newest and test_engine_own_checkpoint have it without Slurm")
def test_the_age_of_its_own_newest_file_is_told_and_it_is_moved_by_it(fleet: Fleet) -> None:
    saves = "mkdir -p saves-$SLURM_JOB_ID; SAVE_EVERY=600 exec python own.py saves-$SLURM_JOB_ID/run"
    crowd = Crowd(fleet, "aged", f"#SBATCH --gandiva-checkpoint=self:saves-%j\n{saves}")
    told, out = "its newest file in saves-%j is", f"saves-{crowd.job}/run"
    why = ("why", str(crowd.job))
    wait_for(lambda: told in said(fleet.mini, *why), "its file's age", 120)
    crowd.make_room()
    crowd.wait_moved()
    story = said(fleet.mini, *why, "--story")
    (age,) = re.findall(r"from its own newest file, (\d+) s old; what it did since is done again", story)
    assert 0 < int(age) <= 90
    wait_for(lambda: rows(fleet, f"{out}.out")[-1].startswith("1 "), "it to go on", 90)
    fleet.home("user1", f"{out}.stop").touch()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)


def test_a_job_that_saves_itself_upon_its_signal_is_moved(fleet: Fleet) -> None:
    """Its own #SBATCH --signal and --requeue say so; nothing is done twice."""
    script = "#SBATCH --signal=B:USR1@30\n#SBATCH --requeue\n" + TRAPS.format("signal")
    crowd, found = own(fleet, "signal", script)
    assert [number for _, number in found] == list(range(len(found)))
    assert {run for run, _ in found} == {0, 1}
    lost, ckpt_s = crowd.cost()
    assert lost == 0 and 0 < ckpt_s < 30


def end_at_once(fleet: Fleet, jobs: Collection[int]) -> None:
    """Cancel jobs on several nodes; gandivactld sees them gone in one look.

    Their ends may be seconds apart. A gang for which one GPU comes free moves to it and keeps its other GPU,
    for there more jobs run; where another comes free it moves again.
    """
    fleet.mini.kill("gandivactld", signal.SIGSTOP)
    try:
        fleet.mini.exec(["scancel", *map(str, jobs)])
        wait_for(lambda: all(fleet.slurm_state(job) == "CANCELLED" for job in jobs), f"jobs {jobs} to end")
    finally:
        fleet.mini.kill("gandivactld", signal.SIGCONT)


def move_gang(fleet: Fleet, script: str) -> tuple[int, list[str]]:
    """Have a gang moved off GPUs of two nodes that it shares, on to others that are free, and end it.

    Return the job, and the first word of each line it has written.
    """
    nodes, flags = ("n3", "n4"), ("--gandiva-gpu-types=k80", "--gandiva-pack=never")
    wait_all_up(fleet)
    count = "exec python light.py wide.count wide.stop"
    for job in (others := [fleet.submit("user2", count, *flags) for _ in range(4)]):
        fleet.wait_running(job)
    gang = fleet.submit("user1", script, "--nodes=2", "--ntasks-per-node=1", *flags)
    wait_for(lambda: len(rows(fleet, f"loss.{gang}")) > 50, "the gang to train", 90)

    def gpus(job: int, restart: int = 0) -> list[tuple[str, list[int]]]:
        events = {node: fleet.events(node) for node in nodes}
        granted = [(node, e) for node, lines in events.items() for e in lines if e["event"] == "grant"]
        return [(node, e["gpus"]) for node, e in granted if (e["job"], e["restart"]) == (job, restart)]

    shared = gpus(gang)[:1] + gpus(gang)[-1:]
    free = [job for job in others if gpus(job)[0] not in shared]
    assert len(free) == 2 and len({node for node, _ in shared}) == 2
    end_at_once(fleet, free)
    wait_for(lambda: len({node for node, _ in gpus(gang, 1)}) == 2, "the gang to run elsewhere", 90)
    assert all(place not in shared for place in gpus(gang, 1))
    before = len(rows(fleet, f"loss.{gang}"))
    wait_for(lambda: len(rows(fleet, f"loss.{gang}")) > before + 20, "the gang to go on", 90)
    fleet.home("user1", f"stop.{gang}").touch()
    fleet.wait_ended(gang, "COMPLETED", deadline_s=END_S)
    return gang, [line.split()[0] for line in rows(fleet, f"loss.{gang}")]


def test_a_gang_over_nodes_is_moved_as_one(fleet: Fleet) -> None:
    """No mini-batch is lost or done twice."""
    _, (*found, end) = move_gang(fleet, OVER_NODES.replace("ENDLESS", str(ENDLESS)))
    assert (found, end) == ([str(number) for number in range(len(found))], "end")


@slow("25 s; unit/test_engine_own_checkpoint has it without Slurm")
def test_a_gang_over_nodes_goes_on_from_its_own_file(fleet: Fleet) -> None:
    script = OVER_NODES.replace(f"{GANG.name} ENDLESS", OWN_GANG.name)
    gang, (*lines, end) = move_gang(fleet, f"#SBATCH --gandiva-checkpoint=self\n{script}")
    found = list(map(int, lines))
    # Where it was killed right behind a file it does nothing again.
    done = next((at for at in range(1, len(found)) if found[at] <= found[at - 1]), len(found))
    assert (found[:done], end) == ([*range(done)], "end")
    again = found[done:]
    assert not again or again == [*range(again[0], again[0] + len(again))]
    assert not again or (again[0] % 50 == 0 and done - again[0] <= 50)
    lost, ckpt_s = cost(fleet, gang)
    assert lost - (done - again[0] if again else 0) in (0, 1) and ckpt_s == 0


@slow("30 s; unit/test_engine_own_checkpoint and test_engine_central have it without Slurm")
def test_a_gang_over_nodes_saves_itself_upon_its_signal(fleet: Fleet) -> None:
    """Slurm sends it to the ranks on both nodes; it ends non-zero, and goes on as one, nothing done twice."""
    script = OVER_NODES.replace(f"{GANG.name} ENDLESS", OWN_GANG.name)
    gang, (*lines, end) = move_gang(fleet, f"#SBATCH --gandiva-checkpoint=signal:USR1@60\n{script}")
    assert (list(map(int, lines)), end) == ([*range(len(lines))], "end")
    lost, ckpt_s = cost(fleet, gang)
    assert lost == 0 and 0 < ckpt_s < 60


def test_gandivactld_killed_while_a_job_saves_itself(fleet: Fleet) -> None:
    """The job saves itself and waits; the next gandivactld takes the move on where it stands."""
    crowd = light(fleet, "saving")
    crowd.file("slow").touch()
    crowd.make_room()
    wait_for(crowd.file("saving").exists, "the job to save itself", MOVE_S)
    restart_controller(fleet)
    crowd.file("slow").unlink()
    crowd.wait_moved()
    crowd.check_losses()
    crowd.wait_runs(f"REQUEUED {crowd.home}", f"COMPLETED {crowd.target}")


def test_gandivactld_killed_when_the_job_is_requeued(fleet: Fleet) -> None:
    """The next gandivactld starts it where it was to go. That it does not heed SIGTERM only takes time."""
    crowd = light(fleet, "requeued", before="trap '' TERM")
    set_slurm(fleet.mini, KillWait=KILL_WAIT_S)
    try:
        crowd.make_room()
        wait_for(lambda: fleet.slurm_state(crowd.job) in ("COMPLETING", "PENDING"), "a requeue", MOVE_S)
        restart_controller(fleet)
    finally:
        set_slurm(fleet.mini, KillWait=3)
    crowd.wait_moved()
    crowd.check_losses()
    crowd.wait_runs(f"REQUEUED {crowd.home}", f"COMPLETED {crowd.target}")


@slow("20 s; unit/test_engine_draining has the decision")
def test_what_can_be_moved_leaves_a_node_that_is_drained(fleet: Fleet) -> None:
    """Slurm's own command, with a reason of ours: the training goes on elsewhere, the other job is named."""
    crowd = light(fleet, "drained")
    (stays,) = (job for job in fleet.jobs if job not in (crowd.job, crowd.elsewhere))
    drain = ["scontrol", "update", f"NodeName={crowd.home}"]
    fleet.mini.exec([*drain, "State=DRAIN", "Reason=gandiva: a new disk"])
    try:
        crowd.wait_moved()
        (node,) = [node for node in fleet.ask("nodes")["nodes"] if node["node"] == crowd.home]
        assert node["state"] == "drain"
        assert node["reason"].startswith(f"gandiva: a new disk: job {stays} runs on (it cannot save"), node
        told = said(fleet.mini, "why", str(stays))
        assert f"{crowd.home} is drained (gandiva: a new disk), and it runs on there" in told
        assert "Draining" in crowd.codes() and crowd.node(stays) == crowd.home
        crowd.check_losses()
        crowd.wait_runs(f"REQUEUED {crowd.home}", f"COMPLETED {crowd.target}")
    finally:
        fleet.mini.exec([*drain, "State=RESUME"])


def test_a_save_that_fails_moves_nobody(fleet: Fleet) -> None:
    """The job trains on in its turns, and so does its neighbour; the error is told."""
    crowd = light(fleet, "unsaved", before="export GANDIVA_CHECKPOINT_DIR=/proc/none/%j")
    crowd.make_room()
    wait_for(lambda: fleet.count("unsaved", crowd.job, crowd.home) >= 2, "two tries to save", MOVE_S)
    wait_for(lambda: "MoveFailed" in crowd.codes(), "the move to be given up", MOVES["deadline_s"] + MOVE_S)
    crowd.check_losses()
    crowd.wait_runs(f"COMPLETED {crowd.home}")


def test_a_target_that_is_lost_after_the_requeue_costs_no_work(fleet: Fleet) -> None:
    """The job is placed anywhere, here where it was, and goes on from what it saved."""
    crowd = light(fleet, "back", before="trap '' TERM")  # the requeue takes its time
    set_slurm(fleet.mini, KillWait=KILL_WAIT_S)
    try:
        crowd.make_room()
        wait_for(lambda: fleet.slurm_state(crowd.job) in ("COMPLETING", "PENDING"), "a requeue", MOVE_S)
        fleet.mini.kill(f"gandivad:{crowd.target}")
        wait_for(lambda: crowd.node() == crowd.home, f"the job to run on {crowd.home} again", MOVE_S)
    finally:
        set_slurm(fleet.mini, KillWait=3)
    crowd.check_losses()
    crowd.wait_runs(f"REQUEUED {crowd.home}", f"COMPLETED {crowd.home}")


def test_a_target_that_is_lost_leaves_the_job_where_it_is(fleet: Fleet) -> None:
    """It has just begun to save itself when the other node's gandivad dies."""
    crowd = light(fleet, "lost")
    crowd.file("slow").touch()
    crowd.make_room()
    wait_for(crowd.file("saving").exists, "the job to save itself", MOVE_S)
    fleet.mini.kill(f"gandivad:{crowd.target}")
    wait_for(lambda: "TargetLost" in crowd.codes(), "the move to be given up", MOVE_S)
    crowd.file("slow").unlink()
    crowd.check_losses()
    crowd.wait_runs(f"COMPLETED {crowd.home}")
