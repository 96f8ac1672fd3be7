"""`gandiva try` moves scripts by their own checkpoints. These train nothing and note losses of their own."""

import os
import re
import sys
from pathlib import Path

import pytest

from gandiva_slurm.cli import own_trial
from gandiva_slurm.cli.main import main
from gandiva_slurm.cli.own_trial import Place, find_place
from gandiva_slurm.cli.runs import losses_of
from gandiva_slurm.node import procs
from tests.park_harness import wait_until
from tests.slow import slow

#: Saves itself every 7 mini-batches, and upon SIGUSR1, when it ends with exit code 1. A loss follows from the
#: one before.
TRAIN = """
import os, signal, sys, time
import gandiva_slurm as gandiva
told, done, loss = [], 0, 1
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
if os.path.exists("last"):
    done, loss = map(int, open("last").read().split())
def save():
    with open("new", "w") as file:
        file.write(f"{done} {loss}")
    os.replace("new", "last")
out = open(os.environ["GANDIVA_TRIAL"] + "." + os.environ.get("SLURM_PROCID", "0"), "a", buffering=1)
out.write("begin\\n")
while True:
    loss = loss * 48271 % 2147483647
    out.write(float(loss).hex() + "\\n")
    done += 1
    if told or done % 7 == 0:
        save()
    if told:
        sys.exit(1)
    gandiva.step()
    time.sleep(0.002)
"""
IS_FIRST = '"interrupted" in os.getcwd()'
IS_AGAIN = 'os.environ.get("SLURM_RESTART_COUNT") == "1"'
HEAD = "#!/bin/bash\n#SBATCH --signal={0}\n#SBATCH --requeue\n"
BEHIND_IT = HEAD.format("B:USR1@20") + "trap 'kill -USR1 $!; wait $!; {0}' USR1\npython train.py &\nwait $!\n"
SCRIPTS = {
    "train.py": TRAIN,
    "anew.py": TRAIN.replace('exists("last")', 'exists("none")'),
    "forgetful.py": TRAIN.replace("def save", "    loss += 1\ndef save"),
    "partial.py": TRAIN.replace("done += 1", "done += 1\n    loss += done % 7 == 4 and " + IS_AGAIN),
    "constant.py": TRAIN.replace("loss * 48271 % 2147483647", "1"),
    "silent.py": TRAIN.replace("if told or done % 7 == 0:", "if False:"),
    "untold.py": TRAIN.replace("signal.signal(", "(lambda *_: None)("),
    # Once, so that no run goes on where the one before it ended: its losses could not tell of that.
    "elsewhere.py": TRAIN.replace('"last"', 'os.environ["ELSEWHERE"]').replace("done % 7", "done - 7"),
    "short.py": TRAIN.replace(
        "gandiva.step()", "gandiva.step()\n    if done == 8 and " + IS_FIRST + ": sys.exit()"
    ),
    "stubborn.py": TRAIN.replace("told, done", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntold, done"),
    "requeues.sh": BEHIND_IT.format("scontrol requeue $SLURM_JOB_ID"),
    "fails.sh": BEHIND_IT.format("exit 3"),
    "ends.sh": BEHIND_IT.format("sbatch $0; exit 0"),
    "deaf.sh": HEAD.format("B:USR1@2") + "trap 'scontrol requeue $SLURM_JOB_ID' USR1\npython train.py\n",
    "unheard.sh": HEAD.format("USR1@20") + "python train.py\n",
    "step.sh": HEAD.format("USR1@20") + "#SBATCH --ntasks=1\nsrun --unbuffered -o %j.out python train.py\n",
    "fixed.sh": HEAD.format("B:USR1@20") + "#SBATCH --gandiva-migrate=never\npython train.py\n",
}


@pytest.fixture
def tried(tmp_path, monkeypatch, capfd):
    """Run `gandiva try OPTIONS SCRIPT` in a directory of its own; return exit code and what it printed.

    The directory is left as it was, Slurm is asked nothing, and no process of the script is left behind.
    """
    here, slurm = tmp_path / "here", tmp_path / "slurm"
    for path in (here, slurm):
        path.mkdir()
    for name in ("scontrol", "srun", "sbatch"):
        (slurm / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/asked\n")
        (slurm / name).chmod(0o755)
    (slurm / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{slurm}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(here)

    def run(script, *options):
        for name in {script, "train.py"}:
            (here / name).write_text(SCRIPTS[name])
        with pytest.raises(SystemExit) as end:
            main(["try", "--steps", "20", "--deadline", "120", *options, script])
        out, err = capfd.readouterr()
        assert {path.name for path in here.iterdir()} == {script, "train.py"}
        assert not (tmp_path / "asked").exists()
        of_it = re.compile(r"gandiva-try-.*(train|anew|forgetful|partial|stubborn)\.py")
        gone = lambda: not any(of_it.search(procs.read_text(pid, "environ")) for pid in procs.table())  # noqa: E731
        wait_until(gone, "the script's processes to be gone")
        return end.value.code, out + err

    return run


def told(out):
    """After how many mini-batches it was interrupted, where it went on, and how many it did again."""
    after = re.search(r"after (\d+) mini-batches", out)
    went = re.search(r"started again it went on behind mini-batch (\d+) and did (none|\d+) again", out)
    assert after and went, out
    return int(after[1]), int(went[1]), 0 if went[2] == "none" else int(went[2])


def test_script_that_is_killed_goes_on_from_its_own_file(tried):
    code, out = tried("train.py", "--checkpoint=self")
    assert code == 0 and out.endswith("the losses are identical, bit for bit\n")
    after, went, again = told(out)
    assert went > 0 and went % 7 == 0 and after - 7 <= went <= after and again == after - went
    assert "moved:   self: ended after" in out


@pytest.mark.parametrize(
    ("script", "how"),
    [
        (
            "requeues.sh",
            "SIGUSR1 to its batch shell after {} mini-batches; it called scontrol requeue within ",
        ),
        ("fails.sh", "SIGUSR1 to its batch shell after {} mini-batches; it ended with exit code 3 within "),
        ("step.sh", "SIGUSR1 to its steps after {} mini-batches; it ended with exit code 1 within "),
    ],
)
def test_script_that_saves_upon_its_signal_loses_nothing(script, how, tried):
    code, out = tried(script)
    after, went, again = told(out)
    assert code == 0 and "the losses are identical, bit for bit" in out
    assert went >= after and again == 0
    assert "moved:   signal: " + how.format(after) in out


def test_signal_without_a_handler_costs_what_was_done_since_its_file(tried):
    code, out = tried("untold.py", "--checkpoint=signal:USR1@20")
    after, went, again = told(out)
    assert code == 0 and "SIGUSR1 to its processes" in out and "it has no handler and ended by it" in out
    assert went % 7 == 0 and again >= after - went


STAYS = {
    "ends.sh": (
        "it ended with exit code 0",
        "a job that ends 0 has ended, and is not run again (it called sbatch: that is another job); next: ",
    ),
    "deaf.sh": (
        "it did not end within ",
        "neither ended nor called scontrol requeue within its 2 s; next: save and end sooner, or more time, "
        "as in signal:USR1@4; a shell runs its trap when what it waits for has ended",
    ),
    "unheard.sh": (
        ": there is none",
        "it starts no step by srun, so nobody hears SIGUSR1; next: #SBATCH --signal=B:",
    ),
}


@pytest.mark.parametrize("script", STAYS)
def test_script_that_would_not_be_moved_says_why(script, tried):
    code, out = tried(script)
    how, why = STAYS[script]
    assert code == 1 and how in out and "it would not be moved: " in out and why in out
    assert "identical" not in out


WRONG = {
    "anew.py": "started again it began anew, all ",
    "silent.py": "in its directory it had written no file; next: let it save before",
    "forgetful.py": "started again it computes losses that the run alone has nowhere",
    "partial.py": "it computes something else than alone: its own checkpoint leaves something out",
    "constant.py": "its losses repeat, so they do not tell where it went on",
}


@pytest.mark.parametrize("script", WRONG)
def test_script_that_does_not_go_on_as_it_was_says_so(script, tried):
    code, out = tried(script, "--checkpoint=self")
    assert code == 1 and WRONG[script] in out and "identical" not in out


def test_file_outside_of_its_directory_is_found_out(tried, tmp_path, monkeypatch):
    monkeypatch.setenv("ELSEWHERE", str(tmp_path / "last"))
    code, out = tried("elsewhere.py", "--checkpoint=self")
    assert code == 1 and re.search(r"behind mini-batch \d+ of the run before, from a file of its own; ", out)


def test_script_that_ends_by_itself_is_not_interrupted(tried):
    code, out = tried("short.py", "--checkpoint=self")
    assert code == 1 and "it ended before it could be interrupted; next: fewer --steps" in out


@slow("6 s more; test_script_that_is_killed_goes_on_from_its_own_file has the end by SIGTERM")
def test_script_that_heeds_no_sigterm_is_killed_as_by_slurm(tried, monkeypatch):
    monkeypatch.setattr(own_trial, "KILL_WAIT_S", 1.0)
    code, _ = tried("stubborn.py", "--checkpoint=self")
    assert code == 0


def test_directory_that_runs_no_programs_is_told(tried, monkeypatch):
    """On a login node the real srun would be found behind the one that stands in."""
    monkeypatch.setattr("pathlib.Path.chmod", lambda *_: None)
    code, out = tried("step.sh")
    assert code == 1 and "no program can be run in " in out and "next: TMPDIR=" in out


def test_job_that_may_not_be_moved_is_not(tried):
    code, out = tried("fixed.sh")
    assert code == 0
    assert "moved:   no: it asks not to be (fixed.sh:4: #SBATCH --gandiva-migrate=never)" in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--checkpoint=signal:KILL",), "got 'signal:KILL', takes auto, signal[:NAME[@SECONDS[:DIR]]], "),
        (
            ("--checkpoint=signal",),
            "its script has no #SBATCH --signal; next: name the signal, as in signal:",
        ),
        (("--checkpoint=submitit",), "submitit is not tried: "),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_runs(options, sentence, tried):
    code, out = tried("train.py", *options)
    assert code == 2 and sentence in out and "alone:" not in out


ALONE = [f"0x{number}" for number in range(9)]


@pytest.mark.parametrize(
    ("got", "place"),
    [
        (ALONE[4:], Place(4, 5, 5)),
        (ALONE[:3], Place(0, 3, 3)),
        ([*ALONE[4:6], "0xa"], Place(4, 2, 3)),
        ([*ALONE[7:], "0x9"], Place(7, 2, 2)),  # further than the run alone came
    ],
)
def test_place_is_where_the_losses_are_the_same(got, place):
    assert find_place({0: ALONE, 1: ALONE}, {0: got, 1: got}, 100) == place


@pytest.mark.parametrize(
    ("want", "got", "sentence"),
    [
        (ALONE, ["0xa", *ALONE], "has nowhere"),
        ([*ALONE, *ALONE], ALONE[:4], "its losses repeat"),
    ],
)
def test_place_that_is_none_is_said(want, got, sentence):
    assert sentence in find_place({0: want}, {0: got}, 100)


@pytest.mark.parametrize(
    ("stand", "sentence"),
    [
        ((40, 47), "went on behind mini-batch 40 and did 7 again"),
        ((47, 47), "went on behind mini-batch 47 and did none again"),
        ((0, 47), "began anew: all 47 mini-batches are lost"),
        ((-1, 47), "where it went on cannot be told: its optimizer counts no steps"),
        ((40, -1), "where it went on cannot be told"),
    ],
)
def test_optimizers_count_tells_what_losses_do_not(stand, sentence):
    assert sentence in own_trial._by_count(*stand)


def test_ranks_are_those_of_the_run_alone():
    assert find_place({0: ALONE, 1: ALONE}, {0: ALONE}, 100) == "it has ranks [0], and [0, 1] alone"


def test_ranks_go_on_at_one_place():
    assert "from different mini-batches: 3, 4" in find_place(
        {0: ALONE, 1: ALONE}, {0: ALONE[3:], 1: ALONE[4:]}, 100
    )


def test_tries_before_a_training_that_is_saved_count_once():
    """A Tuner's, which each life does again; what each life of a plain training computes counts."""
    tries = "begin\na\nb\n"
    assert losses_of(f"{tries}c saved\nd saved\n{tries}e saved\n") == ["a", "b", "c", "d", "e"]
    assert losses_of(f"{tries}c saved\nbegin\na\n") == ["a", "b", "c"]
    assert losses_of(f"{tries}c saved\nbegin\na\nx\nd saved\n") == ["a", "b", "c", "a", "x", "d"]
    assert losses_of("begin\na saved\nbegin\nb\n") == ["a", "b"]
