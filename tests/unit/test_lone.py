"""What a script finds in its environment when it is tried."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gandiva_slurm.cli.lone import WISHES, LoneNode

TRIED = """
import sys
from pathlib import Path
from gandiva_slurm.cli.lone import LoneNode
with LoneNode(Path(sys.argv[1]), "it") as node:
    node.start(["sleep", "600"])
    print(node._process.pid, flush=True)
    node.wait(lambda: False, 600)
"""
SHOW = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"


def test_wishes_for_parked_memory_are_tried_and_no_job_around_is_seen(tmp_path, monkeypatch):
    for name in WISHES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("GANDIVA_JOB", "7")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with LoneNode(tmp_path, "it") as node:
        node.start([sys.executable, "-c", SHOW, str(tmp_path / "env.json")])
        deadline = time.monotonic() + 30
        while node.status is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    found = json.loads((tmp_path / "env.json").read_text())
    assert {name: found.get(name) for name in WISHES} == dict.fromkeys(WISHES, "1")
    assert "GANDIVA_JOB" not in found and "SLURM_JOB_ID" not in found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_ends_us_ends_the_script(tmp_path, number):
    trial = subprocess.Popen([sys.executable, "-c", TRIED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    script = int(trial.stdout.readline())
    trial.send_signal(number)
    assert trial.wait(timeout=60) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(script, 0)
