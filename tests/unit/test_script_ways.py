"""How a script would move, by its text: settled as at submission, each way by the line that says so."""

import itertools
from pathlib import Path

import click
import pytest

from gandiva_slurm.cli import script_ways, ways_told
from gandiva_slurm.cli.script_ways import TAKES, Checkpoint
from gandiva_slurm.model.errors import UsageError
from tests.job_submit import LUA, run_module
from tests.unit import option_cases

MODULE = Path(__file__).parents[2] / "slurm_conf/gandiva_job_submit.lua"
CONFIGURE = {"partitions": ["gandiva"], "nodes_gpus": {"v100": 4}, "slurm_uid": 64, "admin_uids": [77]}
OPTION = "_SLURM_SPANK_OPTION_gandiva_gandiva_checkpoint"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Write files into a directory and read the first, as a user would name it there."""
    monkeypatch.chdir(tmp_path)

    def _read(**files):
        for name, text in files.items():
            Path(name.replace("_", ".")).write_text(text)
        return script_ways.read([next(iter(files)).replace("_", ".")])

    return _read


SIGNALS = (
    "",
    "#SBATCH --signal=B:USR1@90",
    "#SBATCH --signal SIGUSR1",
    "#SBATCH --signal=RB:TERM@0",
    "#SBATCH --signal=usr2@99999",
    "#SBATCH --signal=KILL@90\n#SBATCH --signal=B:USR1@90",
    "#SBATCH --signal=10@90",
    "#SBATCH --requeue --signal=B:USR1@90 # and a comment --signal=TERM@5",
    "#SBATCH --gres=gpu:1 --signal 'B:USR1@90'",
    '#SBATCH --signal="USR2@20"\n#SBATCH --time=5',
    "#SBATCH --signal\n#SBATCH --requeue",
    "#SBATCHES --signal=B:USR1@90",
    "# a word\n\n#SBATCH --signal=B:USR1@90\nhostname\n#SBATCH --signal=B:TERM@90",
    "hostname\n#SBATCH --signal=B:USR1@90",
    "  #SBATCH --signal=B:USR1@90",
)
REQUEUES = (
    "",
    "#SBATCH --requeue",
    "# scontrol  requeue $SLURM_JOB_ID",
    "#SBATCH --requeue\nexport SUBMITIT_EXECUTOR=slurm",
)
ASKED = ("auto", "signal", "signal:HUP", "signal:INT@5", "submitit", "self", "none")


@pytest.mark.skipif(LUA is None, reason="no lua5.1 (make setup installs it)")
@pytest.mark.parametrize("own", SIGNALS)
def test_checkpoint_is_settled_as_at_submission(own, read, tmp_path):
    """By the filter itself: what `gandiva try` and `doctor` say is what will be."""
    for requeue, asked in itertools.product(REQUEUES, ASKED):
        text = f"#!/bin/bash\n{own}\n{requeue}\npython train.py\n"
        # as sbatch has it, which reads no line behind a command
        is_requeued = "--requeue" in own or ("--requeue" in requeue and "hostname" not in own)
        desc = {
            "partition": "gandiva", "tres_per_node": "gres:gpu:v100:1", "spank": [f"{OPTION}={asked}"],
            "script": text, "requeue": 1 if is_requeued else 65534,
        }  # fmt: skip
        case = {"configure": CONFIGURE, "call": "submit", "uid": 2001, "desc": desc}
        case["parts"] = {"gandiva": {"flag_default": 0, "total_nodes": 6}}
        outcome = run_module(MODULE, case, tmp_path / "case.lua")
        try:
            settled = script_ways.settle(read(job_sh=text), asked).checkpoint
        except UsageError as err:
            assert outcome.rc != 0 and str(err).partition(": ")[2] in outcome.user
            continue
        assert outcome.rc == 0 and outcome.record["checkpoint"] == settled, (own, requeue, asked)


def test_flag_is_the_one_of_sbatch():
    """The same values, the same words."""
    assert option_cases.TAKES["checkpoint"] == TAKES
    for name, value in option_cases.GOOD:
        if name == "checkpoint":
            assert Checkpoint().convert(value, None, None) == value
    for name, value in option_cases.BAD:
        if name == "checkpoint":
            with pytest.raises(click.BadParameter):
                Checkpoint().convert(value, None, None)


JOB = "#!/bin/bash\n#SBATCH --gres=gpu:1\n{0}\n{1}\npython train.py --epochs 3\n"
TRAPS, PLAIN = "trap 'kill -USR1 $!; wait; scontrol requeue $SLURM_JOB_ID' USR1", "x = 1\n"
LOADS = "import torch\n# torch.load is no call here\nstate = torch.load('last.pt')\n"
AGAIN = "it goes on from its own newest file whenever it is started; what it did since is done again"
BY_SIGNAL = "by signal: upon SIG{} to its {} it saves and requeues itself, within {} s"
NO_HANDLER = "; no handler was seen: without one the signal ends it, as by self"
#: Batch script, train.py, how its ranks save it, and what is said of each choice.
TOLD = {
    "its own signal": (
        JOB.format("#SBATCH --signal=B:USR1@90", TRAPS), PLAIN, "",
        {"auto": BY_SIGNAL.format("USR1", "batch shell", 90)
         + f" (job.sh:3: #SBATCH --signal=B:USR1@90; job.sh:4: {TRAPS})"},
    ),
    "a signal that nobody hears": (
        JOB.format("#SBATCH --signal=USR1@90", "#SBATCH --requeue"), PLAIN, "",
        {"auto": BY_SIGNAL.format("USR1", "steps", 90)
         + " (job.sh:3: #SBATCH --signal=USR1@90; job.sh:4: #SBATCH --requeue)" + NO_HANDLER
         + "; it starts no step by srun, so nobody hears it; next: --signal=B:USR1@90"},
    ),
    "a signal at its time limit": (
        JOB.format("#SBATCH --signal=B:USR1@90", "trap 'touch stop' USR1"), PLAIN, "",
        {"auto": "not; next: one of these",
         "signal": BY_SIGNAL.format("USR1", "batch shell", 90)
         + " (job.sh:3: #SBATCH --signal=B:USR1@90; job.sh:4: trap 'touch stop' USR1)"
         "; next: --gandiva-checkpoint=signal, or #SBATCH --requeue, then auto does it"},
    ),
    "a handler, and a file": (
        JOB.format("", ""), LOADS + "import signal\nsignal.signal(signal.SIGUSR2, save)\n", "",
        {"auto": "not; next: one of these",
         "signal": "it handles SIGUSR2 (train.py:5: signal.signal(signal.SIGUSR2, save)); next: #SBATCH "
         "--signal=USR2@90 and --requeue, srun before the training",
         "self": f"--gandiva-checkpoint=self, if {AGAIN} (train.py:3: state = torch.load('last.pt'))"},
    ),
    "self": (
        JOB.format("#SBATCH --gandiva-checkpoint=self", ""), LOADS, "",
        {"auto": f"by self: {AGAIN} (job.sh:3: #SBATCH --gandiva-checkpoint=self)"},
    ),
    "submitit": (
        JOB.format("#SBATCH --signal=USR2@90", "export SUBMITIT_EXECUTOR=slurm"),
        "def checkpoint(self): pass\n", "",
        {"auto": "not; next: one of these",
         "submitit": BY_SIGNAL.format("USR2", "steps", 90).replace("signal", "submitit")
         + " (job.sh:4: export SUBMITIT_EXECUTOR=slurm; train.py:1: def checkpoint(self): pass); next: "
         "--gandiva-checkpoint=submitit, if its function has a checkpoint(): else it begins anew"},
    ),
    "attached": (
        JOB.format("#SBATCH --signal=B:USR1@90", TRAPS), "run = gandiva.attach(model=model)\n", "attached",
        {"auto": "by attached: its ranks save it, nothing is lost "
         "(train.py:1: run = gandiva.attach(model=model))"},
    ),
    "a Trainer that is not known": (
        JOB.format("", ""), "trainer = SFTTrainer(model)\n", "",
        {"auto": "not, though this was found, see `moved` (train.py:1: trainer = SFTTrainer(model)); next: "
         + ways_told._NOTHING},
    ),
    "none": (
        JOB.format("#SBATCH --gandiva-checkpoint=none", ""), LOADS, "",
        {"auto": "not, as it asks (job.sh:3: #SBATCH --gandiva-checkpoint=none)",
         "self": f"--gandiva-checkpoint=self, if {AGAIN} (train.py:3: state = torch.load('last.pt'))"},
    ),
    "never": (
        JOB.format("#SBATCH --no-requeue", ""), LOADS, "attached",
        {"auto": "not: Slurm may not start it again (job.sh:3: #SBATCH --no-requeue)"},
    ),
    "two nodes": (
        JOB.format("#SBATCH --nodes=2 --gandiva-checkpoint=signal:USR1@90", ""), LOADS, "",
        {"auto": BY_SIGNAL.format("USR1", "steps", 90)
         + " (job.sh:3: #SBATCH --nodes=2 --gandiva-checkpoint=signal:USR1@90); no handler was seen: without "
         "one the signal ends it, as by self",
         "self": f"--gandiva-checkpoint=self, if {AGAIN} (train.py:3: state = torch.load('last.pt'))"},
    ),
    "two nodes, from its own file": (
        JOB.format("#SBATCH --nodes=2 --gandiva-checkpoint=self", ""), LOADS, "",
        {"auto": f"by self: {AGAIN} "
         "(job.sh:3: #SBATCH --nodes=2 --gandiva-checkpoint=self)"},
    ),
    "elastic": (
        JOB.format("#SBATCH --gandiva-elastic=1-2\n#SBATCH --gandiva-checkpoint=self", ""), LOADS, "",
        {"auto": f"by self: {AGAIN} (job.sh:4: #SBATCH --gandiva-checkpoint=self)"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_each_way_is_told_by_its_line(name, read):
    job, train, by, want = TOLD[name]
    assert ways_told.ways(read(job_sh=job, train_py=train), by) == want


def test_script_is_run_as_sbatch_runs_it(read, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert read(job_sh="#!/bin/bash -e\nexit\n").command == ["/bin/bash", "-e", "job.sh"]
    assert read(train_py=PLAIN).command == ["python3", "train.py"]
    assert script_ways.read(["no-such-program", "train.py"]).command == ["no-such-program", "train.py"]
    with pytest.raises(UsageError, match=r"^note\.txt is no script: its first line begins with no #!"):
        read(note_txt="python train.py\n")


def test_batch_script_of_python_is_one(read):
    script = read(
        job_py="#!/usr/bin/env python\n#SBATCH --signal=USR1@30 --requeue\n#SBATCH --requeue -n 2\n"
    )
    assert script.is_batch and script.tasks == 2
    assert script_ways.settle(script).checkpoint == "signal:USR1@30"


def test_files_of_a_command_may_be_anything(read):
    """Data, a directory, and what cannot be read (the memory of a process has no first page)."""
    Path("data.py").write_bytes(b"\xff\0torch.load(")
    script = script_ways.read(["python", "data.py", ".", "/proc/self/mem"])
    assert not script.is_batch and script.marks["loads"].file == "data.py"


def test_program_of_a_shell_is_no_batch_script(read, tmp_path, monkeypatch):
    """As pyenv's python is."""
    shim = tmp_path / "python"
    shim.write_text("#!/bin/sh\nexec /usr/bin/python3 $*\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    script = read(train_py=PLAIN)
    assert script.command == [str(shim), "train.py"] and not script.is_batch
