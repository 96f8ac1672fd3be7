"""What is killed while a training saves itself upon its signal takes nothing along that was saved."""

import signal

import pytest

from tests.cluster.fleet import Fleet, wait_for
from tests.cluster.test_moving import END_S, Crowd, rows
from tests.cluster.test_moving import cluster as cluster
from tests.slow import slow

pytestmark = slow("30 s each; unit/test_own_checkpoint_faults and controller/test_controller_moves have them")

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
