"""What stands in for Slurm's commands in a trial: the wrappers as a script calls them."""

import os
import subprocess

import pytest

from gandiva_slurm.cli import stand_in

SHOW = "echo $SLURM_PROCID of $SLURM_NTASKS, $SLURM_STEP_NUM_TASKS"


@pytest.fixture
def called(tmp_path):
    """Run a line of a shell with the wrappers first in its PATH; return its end, and what was noted."""
    programs = stand_in.make(tmp_path / "programs", tmp_path / "notes")

    def run(line, **env):
        path = {"PATH": f"{programs}:{os.environ['PATH']}"}
        words = ["sh", "-c", line]
        done = subprocess.run(words, env={**path, **env}, capture_output=True, text=True, timeout=60)
        notes = tmp_path / "notes"
        return done, notes.read_text().splitlines() if notes.exists() else []

    return run


def test_requeue_is_noted_and_asks_nobody(called):
    done, notes = called("scontrol requeue 12 && scontrol show hostnames x")
    assert (done.returncode, notes) == (0, ["requeue"]) and done.stdout.strip()


def test_other_orders_are_refused(called):
    done, notes = called("scontrol update JobId=12")
    assert (done.returncode, notes) == (1, [])
    assert done.stderr == "gandiva try: scontrol update JobId=12: not in a trial, where there is no Slurm\n"


def test_sbatch_submits_nothing(called):
    done, notes = called("sbatch --parsable job.sh")
    assert (done.returncode, notes) == (0, ["sbatch"]) and done.stdout.startswith("Submitted batch job ")


def test_tasks_of_srun_run_here(called):
    done, notes = called(f"srun --label -n2 sh -c '{SHOW}'", SLURM_NTASKS="5")
    assert sorted(done.stdout.splitlines()) == ["0 of 2, 2", "1 of 2, 2"]
    assert [note.split()[0] for note in notes] == ["task", "task"] and done.returncode == 0


@pytest.mark.parametrize(("line", "code"), [("exit 3", 3), ("kill -USR1 $$", 138), ("exit $SLURM_PROCID", 1)])
def test_srun_ends_as_its_worst_task(line, code, called):
    done, _ = called(f"srun sh -c '{line}'", SLURM_NTASKS="2")
    assert done.returncode == code


@pytest.mark.parametrize(
    ("line", "sentence"), [("srun -N1", "no program is named"), ("srun none-such", "none-such: No such file")]
)
def test_srun_of_nothing_is_told(line, sentence, called):
    done, _ = called(line)
    assert done.returncode == 1 and sentence in done.stderr


@pytest.mark.parametrize(
    ("args", "want"),
    [
        ("python train.py -n 4", (3, "python train.py -n 4")),
        ("-n 4 python", (4, "python")),
        ("-n4 -N1 -lu --unbuffered -o %j.out --error x python", (4, "python")),
        ("--ntasks=2 --exclusive --cpu-bind=none --mem 4G python", (2, "python")),
        ("--ntasks 2 --kill-on-bad-exit=1 -K -- python", (2, "python")),
        ("-un8 python", (8, "python")),
        ("--multi-prog file", (3, "")),
        ("-n", (3, "")),
        ("", (3, "")),
    ],
)
def test_options_of_srun_are_left_behind(args, want):
    count, command = stand_in.read_srun(args.split(), 3)
    assert (count, " ".join(command)) == want
