"""What a training makes of its signal, and what is killed while it saves itself upon it."""

import signal

import pytest

from tests.cluster.fleet import Fleet, wait_for
from tests.cluster.moved import END_S, MOVE_S, Crowd, rows
from tests.cluster.test_moving import UNASKED
from tests.cluster.test_moving import cluster as cluster
from tests.slow import slow, soak

pytestmark = slow("15 to 30 s each; unit/test_engine_own_checkpoint and test_own_checkpoint_faults have them")

#: Its batch shell, signalled, writes half a file, waits for a word, and has its training save itself.
WAITS = """\
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
save() {{ echo half > {0}.new; touch {0}.saving; until [ -e {0}.go ]; do sleep 0.1; done
kill -USR1 $!; wait; scontrol requeue $SLURM_JOB_ID; }}
trap save USR1
python own.py {0} &
wait
wait
"""


def saving(fleet: Fleet, name: str) -> Crowd:
    """A training that has been told to leave, and has saved half of itself."""
    crowd = Crowd(fleet, name, WAITS.format(name))
    wait_for(lambda: len(rows(fleet, f"{name}.out")) > 70, f"{name} to train", 90)
    crowd.make_room()
    wait_for(fleet.home("user1", f"{name}.saving").exists, f"{name} to be signalled", 60)
    return crowd


def ended(crowd: Crowd) -> list[tuple[int, int]]:
    """Let it go on in its second run, and end; return (run, mini-batch) of each line."""
    fleet, name = crowd.fleet, crowd.name
    wait_for(lambda: rows(fleet, f"{name}.out")[-1].startswith("1 "), f"{name} to go on", 120)
    fleet.home("user1", f"{name}.stop").touch()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)
    return [(int(run), int(number)) for run, number in map(str.split, rows(fleet, f"{name}.out"))]


def test_a_job_killed_as_it_saves_itself_goes_on_from_its_last_whole_file(fleet: Fleet) -> None:
    """kill -9 of its shell, and so of all of it: it has failed upon its signal, its file before is whole."""
    crowd = saving(fleet, "struck")
    fleet.mini.exec(["scancel", "--batch", "--signal=KILL", str(crowd.job)])
    crowd.wait_moved()
    found = ended(crowd)
    last = max(number for run, number in found if run == 0)
    again = [number for run, number in found if run == 1]
    assert again[0] in (last // 50 * 50, (last + 1) // 50 * 50)
    assert again == list(range(again[0], again[0] + len(again)))
    crowd.wait_runs(f"REQUEUED {crowd.home}", f"COMPLETED {crowd.target}")


@pytest.mark.parametrize("daemon", ["slurmctld", "gandivad"])
def test_a_daemon_killed_while_a_job_saves_itself_costs_it_nothing(fleet: Fleet, daemon: str) -> None:
    """It is started again, and the job, which then requeues itself, goes on where it was to go."""
    crowd = saving(fleet, daemon)
    victim = daemon if daemon == "slurmctld" else f"gandivad:{crowd.home}"
    fleet.mini.kill(victim, signal.SIGKILL)
    fleet.mini.start_daemon(victim)
    wait_for(lambda: fleet.slurm_state(crowd.job) == "RUNNING", "slurmctld to answer")
    fleet.home("user1", f"{daemon}.go").touch()
    numbers = [number for _, number in ended(crowd)]
    assert numbers == list(range(len(numbers)))
    crowd.wait_runs(f"REQUEUED {crowd.home}", f"COMPLETED {crowd.target}")
    assert crowd.codes().count("Signalled") == 1


#: How many mini-batches lie between two saves of these: some seconds, lest its node tells of none in between.
SAVES = 400


def is_between_saves(fleet: Fleet, name: str) -> bool:
    """True when a training has saved itself, has trained on, and its next save is seconds away."""
    count = len(rows(fleet, name))
    return count > SAVES and 0.4 * SAVES < count % SAVES < 0.5 * SAVES


def test_lost_node_of_a_job_that_goes_on_from_its_own_file(fleet: Fleet) -> None:
    """It dies as by a power cut: what it did since its newest file it does again, and acct tells that."""
    name = "lost_node"
    flags = "#SBATCH --gandiva-checkpoint=self\n#SBATCH --requeue\n"
    crowd = Crowd(fleet, name, f"{flags}SAVE_EVERY={SAVES} exec python own.py {name}")
    fleet.wait_moves_by(crowd.job, "self")
    wait_for(lambda: is_between_saves(fleet, f"{name}.out"), f"{name} to train", 120)
    crowd.lose_node()
    wait_for(lambda: rows(fleet, f"{name}.out")[-1].startswith("1 "), f"{name} to go on", 120)
    assert crowd.node() == crowd.target
    found = ended(crowd)
    last = max(number for run, number in found if run == 0)
    again = [number for run, number in found if run == 1]
    # It may have died behind a file of its own, and before that had its name.
    assert again[0] in (last // SAVES * SAVES, (last + 1) // SAVES * SAVES) and again[0] > 0
    assert again == list(range(again[0], again[0] + len(again)))
    lost, told = last + 1 - again[0], crowd.lost()
    print(f"lost {lost} mini-batches; acct: {told}")
    # What it did since its node's last word is in no account.
    assert 0 < told <= lost + 1
    crowd.wait_runs(f"NODE_FAIL {crowd.home}", f"COMPLETED {crowd.target}")


@soak("90 s; the lost node above is of a job of its own files")
def test_lost_node_of_a_framework_s_job_that_saves_itself(fleet: Fleet) -> None:
    """A Trainer that names its newest checkpoint goes on from there elsewhere, to the last bit."""
    name = "lost_trainer"
    script = f"#SBATCH --requeue\nSAVE_STEPS={SAVES} exec python {UNASKED.name} {name}"
    crowd = Crowd(fleet, name, script)
    fleet.wait_moves_by(crowd.job, "transformers")
    wait_for(lambda: is_between_saves(fleet, name), f"{name} to train", 120)
    crowd.lose_node()
    before = rows(fleet, name)
    wait_for(lambda: len(rows(fleet, name)) > len(before) + 30, f"{name} to go on", 120)
    assert crowd.node() == crowd.target
    fleet.home("user1", f"{name}.stop").touch()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)
    found = rows(fleet, name)
    went_on = found.index(found[len(before)])
    assert went_on > 0 and went_on % SAVES == 0, "it went on from its own newest checkpoint"
    losses = found[:went_on] + found[len(before) :]
    fleet.mini.exec(["python", UNASKED.name, "alone", str(len(losses))], user="user1")
    assert losses == rows(fleet, "alone")
    lost, told = len(before) - went_on, crowd.lost()
    print(f"lost {lost} mini-batches; acct: {told}")
    assert 0 < told <= lost + 1
    crowd.wait_runs(f"NODE_FAIL {crowd.home}", f"COMPLETED {crowd.target}")


#: What a batch shell may do upon its signal: how its training goes on or ends.
ENDS_WRONG = "trap 'kill -USR1 $!; wait; exit 3' USR1\npython own.py {0} &\nwait\nwait\n"
ENDS_WELL = "trap 'kill -USR1 $!; wait; exit 0' USR1\npython own.py {0} &\nwait\nwait\n"
DEAF = "trap '' USR1\nexec python own.py {0}\n"


def test_a_job_that_ends_non_zero_upon_its_signal_goes_on_elsewhere(fleet: Fleet) -> None:
    script = "#SBATCH --gandiva-checkpoint=signal:USR1@20\n#SBATCH --signal=B:USR1@30\n"
    crowd = Crowd(fleet, "wrong", script + ENDS_WRONG.format("wrong"))
    wait_for(lambda: len(rows(fleet, "wrong.out")) > 70, "it to train", 90)
    crowd.make_room()
    crowd.wait_moved()
    wait_for(lambda: rows(fleet, "wrong.out")[-1].startswith("1 "), "it to go on", 90)
    fleet.home("user1", "wrong.stop").touch()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)
    numbers = [int(line.split()[1]) for line in rows(fleet, "wrong.out")]
    assert numbers == list(range(len(numbers)))
    assert "EndedToMove" in crowd.codes()


def test_a_job_that_ends_well_upon_its_signal_has_ended(fleet: Fleet) -> None:
    script = "#SBATCH --gandiva-checkpoint=signal:USR1@20\n#SBATCH --signal=B:USR1@30\n"
    crowd = Crowd(fleet, "well", script + ENDS_WELL.format("well"))
    wait_for(lambda: len(rows(fleet, "well.out")) > 70, "it to train", 90)
    crowd.make_room()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)
    assert "Signalled" in crowd.codes()
    crowd.wait_runs(f"COMPLETED {crowd.home}")


def test_a_job_that_does_nothing_upon_its_signal_stays(fleet: Fleet) -> None:
    script = "#SBATCH --gandiva-checkpoint=signal:USR1@3\n#SBATCH --signal=B:USR1@30\n"
    crowd = Crowd(fleet, "deaf", script + DEAF.format("deaf").replace("exec ", ""))
    wait_for(lambda: len(rows(fleet, "deaf.out")) > 70, "it to train", 90)
    crowd.make_room()
    wait_for(lambda: "MoveFailed" in crowd.codes(), "the move to be given up", MOVE_S)
    assert crowd.codes().count("Signalled") == 1
    words = ["squeue", "-h", "-j", str(crowd.job), "-o", "%Q"]
    wait_for(lambda: fleet.mini.exec(words).stdout.strip() != "0", "its hold to be taken back", MOVE_S)
    assert fleet.slurm_state(crowd.job) == "RUNNING"
    fleet.home("user1", "deaf.stop").touch()
    fleet.wait_ended(crowd.job, "COMPLETED", deadline_s=END_S)
    crowd.wait_runs(f"COMPLETED {crowd.home}")
