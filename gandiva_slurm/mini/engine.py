"""The Docker engine, as `gandiva mini` uses it; container/engine.sh finds or starts one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gandiva_slurm.mini import layout
from gandiva_slurm.mini.layout import CLONE
from gandiva_slurm.model.errors import GandivaError

CALL_DEADLINE_S = 120.0
#: The label docker-compose puts on everything of a project.
PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
#: Networks of clusters are 10.99.1.0/24 to 10.99.254.0/24.
NETWORK = "10.99"


@dataclass(frozen=True)
class Engine:
    """A Docker engine that answers at `address` (DOCKER_HOST)."""

    address: str

    @classmethod
    def find(cls) -> Engine:
        """The engine of this machine, or GandivaError with what is missing."""
        told = subprocess.run(
            ["sh", str(CLONE / "container/engine.sh"), "host"], capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=CALL_DEADLINE_S,
            env=dict(os.environ) | {"PATH": layout.system_path()},
        )
        if told.returncode != 0:
            raise GandivaError(told.stderr.strip().removeprefix("gandiva: ").replace("\ngandiva: ", "; "))
        return cls(told.stdout.strip())

    def call(self, *words: str, check: bool = True) -> str:
        """Run `docker WORDS`; returns what it printed."""
        return self._run(["docker", *words], check=check).stdout.strip()

    def compose(self, file: Path, project: str, *words: str) -> None:
        """Run docker-compose, in whichever form this machine has it."""
        command = ["docker-compose"] if shutil.which("docker-compose", path=layout.system_path()) else [
            "docker", "compose"]
        self._run([*command, "-p", project, "-f", str(file), *words])

    def build(self, suite: str, say: Callable[[str], None]) -> None:
        """Build the image of this suite, where it is missing or older than the clone; tell how it goes."""
        with _start_script("build.sh", suite, DOCKER_HOST=self.address) as building:
            assert building.stderr is not None
            told = []
            for line in building.stderr:
                told.append(line)
                if line.startswith("== "):
                    say(line.removeprefix("== ").rstrip())
        if building.returncode != 0:
            raise GandivaError(f"the image for {suite} cannot be built (container/build.sh {suite}):\n"
                               f"{''.join(told).rstrip()}")

    def has_image(self, image: str) -> bool:
        """True when there is such an image, old or new."""
        return bool(self.call("image", "ls", "-q", image))

    def hosts(self, project: str) -> dict[str, int]:
        """Service name -> pid of process 1, of every running container of a project."""
        ids = self._of(project, "ps", "-q")
        if not ids:
            return {}
        form = f'{{{{index .Config.Labels "{SERVICE_LABEL}"}}}} {{{{.State.Pid}}}}'
        lines = self.call("inspect", "--format", form, *ids).splitlines()
        return {name: int(pid) for name, pid in (line.split() for line in lines) if int(pid) > 0}

    def remove(self, project: str) -> None:
        """Remove a project's containers, networks and volumes; nothing there is fine."""
        if ids := self._of(project, "ps", "-aq"):
            self.call("rm", "-fv", *ids)
        if ids := self._of(project, "network", "ls", "-q"):
            self.call("network", "rm", *ids)
        if ids := self._of(project, "volume", "ls", "-q"):
            self.call("volume", "rm", *ids)

    def left_of(self, project: str) -> list[str]:
        """The containers, networks and volumes of a project that there are, as sentences."""
        lists = {"container": ["ps", "-aq"], "network": ["network", "ls", "-q"]}
        lists["volume"] = ["volume", "ls", "-q"]
        return [f"the {kind} {name}" for kind, words in lists.items() for name in self._of(project, *words)]

    @contextlib.contextmanager
    def free_network(self, first: int) -> Iterator[str]:
        """The first three numbers of a network that nobody here uses, looking from 10.99.FIRST on.

        Until the end of the context no other cluster that is started here gets them.
        """
        for step in range(254):
            prefix = f"{NETWORK}.{(first + step) % 254 + 1}"
            with socket.socket(socket.AF_UNIX) as claim:
                try:
                    claim.bind(f"\0gandiva-network-{prefix}")
                except OSError:  # another cluster is about to make it
                    continue
                if not self._is_used(prefix):
                    yield prefix
                    return
        raise GandivaError(f"every network of {NETWORK}.0.0/16 is in use; take clusters down")

    def _is_used(self, prefix: str) -> bool:
        ids = self.call("network", "ls", "-q").split()
        # One that another cluster has removed since fails the call, which tells of the others all the same.
        told: list[dict[str, Any]] = json.loads(self.call("network", "inspect", *ids, check=False) or "[]")
        ranges = [part["Subnet"] for net in told for part in net["IPAM"]["Config"] or []]
        routes = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True,
                                env={"PATH": layout.system_path()}).stdout
        return f"{prefix}." in routes or any(used.startswith(f"{prefix}.") for used in ranges)

    def _of(self, project: str, *words: str) -> list[str]:
        return self.call(*words, "--filter", f"label={PROJECT_LABEL}={project}").split()

    def _run(self, words: list[str], check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = dict(os.environ) | {"DOCKER_HOST": self.address, "PATH": layout.system_path()}
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=CALL_DEADLINE_S, env=environment, check=False)
        if check and done.returncode != 0:
            raise GandivaError(f"{' '.join(words[:4])} ... ended with {done.returncode}: "
                               f"{(done.stderr or done.stdout).strip()}")
        return done


def _start_script(name: str, *words: str, **extra: str) -> subprocess.Popen[str]:
    environment = dict(os.environ) | {"PATH": layout.system_path()} | extra
    return subprocess.Popen(["sh", str(CLONE / "container" / name), *words], env=environment, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
