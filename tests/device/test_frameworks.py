"""Frameworks on the simulated card, parked and moved by `gandiva try`: the table in docs/integrations.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow, soaked

SCRIPT = Path(__file__).with_name("frameworks.py")
LIMIT_S = 600.0
SAME = "the losses are identical, bit for bit"


@slow("20 s each: three runs of a script")
@pytest.mark.parametrize(
    ("which", "where", "moved"),
    [
        soaked("plain", "card:0", "no: the script has no gandiva.attach()", why="the next, without autocast"),
        ("amp", "card:0", "no: the script has no gandiva.attach()"),
        ("attach", "card:0", "attached: "),
        soaked("transformers", "cpu", "framework (transformers): ", why="30 s; attach/test_frameworks_tried"),
    ],
)
def test_a_framework_on_the_card_is_parked_and_moved(card_env, tmp_path, which, where, moved):
    words = tmp_path / "words"
    words.write_text("\n".join(f"{key}={value}" for key, value in card_env.items() if "GANDIVA" in key))
    argv = [Path(sys.executable).with_name("gandiva"), "try", "--", sys.executable, SCRIPT, words, which]
    env = {key: value for key, value in os.environ.items() if not key.startswith("GANDIVA")}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    told = done.stdout + done.stderr
    assert done.returncode == 0 and SAME in told, told[-3000:]
    assert re.search(r"^parked: +\d+ losses on 1 rank, [1-9]\d* parks?", told, re.MULTILINE), told
    assert re.search(rf"^moved: +{re.escape(moved)}", told, re.MULTILINE), told
    alone = subprocess.run([sys.executable, SCRIPT, words, which], cwd=tmp_path, env=env, text=True,
                           capture_output=True, timeout=LIMIT_S)  # fmt: skip
    assert f"its model is on {where}" in alone.stderr
