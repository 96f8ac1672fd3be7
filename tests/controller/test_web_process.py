"""`gandiva web` as a process: it and gandivactld die and come again, and what stops it before it serves."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests import patience
from tests.controller.process import until
from tests.controller.test_metrics import AS_USER
from tests.crowd import silent
from tests.ports import free_port

MAIN = "import sys; from gandiva_slurm.cli.main import main; main(sys.argv[1:])"


@pytest.fixture
def served(conf, start, munged, tmp_path):
    """A gandivactld, and a function that starts a gandiva web beside it at `path`."""
    daemon = start(conf(munged))
    daemon.ask()
    begun, path = [], str(tmp_path / "web.sock")
    with open(daemon.conf, "a") as file:
        file.write(f"web: {{listen: {path}}}\n")

    def run():
        with open(tmp_path / "web.log", "ab") as log:
            words = [sys.executable, "-c", AS_USER, "-f", daemon.conf, "web"]
            begun.append(subprocess.Popen(words, stderr=log, stdout=log))
        return begun[-1]

    yield daemon, path, run
    for process in begun:
        process.kill()
        process.wait()


def told(path: str, what: str = "health"):
    """Return (status, answer); nothing where nobody answers."""
    link = http.client.HTTPConnection("x", timeout=20)
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.settimeout(20)
    try:
        link.sock.connect(path)
        link.request("GET", f"/api/v1/{what}", headers={"X-Remote-User": "ann"})
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, http.client.HTTPException):
        return 0, {}
    finally:
        link.close()


def test_it_is_killed_and_gandivactld_dies_and_both_come_again(served, start):
    daemon, path, run = served
    process = run()
    until(lambda: told(path)[0] == 200, lambda: told(path))
    _, health = told(path)
    assert (health["user"], health["cluster"]) == ("ann", "mini") and health["slurm_error"]
    assert told(path, "jobs")[1]["jobs"] == []
    assert told(path, "nodes")[0] == 403, "Slurm, which is not there, has not said that they may be seen"
    assert told(path, "acct")[0] == told(path, "shares")[0] == 200
    assert told(path, "jobs/7")[0] == 404
    process.kill()
    process.wait()
    assert daemon.ask("queue") == []
    daemon.ended(signal.SIGKILL)
    process = run()
    until(lambda: told(path)[0] == 503, lambda: told(path))
    assert "gandivactld does not answer at" in told(path)[1]["error"]
    start(daemon.conf).ask()
    until(lambda: told(path)[0] == 200, lambda: told(path))
    process.send_signal(signal.SIGTERM)
    assert process.wait(patience.slowness() * 10) == 0


def test_a_crowd_at_its_port_does_not_reach_gandivactld(served, tmp_path):
    daemon, _, run = served
    secret, port = tmp_path / "secret", free_port()
    secret.write_text("0123456789abcdef\n")
    secret.chmod(0o400)
    with open(daemon.conf) as file:
        lines = [line for line in file if not line.startswith("web")]
    with open(daemon.conf, "w") as file:
        file.writelines([*lines, f"web: {{listen: '127.0.0.1:{port}', secret_file: {secret}}}\n"])
    run()

    def status(**more: str) -> int:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            link.request("GET", "/api/v1/jobs", headers={"X-Remote-User": "ann", **more})
            return link.getresponse().status
        except OSError:
            return 0
        finally:
            link.close()

    good = {"X-Gandiva-Secret": "0123456789abcdef"}
    until(lambda: status(**good) == 200, lambda: (tmp_path / "web.log").read_text())
    assert status() == 401
    with silent(port, 400, "127.0.0.2"):
        before_s = time.monotonic()
        assert {status(**good) for _ in range(50)} == {200}
        assert daemon.ask("queue") == []
        assert time.monotonic() - before_s < 20 * patience.slowness()


def test_it_does_not_serve_as_root_nor_without_a_place(served, tmp_path):
    daemon, _, _ = served
    words = [sys.executable, "-c", MAIN, "-f", daemon.conf, "web"]
    if os.geteuid() == 0:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 and "started as root" in done.stderr
    plain = tmp_path / "plain.yaml"
    with open(daemon.conf) as file:
        plain.write_text("".join(line for line in file if not line.startswith("web")))
    words[words.index(daemon.conf)] = str(plain)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "web.listen is empty" in done.stderr
