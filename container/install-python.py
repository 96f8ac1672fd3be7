"""Make a virtual environment with PyTorch, the test tools and this package: a part of `make setup`.

Four steps (venv, torch, rest, bytecode), a line each as it begins and one with its seconds. A step that is
done is noted in the environment's setup.json and not repeated; what an interrupted one left is finished or
made anew. Ends with 0, or with a sentence and 1; with 130 when interrupted. Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from steps import GB, GOES_ON, ROOT, explain, pip, runs, say, step, stop, unreached, want_room

OLDEST = (3, 11)
#: Bytes (to download, unpacked with byte code) of what follows PyTorch and of that with a build for CPUs.
#: Measured: docs/setup.md.
REST = (160_000_000, 700_000_000)
WITH_CPU_BUILD = (365_000_000, 1_550_000_000)
#: Unpacked bytes for each byte that a CUDA build downloads, measured: docs/setup.md.
UNPACKED = 1.8
#: Bytes a second of a line of 100 Mbit/s, for saying how long a download takes.
LINE = 12.5e6
#: Modules by the thousand of which a session imports none or a few.
SELDOM = r"/(tests|transformers/models|torch/_inductor|torch/testing)/"


# What is done, and what an interrupted run left


def done_steps(venv: Path) -> dict[str, object]:
    """The steps noted as done; none where the environment does not run, or was moved."""
    try:
        noted = json.loads((venv / "setup.json").read_text())
    except (OSError, ValueError):
        return {}
    return noted if noted.get("venv") == str(venv) and runs(venv / "bin/python", "-c", "import pip") else {}


def note(venv: Path, done: dict[str, object], name: str, how: object) -> None:
    """Write that a step is done; whole or not at all."""
    done[name] = how
    fresh = venv / "setup.json.new"
    fresh.write_text(json.dumps(done, indent=1) + "\n")
    fresh.replace(venv / "setup.json")


def drop_halves(venv: Path) -> None:
    """Forget packages that a killed pip left unfinished: it would take them for installed.

    Its last act on a package is to write a RECORD that lists INSTALLER."""
    for place in venv.glob("lib/python*/site-packages"):
        for info in place.glob("*.dist-info"):
            record = info / "RECORD"
            if not (record.is_file() and f"{info.name}/INSTALLER," in record.read_text()):
                shutil.rmtree(info)
        for old in place.glob("~*"):  # what pip had moved aside
            shutil.rmtree(old) if old.is_dir() else old.unlink()


# PyTorch


def has_driver() -> bool:
    """True where NVIDIA's driver is: a CUDA build has its use."""
    if Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi"):
        return True
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"  # not on every user's PATH
    try:
        return (
            "libcuda.so"
            in subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
        )
    except OSError:
        return False


def default_torch() -> str:
    """The requirement that pyproject.toml names."""
    import tomllib  # Python has it since the oldest one that is taken

    return str(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["torch"][0]
    )


def size_of(address: str) -> int | None:
    """Bytes of a file by its address; None where that is not told."""
    try:
        if address.startswith("file:"):
            return os.path.getsize(unquote(urlsplit(address).path))
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=20) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def plan(venv: Path, wanted: list[str]) -> list[tuple[str, str]] | None:
    """Names and addresses of what pip would fetch; None where pip cannot tell beforehand."""
    if not runs(venv / "bin/python", "-c", "import pip; assert int(pip.__version__.split('.')[0]) >= 25"):
        return None
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        # fast-deps: an index without metadata files is read by ranges instead of whole wheels.
        dry = ["--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--report", str(report)]
        well, said = pip(venv, *dry, *wanted)
        if not well:
            explain("torch", wanted[0], said)
        found = json.loads(report.read_text())["install"]
    return [(each["metadata"]["name"].lower(), each["download_info"]["url"]) for each in found]


def tell_cost(venv: Path, wanted: list[str]) -> None:
    """Say what a build that may be one with CUDA costs, and stop where there is no room for it."""
    packages = plan(venv, wanted)
    if packages is None:
        say(f"   torch: the size of {wanted[0]} is not known before it is fetched; with CUDA it is gigabytes")
        return want_room(venv, "torch", *WITH_CPU_BUILD)
    cuda = [name for name, _ in packages if name.startswith(("nvidia-", "cuda-")) or name == "triton"]
    if not cuda:
        return want_room(venv, "torch", *WITH_CPU_BUILD)
    with ThreadPoolExecutor(8) as at_once:
        sizes = list(at_once.map(size_of, [address for _, address in packages]))
    total = sum(size for size in sizes if size is not None)
    least = "at least " if None in sizes else ""
    minutes = max(1, round(total / LINE / 60))
    say(f"   torch: pip finds a build with CUDA: torch and {len(cuda)} packages of its libraries;")
    say(f"   torch: {least}{total / GB:.2f} GB to download, at 100 Mbit/s in about {minutes} min,")
    say(f"   torch: and about {total * UNPACKED / GB:.1f} GB in {venv.name}")
    return want_room(venv, "torch", REST[0] + total, REST[1] + int(total * UNPACKED))


def install_torch(venv: Path, args: argparse.Namespace, cpu_first: bool) -> None:
    """PyTorch: the build named; else, without a driver, one for CPUs where pip finds any."""
    # setuptools builds this package in the next step.
    others = ["setuptools>=77", *(["--extra-index-url", args.torch_index] if args.torch_index else [])]
    wanted = args.torch or default_torch()
    known = "+cpu" in wanted or wanted.endswith(".whl")
    if known or cpu_first:
        asked = wanted if known else f"{wanted}+cpu"
        want_room(venv, "torch", *WITH_CPU_BUILD)
        well, said = pip(venv, asked, *others)
        if well:
            return
        if known or unreached(said) or "No matching distribution" not in said:
            explain("torch", asked, said)
        say(
            f"   torch: pip finds no {asked}. PyTorch's page 'Get started' names the index of its CPU builds:"
        )
        say("   torch: Ctrl-C and make setup TORCH_INDEX=ADDRESS asks there. Going on with any build")
    tell_cost(venv, [wanted, *others])
    well, said = pip(venv, wanted, *others, shown=True)
    if not well:
        explain("torch", wanted, said)


# The steps


def make_venv(venv: Path) -> None:
    """A new environment in the place of what is there."""
    if venv.exists():
        shutil.rmtree(venv)
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        lack = "ensurepip is not" in made.stdout
        why = (
            "this Python lacks venv (Debian's python3-venv)"
            if lack
            else f"{sys.executable} cannot make {venv}"
        )
        then = "as root, apt-get install python3-venv; or take another Python: make setup PYTHON=..."
        stop(f"venv: {why}", then, made.stdout + made.stderr)


def renew_pip(venv: Path) -> None:
    """The newest pip: Debian 12's takes 30 s of CPU more, and tells no size before it has fetched all."""
    well, said = pip(venv, "--upgrade", "pip")
    if not well and unreached(said):
        explain("venv", "pip", said)


def take_turns() -> None:
    """Wait until no other run works on this clone; a pip whose parent was killed holds the lock."""
    lock = os.open(ROOT / "pyproject.toml", os.O_RDONLY)
    os.set_inheritable(lock, True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("== waiting for another make setup in this clone")
        fcntl.flock(lock, fcntl.LOCK_EX)


def torch_step(venv: Path, args: argparse.Namespace, done: dict[str, object]) -> None:
    """PyTorch, unless the one wished is there; where none is named, the one there is, of the same release."""
    cpu_first = not args.torch and not args.cuda and not has_driver()
    kind = "cpu first" if cpu_first else "as named"
    wish = [default_torch(), args.torch, args.torch_index, kind]
    had = done.get("torch")
    serves = isinstance(had, list) and had[0] == wish[0] and not (args.cuda and had[3] == "cpu first")
    if had == wish or (serves and not args.torch and not args.torch_index):
        return
    words = (
        f"installing {args.torch or wish[0]}" + ", a CPU build if any: no NVIDIA driver is here" * cpu_first
    )
    with step("torch", words):
        if had:  # else pip would take another build of one version for the same
            runs(venv / "bin/python", "-m", "pip", "uninstall", "-y", "torch")
        drop_halves(venv)
        install_torch(venv, args, cpu_first)
    done.pop("bytecode", None)
    note(venv, done, "torch", wish)


def rest_step(venv: Path, extras: str, done: dict[str, object]) -> None:
    """This package and what its extras name, unless they are there by the pyproject.toml of now."""
    name, contents = f"rest[{extras}]", hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if done.get(name) == contents:
        return
    with step("rest", f"installing this package and what [{extras}] of pyproject.toml names"):
        want_room(venv, "rest", *REST)
        drop_halves(venv)
        well, said = pip(venv, "--no-build-isolation", "-e", f".[{extras}]")
        if not well:
            explain("rest", f".[{extras}]", said)
    done.pop("bytecode", None)
    note(venv, done, name, contents)


def set_up(args: argparse.Namespace) -> None:
    """All steps that are not done yet."""
    venv = Path(os.path.abspath(args.venv))
    done = done_steps(venv)
    if not done:
        with step("venv", f"making {venv.name} with {sys.executable} ({sys.version.split()[0]})"):
            make_venv(venv)
            renew_pip(venv)
        note(venv, done, "venv", str(venv))
    torch_step(venv, args, done)
    rest_step(venv, args.extras, done)
    if "bytecode" not in done:
        with step("bytecode", "compiling what was installed, on all cores"):
            # Some packages ship files for other Pythons, which do not compile: no failure of ours.
            places = venv.glob("lib/python*/site-packages")
            runs(venv / "bin/python", "-m", "compileall", "-q", "-j", "0", "-x", SELDOM, *places)
        note(venv, done, "bytecode", True)


def main() -> int:
    """The command's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", required=True, help="where the environment is")
    parser.add_argument("--torch", default="", help="a requirement or a wheel to take as it is")
    parser.add_argument("--torch-index", default="", help="address of one more index, for PyTorch")
    parser.add_argument("--extras", default="dev", help="extras of this package")
    parser.add_argument("--cuda", action="store_true", help="a CPU build is not what is wanted")
    args = parser.parse_args()
    if sys.version_info < OLDEST:
        what = f"venv: {sys.executable} is Python {sys.version.split()[0]}; 3.11 or later is needed"
        stop(what, "name a later one: make setup PYTHON=/path/to/python3.11")
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.default_int_handler)  # pip is ended with us
    try:
        take_turns()
        set_up(args)
    except KeyboardInterrupt:
        print(f"gandiva: stopped; {GOES_ON}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
