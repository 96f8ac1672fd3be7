"""A tiny clone, an index of tiny wheels on this machine, and container/install-python.py run with both."""

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "gandiva-slurm"
version = "0.1.0"
[project.optional-dependencies]
torch = ["torch==2.13.0"]
dev = ["tiny-tool"]
"""
#: The least that pip asks of a build backend for `pip install -e`.
BACKEND = """
import shutil
NAME = "gandiva_slurm-0.1.0-py3-none-any.whl"
def get_requires_for_build_editable(settings=None): return []
def build_editable(directory, settings=None, metadata=None):
    shutil.copy(NAME, directory)
    return NAME
"""


def wheel(place: Path, name: str, version: str, requires: tuple[str, ...] = (), extra: str = "") -> Path:
    """A wheel with one module, `name`.py; where it lies."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}"
    files = {
        f"{module}.py": f"version = {version!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    place.mkdir(parents=True, exist_ok=True)
    there = place / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(there, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return there


def pips_wheel(place: Path) -> None:
    """The pip of these tests, packed again: an index has one."""
    (found,) = importlib.util.find_spec("pip").submodule_search_locations or ()  # type: ignore[union-attr]
    info = f"pip-{importlib.metadata.version('pip')}"
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / f"{info}-py3-none-any.whl", "w") as archive:
        for path in sorted(Path(found).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                archive.write(path, Path("pip", path.relative_to(found)))
        version = info.removeprefix("pip-")
        archive.writestr(
            f"{info}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: pip\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}.dist-info/RECORD", "")


class Index(ThreadingHTTPServer):
    """A package index; a download of `cut` breaks off, one of `held` never comes."""

    cut = held = "nothing"
    asked: threading.Event

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is killed breaks its connection."""


class Handler(SimpleHTTPRequestHandler):
    server: Index

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        if self.server.held in self.path and self.path.endswith(".whl"):
            self.server.asked.set()
            self.rfile.read()  # until the client goes
            return
        if self.server.cut in self.path and self.path.endswith(".whl"):
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b"PK")
            return
        super().do_GET()


class Clone:
    """A tiny clone with the two scripts, its index and the run of the script."""

    def __init__(self, base: Path, index: Index) -> None:
        self.root, self.index, self.bin = base / "clone", index, base / "bin"
        self.venv = self.root / ".venv"
        self.simple, self.cpu = base / "simple", base / "cpu"
        (self.root / "container").mkdir(parents=True)
        for script in ("install-python.py", "steps.py"):
            shutil.copy(ROOT / "container" / script, self.root / "container")
        (self.root / "pyproject.toml").write_text(PYPROJECT)
        (self.root / "backend.py").write_text(BACKEND)
        tool = 'Provides-Extra: dev\nRequires-Dist: tiny-tool; extra == "dev"\n'
        wheel(self.root, "gandiva-slurm", "0.1.0", extra=tool)
        for name in ("setuptools", "tiny-tool", "nvidia-tiny", "triton"):
            wheel(self.simple / name, name, "99.0")
        pips_wheel(self.simple / "pip")
        wheel(self.simple / "torch", "torch", "2.13.0", ("nvidia-tiny", "triton"))
        wheel(self.cpu / "torch", "torch", "2.13.0+cpu")
        self.bin.mkdir()
        self.fake("ldconfig", ":")
        self.address = f"http://127.0.0.1:{index.server_address[1]}"

    def fake(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def has_torch(self) -> str:
        found = sorted(self.venv.glob("lib/python*/site-packages/torch-*.dist-info"))
        return found[0].name.removesuffix(".dist-info") if len(found) == 1 else str(found)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        fixed = {"PATH": f"{self.bin}:/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null", "PIP_RETRIES": "1"}
        index = {"PIP_INDEX_URL": f"{self.address}/simple/", "PIP_CACHE_DIR": str(self.root / "cache")}
        return subprocess.Popen(
            [sys.executable, "container/install-python.py", "--venv", ".venv", *words],
            cwd=self.root,
            env={**kept, **fixed, **index, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, **environment: str) -> tuple[int, str]:
        process = self.start(*words, **environment)
        out = process.communicate(timeout=240)[0]
        return process.returncode, out

    def complete(self) -> None:
        """The environment has all of it, whole."""
        check = "import tiny_tool, torch, gandiva_slurm, setuptools; print(torch.version)"
        told = subprocess.run(
            [self.venv / "bin/python", "-c", check], stdout=subprocess.PIPE, text=True, check=True
        )
        assert self.has_torch() == f"torch-{told.stdout.strip()}"
        noted = json.loads((self.venv / "setup.json").read_text())
        assert noted.keys() == {"venv", "torch", "rest[dev]", "bytecode"}


def renote(clone: Clone, text: str) -> None:
    """Another note of what is done; the file is a link to that of the first run."""
    (clone.venv / "setup.json").unlink()
    (clone.venv / "setup.json").write_text(text)


def forget(clone: Clone, *steps: str) -> None:
    """Take steps out of the note, and their packages away."""
    noted = json.loads((clone.venv / "setup.json").read_text())
    renote(clone, json.dumps({k: v for k, v in noted.items() if k not in steps}))
    for place in clone.venv.glob("lib/python*/site-packages"):
        for left in [*place.glob("torch*"), *(place.glob("tiny*") if "rest[dev]" in steps else ())]:
            shutil.rmtree(left) if left.is_dir() else left.unlink()
