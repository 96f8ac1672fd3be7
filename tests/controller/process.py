"""gandivactld as a process, over real munge; Slurm is not reachable for it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time

from gandiva_slurm.cli.client import query
from gandiva_slurm.model.errors import PeerError
from tests import patience

DEADLINE_S = 60
ME = pwd.getpwuid(os.geteuid()).pw_name


class Daemon:
    """A gandivactld; `files`: its limits of open ones, as in 1024:4096."""

    def __init__(self, conf: str, log, files: str = "") -> None:
        self.conf, self.log = conf, log
        command = [sys.executable, "-m", "gandiva_slurm.controller.main", "-D", "-f", conf]
        if files:
            command = [shutil.which("prlimit"), f"--nofile={files}", *command]
        env = {**os.environ, "PATH": str(log.parent / "bin")}
        self.process = subprocess.Popen(command, stderr=open(log, "ab"), env=env)  # noqa: SIM115

    def ask(self, name: str = "ping", **args: object):
        """Ask until it answers."""
        return until(lambda: self._ask(name, args), lambda: self.text)[0]

    def ended(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def _ask(self, name, args):
        try:
            return [query(self.conf, name, args)]
        except PeerError:
            assert self.process.poll() is None, self.text
            return None


def until(condition, told):
    end_s = patience.deadline(DEADLINE_S)
    while not (value := condition()):
        assert time.monotonic() < end_s, told()
        time.sleep(0.02)
    return value
