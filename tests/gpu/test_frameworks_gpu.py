"""Frameworks and models on a GPU: parked again and again, what is left on the card, the same losses."""

import importlib.util
import json
import statistics
import subprocess
import sys
import time

import pytest

from gandiva_slurm.wire.page import TIER_TORCH, W_HELD, W_RELEASED, W_SEQ, W_TIER_USED
from tests.gpu import device, real
from tests.gpu.device import IS_SIM, MIB, ROOT
from tests.gpu.figures import figure
from tests.park_harness import Harness
from tests.skips import ONLY_CUDA

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

PARKS = 3 if IS_SIM else 8
HOOK = ROOT / "gandiva_slurm/client/hook"
#: What each needs beside torch.
NEEDS = {
    "bert": "transformers", "llama": "transformers", "fsdp": "transformers", "accelerated": "accelerate",
    "trainer": "transformers", "lightning": "pytorch_lightning",
}  # fmt: skip
#: Kinds that the simulated card cannot compute.
CUDA_ONLY = ("compiled", "ddp", "views", "fsdp", "accelerated", "trainer", "lightning")
#: What a process may keep on the card beside its context; in `ddp` its buckets, as large as its parameters.
KEPT = {"ddp": 140 * MIB}
LEAST_KEPT = 4 * MIB


def start(name, path, steps, stop, **more):
    hook = str(HOOK) + ":" if name in real.WHOLE and more else ""
    env = device.environment(CUBLAS_WORKSPACE_CONFIG=":4096:8", **more)
    env["PYTHONPATH"] = hook + env["PYTHONPATH"]
    argv = [sys.executable, ROOT / "tests/gpu/real.py", name, path, steps, stop]
    with open(path.with_suffix(".err"), "w") as err:
        return subprocess.Popen(list(map(str, argv)), env=env, stderr=err, stdout=err, cwd=path.parent)


def on_card(library, pid):
    """Bytes of the process on the card, None where NVML numbers processes otherwise."""
    used = {use.pid: use.memory for use in library.uses()}
    return used.get(pid)


@pytest.fixture(scope="module")
def parked(tmp_path_factory):
    """The losses of each kind that was parked: of them the runs alone are made, all at once."""
    return tmp_path_factory.mktemp("alone"), {}


@pytest.mark.parametrize("name", [*real.KINDS, *real.WHOLE])
def test_it_is_parked_and_its_memory_is_gone(name, tmp_path, library, parked):
    if IS_SIM and name in CUDA_ONLY:
        pytest.skip(ONLY_CUDA)
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    node, out, stop = Harness(str(tmp_path / "node.sock"), 1), tmp_path / f"{name}.json", tmp_path / "stop"
    job = start(name, out, 1_000_000, stop, GANDIVA_SOCKET=str(tmp_path / "node.sock"))
    try:
        node.serve(90, boundaries=5)
        took, seen = [], on_card(library, job.pid)
        for _ in range(PARKS):
            begin = time.perf_counter()
            node.park(60)
            assert node.gang.phase == "parked", node.gang.last_error
            parked_s = time.perf_counter() - begin
            view, left = node.views()[0], on_card(library, job.pid)
            begin, seq = time.perf_counter(), view[W_SEQ]
            node.resume(60)
            node.wait(lambda seq=seq: node.views()[0][W_SEQ] > seq, "a step", 60)
            took.append((parked_s, time.perf_counter() - begin))
            node.wait(lambda seq=seq: node.views()[0][W_SEQ] > seq + 5, "steps", 60)
        stop.touch()
        assert job.wait(120) == 0, out.with_suffix(".err").read_text()[-2000:]
        parked[1][name] = json.loads(out.read_text())
        parks, resumes = (statistics.median(column) * 1e3 for column in zip(*took[1:], strict=True))
        sizes = f"{view[W_RELEASED] >> 20} MiB released, {view[W_HELD] / MIB:.1f} held"
        nvml = f"; by NVML {seen >> 20} MiB training, {left >> 20} parked" if seen and left else ""
        ways = f"park {parks:.0f} ms (the first {took[0][0] * 1e3:.0f}), until the next step {resumes:.0f} ms"
        figure(f"`{name}`, parked {PARKS} times", f"{ways}, p50; {sizes}{nvml}", "only a context is left")
        assert view[W_TIER_USED] == TIER_TORCH
        assert view[W_HELD] <= KEPT.get(name, LEAST_KEPT)
    finally:
        if job.poll() is None:
            print(out.with_suffix(".err").read_text()[-2000:])
        job.kill()
        job.wait()
        node.close()


@pytest.fixture(scope="module")
def alone(parked):
    """The same trainings by themselves, at once: only their losses count."""
    path, known = parked
    runs = {
        name: start(name, path / f"{name}.json", len(losses), path / "none") for name, losses in known.items()
    }
    yield runs
    for run in runs.values():
        run.kill()
        run.wait()


@pytest.mark.parametrize("name", [*real.KINDS, *real.WHOLE])
def test_its_losses_are_those_of_the_run_alone(name, alone, parked):
    path, known = parked
    if name not in known:
        pytest.skip(ONLY_CUDA if IS_SIM else "it was not parked: the test before says why")
    out = path / f"{name}.json"
    assert alone[name].wait(200) == 0, out.with_suffix(".err").read_text()[-2000:]
    losses = json.loads(out.read_text())
    same = sum(one == other for one, other in zip(losses, known[name], strict=True))
    figure(f"`{name}`: losses of a parked run that are the run alone's", f"{same} of {len(losses)}", "all")
    assert losses == known[name]
