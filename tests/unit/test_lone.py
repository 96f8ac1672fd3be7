"""What a script finds in its environment when it is tried."""

import json
import sys
import time

from gandiva_slurm.cli.lone import WISHES, LoneNode

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
