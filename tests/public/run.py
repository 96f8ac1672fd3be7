"""Run public training scripts as they are: parked, moved, compared with themselves alone; write a table.

    python -m tests.public.run DIR [WORDS…]

DIR/OWNER/NAME are git repositories (bare ones too) that have the commits of tests/public/scripts.py; WORDS
choose the scripts whose name or number has one of them. Each script goes into a directory of its own below
build/public, with its data. What is told of it is what `gandiva doctor` and `gandiva try` say.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.public.material import make
from tests.public.scripts import SCRIPTS, Repository, Script

OUT = Path("build/public").absolute()
#: Each run of a script may take so long, in seconds.
DEADLINE_S = 240
#: How much of its arguments the table shows, in characters; all are in tests/public/scripts.py.
MOST_SHOWN = 60
#: One thread a script; no hub is asked, and nothing is reported anywhere.
ENV = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
}


class Row(NamedTuple):
    """What was seen of one script."""

    script: str
    boundary: str
    parked: str
    moved: str
    losses: str
    seconds: float = 0.0

    def __str__(self) -> str:
        """As a line of the table."""
        return f"| {' | '.join(self[:-1])} | {self.seconds:.0f} |"


#: What is said of every plain loop.
_PLAIN = "the script has no gandiva.attach()"
HEAD = "| script | boundary | parked | moved | losses | s |\n|---|---|---|---|---|---|"


def lay_out(directory: Path, script: Script, place: Path) -> Path:
    """Take a script out of its repository, into `place`, with its data; return where it is started."""
    owner = script.repository
    source = directory / owner.name
    tree = script.tree or str(Path(script.path).parent)
    words = ["git", "-c", "safe.directory=*", "-C", str(source), "archive", owner.commit, *tree.split()]
    packed = subprocess.run(words, capture_output=True, check=False)
    if packed.returncode:
        raise SystemExit(_missing(source, owner, packed.stderr.decode()))
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", str(place)], input=packed.stdout, check=True)
    here = place / script.start
    for word in script.data:
        make(word, here)
    return here


def _missing(source: Path, owner: Repository, error: str) -> str:
    return (
        f"run.sh: {source}: {error.strip()}; next: a clone of https://github.com/{owner.name} there that has "
        f"commit {owner.commit}"
    )


def look_at(directory: Path, script: Script, number: int) -> Row:
    """Run one script and tell what was seen."""
    begin = time.monotonic()
    here = lay_out(directory, script, OUT / f"{number:02}")
    command = [sys.executable, script.file, *script.arguments.split()]
    if script.batch:
        head = "".join(f"#SBATCH {word}\n" for word in script.batch.split())
        (here / "job.sh").write_text(f"#!/bin/bash\n{head}srun {shlex.join(command)}\n")
        command = ["job.sh"]
    env = {**os.environ, **ENV, "HF_HOME": str(OUT / "hub"), **dict(script.env)}
    told = _gandiva(["doctor", "--json", "--deadline", str(DEADLINE_S), "--", *command], here, env)
    own = ["--checkpoint", script.checkpoint] if script.checkpoint else []
    limits = ["--steps", str(script.steps), "--deadline", str(DEADLINE_S)]
    tried = _gandiva(["try", *limits, *own, "--", *command], here, env)
    (OUT / f"{number:02}.told").write_text(f"{script.name}\n{told}\n{tried}")
    shutil.rmtree(OUT / f"{number:02}")
    return read(label(script), told, tried)._replace(seconds=time.monotonic() - begin)


def label(script: Script) -> str:
    """What a table calls a script: its name, and how it is started."""
    started = " ".join((*(f"{name}={value}" for name, value in script.env), script.arguments)).strip()
    started = f"{started}; {script.batch}" if script.batch else started
    shown = started if len(started) <= MOST_SHOWN else f"{started[:MOST_SHOWN]}…"
    return f"{script.name} `{shown}`" if shown else script.name


def _gandiva(words: Sequence[str], here: Path, env: dict[str, str]) -> str:
    program = [sys.executable, "-c", "from gandiva_slurm.cli.main import main; main()", *words]
    done = subprocess.run(program, cwd=here, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def read(name: str, told: str, tried: str) -> Row:
    """Make a row of what `doctor --json` and `try` have said of a script."""
    lines = [line.strip() for line in tried.splitlines() if line.strip()]
    verdict = next((line for line in reversed(lines) if not line.startswith("File ")), "nothing was said")
    parks = re.search(r"^parked: .*, (\d+) parks?$", tried, re.MULTILINE)
    moved = re.search(r"^moved:\s+(.*)$", tried, re.MULTILINE)
    counted = re.search(r"^(?:moved|parked):.* (\d+) losses", tried, re.MULTILINE)
    again = re.search(r"behind mini-batch \d+ and (did .*)$", tried, re.MULTILINE)
    is_same = verdict.startswith("the losses are identical")
    differs = re.sub(r" \(loss \d.*\)$", "", _first(verdict))
    losses = f"the same ({counted[1]})" if is_same and counted else differs
    way = _first(moved[1].split(": ")[0]) if moved else "-"
    if moved and way == "no":
        why = _first(moved[1][4:])
        way = "no" if why.startswith(_PLAIN) else f"no: {why}"
    elif again:
        way += f", {again[1]}"
    elif moves := re.search(r", (\d+) moves?$", moved[1]) if moved else None:
        way += f", {moves[1]} times"
    return Row(name, _boundary(told), f"{parks[1]} times" if parks else "no", way, losses)


def _boundary(told: str) -> str:
    """What was found to stop at, in a word or two, and whose steps they are."""
    try:
        found = json.loads(told[told.index("{") : told.rindex("}") + 1])
    except ValueError:
        return "not told"
    optimizers = ", ".join(one.split(" of ")[0] for one in found.get("optimizers", "").split("; "))
    text = found["boundary"]
    if text.startswith("none"):
        return "none"
    return f"the framework's loop ({optimizers})" if "run.steps" in text else f"{optimizers}.step"


def _first(text: str) -> str:
    """Return a sentence without its next step, as a cell of a table."""
    return text.split("; next:")[0].replace("|", "\\|")


def chosen(words: Sequence[str]) -> list[tuple[int, Script]]:
    """The scripts that are asked for, with their numbers; SystemExit where the words choose none."""
    named = [(number, script, f"{number:02} {script.name}") for number, script in enumerate(SCRIPTS)]
    found = [item[:2] for item in named if not words or any(word in item[2] for word in words)]
    if not found:
        known = "\n".join(name for _, _, name in named)
        raise SystemExit(f"run.sh: no script has {' or '.join(words)} in its name; known:\n{known}")
    return found


def main(words: Sequence[str]) -> int:
    """Run what is asked, and print the table as it grows."""
    if not words:
        print("usage: tests/public/run.sh DIR [WORDS…]", file=sys.stderr)
        return 2
    directory, rows, numbered = Path(words[0]).absolute(), [], chosen(words[1:])
    OUT.mkdir(parents=True, exist_ok=True)
    print(HEAD, flush=True)
    for number, script in numbered:
        rows.append(look_at(directory, script, number))
        print(rows[-1], flush=True)
    (OUT / "table.md").write_text("\n".join((HEAD, *map(str, rows))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
