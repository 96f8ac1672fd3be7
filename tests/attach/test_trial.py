"""`gandiva try` and `gandiva doctor` on scripts that keep the rules, and on such that break one."""

import json
import random
import re
import socket
import sys

import pytest

from gandiva_slurm.cli.json_shapes import PRINTED
from gandiva_slurm.cli.lone import LoneNode
from gandiva_slurm.cli.main import main
from gandiva_slurm.cli.runs import BEHIND, Trial
from gandiva_slurm.cli.script_ways import Script
from gandiva_slurm.node import procs
from tests import patience
from tests.park_harness import wait_until
from tests.slow import by_need, slow, soak

#: It compiles nothing, and a user would not have its third and fourth line: they save a second at each start.
HEAD = """
import torch, gandiva_slurm as gandiva
from gandiva_slurm.mini.workloads.lean import leave_compiler_out
leave_compiler_out()
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
def train(x):
    loss = (model(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOOP = "for _ in range(60): train(torch.rand(8, 4))"
ATTACHED = """
run = gandiva.attach(model=model, optimizer=optimizer)
for epoch in run.epochs(4):
    for x in run.steps(torch.rand(20, 8, 4)): train(x)"""
#: A step takes its time, lest the script end before it has been parked and moved.
SLOW = "; time.sleep(0.01)"
LONG = "import time\n" + ATTACHED.replace("(4)", "(1000)") + SLOW
SCRIPTS = {
    # It is ended by those who try it, however slow they are.
    "hooked": HEAD + "import time\n" + LOOP.replace("60", "100_000") + SLOW,
    "attached": HEAD + LONG,
    "forgetful": HEAD + LONG.replace(", optimizer=optimizer", ""),
    "unseeded": HEAD.replace("torch.manual_seed(0)", "") + LOOP,
    "unmarked": HEAD.replace("    optimizer.step()\n", "") + LOOP,
    "failing": HEAD + "raise SystemExit('no data')",
    # It ends at once, as tests.stopping.leave_group does and for its reason.
    "gang": "import atexit, os, sys, time\natexit.register(os._exit, 0)\natexit.register(sys.stdout.flush)\n"
    + HEAD.replace("def train(x):", "def train(x):\n    time.sleep(0.01)").replace(
        "model = torch.nn.Linear(4, 1)",
        "torch.distributed.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))",
    )
    + ATTACHED.replace("(4)", "(1000)")
    + "\ntorch.distributed.destroy_process_group()\n",
}


def running(script):
    """The processes that run this script."""
    return [pid for pid in procs.table() if script in procs.read_text(pid, "cmdline")]


@pytest.fixture
def gandiva(tmp_path, capfd):
    """Run `gandiva COMMAND OPTIONS -- python SCRIPT`; return exit code and what it printed.

    No process of the script may be left behind.
    """

    def run(command, script, *options, launcher=()):
        path = tmp_path / f"{script}.py"
        path.write_text(SCRIPTS[script])
        with pytest.raises(SystemExit) as end:
            deadline = str(round(120 * patience.slowness()))
            main([command, *options, "--deadline", deadline, "--", sys.executable, *launcher, str(path)])
        out, err = capfd.readouterr()
        wait_until(lambda: not running(str(path)), "the script's processes to be gone")
        return end.value.code, out + err

    return run


def test_script_with_the_hook_alone_is_parked(gandiva):
    """Though it is first parked behind the losses that were asked for, as on a busy machine."""
    code, out = gandiva("try", "hooked", "--steps", "2")
    assert code == 0 and "the losses are identical" in out
    *_, parks = re.search(r"parked:  (\d+) losses on 1 rank, (\d+) parks", out).groups()
    alone = [int(count) for count in re.findall(r"alone:   (\d+) losses", out)]
    assert int(parks) >= 1 and max(alone) >= 2 + BEHIND
    assert re.search(r"^image:   (could be made, as far as|no: it uses /tmp/)", out, re.MULTILINE)
    assert "moved:   no: the script has no gandiva.attach(), and no framework's Trainer that is known" in out


#: As users write it: what it trained with lies in a file, which it looks for when it starts.
OWN = (
    HEAD
    + """
import os, time
begin = 0
if os.path.exists("last.pt"):
    begin, of_model, of_optimizer = torch.load("last.pt")
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
for number in range(begin, 100_000):
    train(torch.rand(8, 4, generator=torch.Generator().manual_seed(number)))
    if number % 10 == 9:
        torch.save((number + 1, model.state_dict(), optimizer.state_dict()), "new.pt")
        os.replace("new.pt", "last.pt")
    time.sleep(0.01)
"""
)


@pytest.fixture
def tried(tmp_path, monkeypatch, capfd):
    """Try a script by its own newest file; return exit code, what was said, and the mini-batches in it."""
    monkeypatch.chdir(tmp_path)

    def run(text):
        (tmp_path / "own.py").write_text(text)
        with pytest.raises(SystemExit) as end:
            main(["try", "--steps", "30", "--checkpoint", "self", "--", sys.executable, "own.py"])
        out = capfd.readouterr().out
        return end.value.code, out, *map(int, re.findall(r"(?:ended after|on behind mini-batch) (\d+) ", out))

    return run


@slow("12 s, torch starts four times; unit/test_own_trial has scripts without it")
def test_own_checkpoint_of_torch_is_moved(tried):
    code, out, after, went = tried(OWN)
    assert code == 0 and "the losses are identical, bit for bit" in out, out
    assert went % 10 == 0 and went > 0 and after - went <= 10, "it may be told while it writes the next"


@slow("12 s, torch starts four times; unit/test_own_trial has how it is told")
def test_its_optimizer_tells_where_one_went_on_that_computes_something_else(tried):
    """It draws otherwise when it is started again, so that its losses tell nothing."""
    code, out, after, went = tried(OWN.replace("manual_seed(number)", "manual_seed(number + 10**6 * begin)"))
    assert code == 1 and "computes losses that the run alone has nowhere" in out, out
    assert "its optimizer went on behind" in out, out
    again = re.search(r"and did (none|\d+) again", out)[1].replace("none", "0")
    assert went % 10 == 0 and went > 0 and after - went - int(again) in (0, 1), out


@soak("50 s, torch starts eight times; test_requeue has gangs, the other trials the command")
def test_gang_of_a_launcher_is_parked_and_moved(gandiva):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    code, out = gandiva("try", "gang", launcher=launcher)
    assert code == 0 and "the losses are identical, bit for bit" in out, out
    assert re.search(r"alone:   \d+ losses on 2 ranks\n", out), out
    assert re.search(r"moved:   attached: \d+ losses on 2 ranks, 2 moves\n", out), out


BROKEN = {
    "forgetful": "something that it trains on is not saved; next: give attach() every model",
    "unseeded": "the script is not deterministic: two runs alone differ too (loss 0",
    "unmarked": "no boundary was found: no optimizer of torch steps here",
    "failing": "ended with exit code 1 (alone):\nno data",
}


@slow("6 starts of torch; the first park that comes late is in make test")
def test_move_behind_what_was_asked_for_is_compared(gandiva):
    code, out = gandiva("try", "forgetful", "--steps", "2")
    assert code == 1 and BROKEN["forgetful"] in out


@pytest.mark.parametrize("script", by_need(BROKEN, "failing"))
def test_broken_rule_is_named(script, gandiva):
    code, out = gandiva("try", script, "--steps", "50")
    assert code == 1 and BROKEN[script] in out


def test_rank_that_gives_up_while_it_is_greeted_ends_no_trial(tmp_path):
    hello = b'{"rank": 0, "world": 2, "kind": 1}\n'
    with LoneNode(tmp_path, "run") as node:
        for words in (b"", b"no hello\n", hello):
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(tmp_path / "run.socket0"))
                link.sendall(words)
            node.look()
        assert not node.is_training()


def test_last_words_are_the_scripts_own(tmp_path):
    trial, log = Trial(Script([]), tmp_path, 1, 1.0, random.Random(0)), tmp_path / "alone.log"
    launchers = "E1121 12:24:38.2 7 torch/distributed/elastic/multiprocessing/api.py:1002] failed\n"
    log.write_text("here\nValueError: no data\n" + launchers + "====\n" * 9)
    assert trial.tail("alone") == "here\nValueError: no data"
    log.write_text(launchers + "====\n")
    assert trial.tail("alone") == launchers + "===="


def test_program_that_is_not_there_is_told(capfd):
    with pytest.raises(SystemExit) as end:
        main(["try", "--", "no-such-program"])
    assert end.value.code == 1 and "there is no program 'no-such-program'" in capfd.readouterr().err


def test_doctor_tells_what_can_be_done(gandiva):
    code, out = gandiva("doctor", "attached", "--json")
    found = json.loads(out)
    assert code == 0 and found["version"] == 1
    PRINTED["doctor"].model_validate(found)
    assert found["boundary"].startswith("run.steps() of gandiva.attach()")
    assert found["optimizers"] == "Adam of 2 tensors, 0.0 KiB of parameters, 0.0 KiB of state"
    assert found["parked"].startswith("yes, within") and found["moved"].startswith("yes: attached, ")
    # A Python below /tmp is this machine's own.
    assert found["image"].startswith(("could be made, and is not needed", "no: it uses /tmp/"))
    assert found["auto"].startswith("by attached: its ranks save it, nothing is lost (attached.py:")
    assert found["auto"].endswith(": run = gandiva.attach(model=model, optimizer=optimizer))")


@slow("two starts of torch; an attached script is in make test, and what try says of these two")
def test_doctor_tells_what_cannot_be_done(gandiva):
    code, out = gandiva("doctor", "hooked")
    assert code == 0 and "found by the hook" in out and "no: the script has no gandiva.attach()" in out
    assert "auto:        not; next: gandiva.attach() in it" in out
    code, out = gandiva("doctor", "unmarked")
    assert code == 1 and "none: no optimizer of torch was seen to step" in out
