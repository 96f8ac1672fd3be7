"""The client in a process of its own: signals, forks, exit, cost, other Pythons."""

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gandiva_slurm.wire.page import DONE, PARKED, W_PID, W_SEQ, W_STATE, W_USER_STEPS
from tests.park_harness import Harness, is_alive

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gandiva_slurm"
LOOP = """
import time
import gandiva_slurm as gandiva
while True:
    time.sleep(0.001)
    gandiva.step()
"""


@pytest.fixture
def node(tmp_path):
    harness = Harness(str(tmp_path / "node.sock"), 1)
    yield harness
    harness.close()


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Start Python on a text; it is killed in the end if the test did not wait for it."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    started = []

    def start(text, *options, python=sys.executable, **env):
        environment = {
            **os.environ,
            "GANDIVA_SOCKET": str(tmp_path / "node.sock"),
            "PYTHONPATH": str(ROOT),
            **env,
        }
        process = subprocess.Popen(
            [python, *options, "-c", text],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_interrupt_ends_a_parked_script_as_it_ends_any(node, script):
    # What runs in the background of a shell, as CI may, has SIGINT ignored, and its children too.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    process = script(heed + LOOP)
    node.serve()
    node.park()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in err and process.returncode != 0
    assert node.views()[0][W_STATE] == DONE


def test_parked_script_can_be_terminated(node, script):
    process = script(LOOP)
    node.serve()
    node.park()
    process.terminate()
    assert process.wait(10) == -signal.SIGTERM


def test_signal_handlers_are_served_while_parked(node, script):
    process = script(
        "import signal\nsignal.signal(signal.SIGUSR2, lambda *_: print('served', flush=True))" + LOOP
    )
    node.serve()
    node.park()
    process.send_signal(signal.SIGUSR2)
    assert process.stdout.readline() == "served\n"
    assert node.views()[0][W_STATE] == PARKED
    node.resume()


HANDLERS = {
    "function": "def handler(*_):\n    raise TimeoutError('enough')\n",
    "method": "class H:\n    def h(self, *_):\n        raise TimeoutError('enough')\nhandler = H().h\n",
    "object": "class H:\n    def __call__(self, *_):\n        raise TimeoutError('enough')\nhandler = H()\n",
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_exception_of_the_scripts_own_handler_reaches_the_script(node, script, kind):
    text = f"""
import signal, time
import gandiva_slurm as gandiva
{HANDLERS[kind]}
signal.signal(signal.SIGALRM, handler)
try:
    while True:
        time.sleep(0.001)
        gandiva.step()
except TimeoutError as err:
    print("caught", err, flush=True)
while True:
    time.sleep(0.001)
    gandiva.step()
"""
    process = script(text)
    node.serve()
    node.park()
    process.send_signal(signal.SIGALRM)
    assert process.stdout.readline() == "caught enough\n"
    seq = node.views()[0][W_SEQ]
    node.wait(lambda: node.views()[0][W_SEQ] > seq + 3, "training to go on")
    node.resume()
    node.park()
    assert node.gang.phase == "parked", "the rank can be parked again"


def test_children_of_a_rank_are_no_ranks(node, script):
    text = """
import os, sys, time
import gandiva_slurm as gandiva
for _ in range(5):
    gandiva.step()
if os.fork() == 0:
    for _ in range(100):
        gandiva.step()
    sys.exit(0)
os.wait()
while True:
    time.sleep(0.001)
    gandiva.step()
"""
    process = script(text)
    node.serve()
    node.wait(lambda: node.views()[0][W_SEQ] > 10, "the parent to go on")
    words = node.views()[0]
    assert words[W_PID] == process.pid and words[W_STATE] != DONE
    # They are written one after the other.
    node.wait(lambda: len({node.views()[0][word] for word in (W_USER_STEPS, W_SEQ)}) == 1, "equal counts")


def test_child_forked_before_the_first_boundary_is_the_rank(node, script):
    text = """
import os, time
import gandiva_slurm as gandiva
data = gandiva.steps(range(10 ** 9))
if os.fork() != 0:
    os.wait()
else:
    for _ in data:
        time.sleep(0.001)
"""
    process = script(text)
    node.serve()
    child = node.peers[0].pid
    assert child != process.pid
    node.park()
    assert node.gang.phase == "parked"
    os.kill(child, signal.SIGKILL)
    assert process.wait(10) == 0


def test_script_that_ends_says_so_and_is_gone(node, script):
    process = script("import gandiva_slurm as g, time\nfor _ in g.steps(range(2000)): time.sleep(0.001)")
    node.serve()
    pid = node.peers[0].pid
    assert process.wait(60) == 0
    assert not is_alive(pid)
    words = node.views()[0]
    assert (words[W_STATE], words[W_SEQ], words[W_USER_STEPS]) == (DONE, 2000, 2000)


@pytest.mark.parametrize("socket", ["missing", "dead"])
def test_job_without_a_node_runs_at_full_speed(script, tmp_path, socket):
    if socket == "dead":
        Harness(str(tmp_path / "node.sock"), 1).close()
    text = "import gandiva_slurm as g\nfor _ in g.steps(range(20000)): pass\nprint('done')"
    start = time.monotonic()
    out, err = script(text).communicate(timeout=20)
    assert out == "done\n" and err.count("gandiva:") == 1
    assert time.monotonic() - start < 10


def test_import_is_light(script):
    text = """
import sys, time
before = set(sys.modules)
start = time.perf_counter_ns()
import gandiva_slurm as gandiva
spent = time.perf_counter_ns() - start
print(spent, *sorted(set(sys.modules) - before))
"""
    spent, modules = [], set()
    for _ in range(5):
        out, _ = script(text).communicate(timeout=20)
        spent.append(int(out.split()[0]))
        modules.update(out.split()[1:])
    assert modules == {"gandiva_slurm"}
    assert min(spent) < 20_000_000


def test_boundary_makes_no_system_call(node, script, tmp_path):
    text = """
import os
import gandiva_slurm as gandiva
from gandiva_slurm.client import optimizers, rank

class Optimizer:
    pass

watch, optimizer = optimizers.StepWatch(rank.this_rank(), lambda: -1), Optimizer()

def hooked(times):
    for _ in range(times):
        watch.before(optimizer, (), {})
        watch.after(optimizer, (), {})

hooked(100)
os.write(1, b"none")
hooked(20000)
os.write(1, b"hook")
for _ in range(100):
    gandiva.step()
os.write(1, b"one")
for _ in range(20000):
    gandiva.step()
os.write(1, b"two")
for _ in gandiva.steps(range(20000)):
    pass
os.write(1, b"three")
run = gandiva.attach()
for _ in run.steps(range(100)):
    pass
os.write(1, b"four")
for _ in run.steps(range(20000)):
    pass
os.write(1, b"five")
"""
    assert shutil.which("strace"), "strace is missing: make setup installs it"
    log = tmp_path / "strace"
    tracer = script(
        "import os, sys\n"
        f"os.execvp('strace', ['strace', '-f', '-o', {str(log)!r}, sys.executable, '-c', {text!r}])"
    )
    node.serve()
    assert tracer.wait(60) == 0
    calls = log.read_text().splitlines()
    none, hook, one, two, three, four, five = (
        next(n for n, line in enumerate(calls) if f'write(1, "{name}"' in line)
        for name in ("none", "hook", "one", "two", "three", "four", "five")
    )
    assert calls[none + 1 : hook] == []
    assert calls[one + 1 : two] == []
    # A range's iterator may have to ask for memory; a boundary may not.
    assert len(calls[two + 1 : three]) <= 2
    assert len(calls[four + 1 : five]) <= 2


def client_sources():
    return [
        *sorted((PACKAGE / "client").rglob("*.py")),
        PACKAGE / "__init__.py",
        PACKAGE / "wire" / "page.py",
    ]


@pytest.mark.parametrize("source", client_sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_source_is_python_3_8(source):
    ast.parse(source.read_text(), feature_version=(3, 8))


def other_pythons():
    """Every Python from 3.8 on that this machine has, one of each minor version."""
    found = {}
    for minor in range(8, 16):
        installed = Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")
        for path in filter(None, [shutil.which(f"python3.{minor}"), *map(str, installed)]):
            if subprocess.run([path, "-c", ""], capture_output=True, timeout=20).returncode == 0:
                found.setdefault(f"3.{minor}", path)
    return found


PYTHONS = other_pythons() or {"this": sys.executable}


@pytest.mark.parametrize("version", PYTHONS)
def test_every_python_here_can_be_parked(node, script, version):
    script(LOOP, python=PYTHONS[version])
    node.serve()
    for _ in range(3):
        node.park()
        assert node.gang.phase == "parked"
        node.resume()
