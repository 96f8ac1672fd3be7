"""container/install-python.py against an index of tiny wheels: its choices, sentences and interruptions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests import setup_kit as kit


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.Clone]:
    """A clone whose set-up was run once, with a CPU build in the index's second directory."""
    base = tmp_path_factory.mktemp("setup")
    index = kit.Index(("127.0.0.1", 0), lambda *args: kit.Handler(*args, directory=str(base)))
    threading.Thread(target=index.serve_forever, daemon=True).start()
    clone = kit.Clone(base, index)
    (base / "told").write_text(json.dumps(clone.run("--torch-index", f"{clone.address}/cpu/")))
    shutil.copytree(clone.venv, base / "made", symlinks=True)
    yield clone
    index.shutdown()
    index.server_close()


@pytest.fixture
def clone(first: kit.Clone) -> kit.Clone:
    """The clone as after its first set-up: the environment whole, no fakes but ldconfig."""
    shutil.rmtree(first.venv, ignore_errors=True)
    shutil.copytree(first.root.parent / "made", first.venv, symlinks=True, copy_function=os.link)
    for fake in first.bin.iterdir():
        if fake.name != "ldconfig":
            fake.unlink()
    first.index.cut = first.index.held = "nothing"
    first.index.asked = threading.Event()
    return first


def test_each_step_has_a_line_and_its_time_and_a_cpu_build_comes_first(clone: kit.Clone) -> None:
    code, out = json.loads((clone.root.parent / "told").read_text())
    assert code == 0, out
    begun = [line.split(":")[0] for line in out.splitlines() if line.startswith("==")]
    assert begun == ["== venv", "== torch", "== rest", "== bytecode"]
    assert "a CPU build if any: no NVIDIA driver is here" in out
    for name in ("venv", "torch", "rest", "bytecode"):
        assert any(line.startswith(f"   {name}: ") and line.endswith(" s") for line in out.splitlines()), out
    assert clone.has_torch() == "torch-2.13.0+cpu"
    clone.complete()


def test_a_second_run_says_and_does_nothing(clone: kit.Clone) -> None:
    before = (clone.venv / "setup.json").stat().st_mtime_ns
    for words in (
        ("--torch-index", f"{clone.address}/cpu/"),
        (),
    ):  # an index once named need not be named again
        assert clone.run(*words, PIP_INDEX_URL="http://127.0.0.1:9/") == (0, "")
    assert (clone.venv / "setup.json").stat().st_mtime_ns == before


def test_only_a_build_with_cuda_is_found_and_its_size_and_time_are_told_first(clone: kit.Clone) -> None:
    kit.forget(clone, "torch", "bytecode")
    code, out = clone.run()
    assert code == 0, out
    assert "pip finds no torch==2.13.0+cpu. PyTorch's page 'Get started' names the index" in out
    assert "with CUDA" in out
    assert "0.00 GB to download, at 100 Mbit/s in about 1 min" in out
    assert clone.has_torch() == "torch-2.13.0"


@pytest.mark.parametrize("why", ["driver", "--cuda"])
def test_a_cpu_build_is_not_asked_for_with_a_driver_or_for_the_tests_of_gpus(
    clone: kit.Clone, why: str
) -> None:
    if why == "driver":
        kit.forget(clone, "torch")
        clone.fake("nvidia-smi", ":")
    code, out = clone.run(*([why] if why == "--cuda" else []))
    assert code == 0, out
    assert "CPU build" not in out and "finds no" not in out
    assert clone.has_torch() == "torch-2.13.0"
    clone.complete()


def test_a_wheel_that_is_named_is_taken_as_it_is(clone: kit.Clone) -> None:
    named = kit.wheel(clone.root.parent, "torch", "2.12.0+mine")
    code, out = clone.run("--torch", str(named))
    assert code == 0, out
    assert clone.has_torch() == "torch-2.12.0+mine"
    clone.complete()


def test_no_network_has_a_sentence_and_no_other_build_is_taken_for_it(clone: kit.Clone) -> None:
    kit.forget(clone, "torch")
    code, out = clone.run(PIP_INDEX_URL="http://127.0.0.1:9/simple/")
    assert code == 1
    assert "gandiva: torch: pip does not reach its package index" in out
    assert "gandiva: next: check the network" in out
    assert "Going on with any build" not in out


def test_no_such_version_has_a_sentence(clone: kit.Clone) -> None:
    code, out = clone.run("--torch", "torch==1.0+cpu")
    assert code == 1
    assert "gandiva: torch: pip finds no torch==1.0+cpu for this Python" in out
    assert "gandiva: next: name a PyTorch" in out


def test_too_little_space_has_a_sentence_before_anything_is_fetched(clone: kit.Clone) -> None:
    kit.forget(clone, "torch")
    clone.fake("df", 'echo header; echo "/dev/vda 100 50 500000 90% /a b"')
    code, out = clone.run(PIP_INDEX_URL="http://127.0.0.1:9/simple/")
    assert code == 1
    assert "gandiva: torch: too little space on /a b: 0.5 GB free, 2.3 GB needed" in out
    assert "gandiva: next: make room" in out


def test_a_download_that_breaks_off_has_a_sentence_and_the_next_run_goes_on(clone: kit.Clone) -> None:
    kit.forget(clone, "rest[dev]", "bytecode", "torch")
    clone.index.cut = "tiny_tool"
    index = f"{clone.address}/cpu/"
    code, out = clone.run("--torch-index", index)
    assert code == 1, out
    assert "the connection broke" in out and "make setup then goes on from here" in out
    clone.index.cut = "nothing"
    code, out = clone.run("--torch-index", index)
    assert code == 0, out
    assert "== venv" not in out and "== torch" not in out
    clone.complete()


@pytest.mark.parametrize(
    ("number", "held"),
    [
        (signal.SIGINT, "torch"),
        (signal.SIGTERM, "tiny_tool"),
        (signal.SIGKILL, "tiny_tool"),
    ],
)
def test_a_run_stopped_in_a_download_is_gone_on_with(
    clone: kit.Clone, number: signal.Signals, held: str
) -> None:
    kit.forget(clone, "rest[dev]", "bytecode", "torch")
    clone.index.held = held
    shutil.rmtree(clone.root / "cache", ignore_errors=True)
    words = ("--torch-index", f"{clone.address}/cpu/")
    process = clone.start(*words)
    assert clone.index.asked.wait(120)
    os.killpg(process.pid, number) if number != signal.SIGTERM else process.terminate()
    out = process.communicate(timeout=60)[0]
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "gandiva: stopped; make setup then goes on from here" in out
    clone.index.held = "nothing"
    code, out = clone.run(*words)
    assert code == 0, out
    assert ("== torch" in out) == (held == "torch")
    clone.complete()


def test_a_package_that_a_killed_pip_left_half_installed_is_installed_again(clone: kit.Clone) -> None:
    kit.forget(clone, "bytecode", "torch")
    half = next(clone.venv.glob("lib/python*/site-packages")) / "torch-2.13.0+cpu.dist-info"
    half.mkdir()  # pip takes it for installed, and there is no torch.py
    (half / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n")
    code, out = clone.run("--torch-index", f"{clone.address}/cpu/")
    assert code == 0, out
    clone.complete()


@pytest.mark.parametrize("harm", ["python", "note", "moved"])
def test_an_environment_that_does_not_run_or_is_not_whole_counts_for_nothing(
    clone: kit.Clone, harm: str
) -> None:
    ask = "import importlib, pathlib, sys; sys.path.insert(0, sys.argv[1]);"
    ask += "print(len(importlib.import_module('install-python').done_steps(pathlib.Path(sys.argv[2]))))"

    def told() -> str:
        command = [sys.executable, "-c", ask, str(kit.ROOT / "container"), str(clone.venv)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    assert told() == "4\n"
    if harm == "python":
        (clone.venv / "bin/python").unlink()
        (clone.venv / "bin/python").symlink_to("/nowhere/python")
    else:
        kit.renote(clone, '{"venv"' if harm == "note" else '{"venv": "/elsewhere/.venv", "torch": 1}')
    assert told() == "0\n"


def test_an_environment_is_made_in_the_place_of_a_broken_one_or_says_that_python_lacks_venv(
    clone: kit.Clone,
) -> None:
    kit.renote(clone, "")
    (clone.venv / "left").touch()
    (clone.root / "container/venv.py").write_text(
        "print('... ensurepip is not available.'); raise SystemExit(1)\n"
    )
    try:
        code, out = clone.run(PYTHONPATH=str(clone.root / "container"))
    finally:
        (clone.root / "container/venv.py").unlink()
    assert not clone.venv.exists()
    assert code == 1
    assert "== venv: making .venv" in out
    assert "this Python lacks venv (Debian's python3-venv)" in out
    assert "gandiva: next: as root, apt-get install python3-venv" in out
