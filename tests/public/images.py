"""Public training scripts as they are, moved twice by images of their processes; write a table.

    python -m tests.public.images SUITE DIR [WORDS…]

A cluster of two nodes in containers of SUITE (trixie or forky) runs each of tests/public/scripts.py as a
job without any help of a framework (GANDIVA_AUTO_ATTACH=0): it takes turns with another one, is moved to the
other node, and back. Then it runs by itself: losses, the files that it leaves and its exit code are compared.
DIR and WORDS are those of tests/public/run.py; build/public/SUITE/venv is the Python that runs the scripts.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gandiva_slurm.cli.runs import losses_of
from gandiva_slurm.mini.cluster import MiniCluster
from tests import patience
from tests.cluster.fleet import LIGHT, own_cluster, wait_for
from tests.docker.moving import MOVES, TYPES, Moving
from tests.public.run import ENV, OUT, chosen, label, lay_out
from tests.public.scripts import Script

#: How much longer an optimizer step takes until the job has been moved twice, in seconds.
PACE_S = 0.4
PACE = Path(__file__).with_name("pace")
#: Losses that a script computes at least before its first move, and behind each move.
FEW = 5
START_S, END_S, ALONE_S = 120.0, 60.0, 300.0
USER, UID = "user1", 5001
#: Where the hook for unchanged scripts lies in a container.
HOOK = "/opt/gandiva-slurm/gandiva_slurm/client/hook"
_DATE = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d")
HEAD = (
    "| script | parked | moved | MiB | dump (s) | restore (s) | stood still (s) | losses | files |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


class Run(NamedTuple):
    """What a run has left: losses, files by name and digest, exit code; None where it was ended."""

    losses: list[str]
    files: dict[str, str]
    code: int | None


class Public(Moving):
    """A public script as a job, in a directory that all nodes see; client/trial.py notes its losses."""

    def __init__(self, mini: MiniCluster, script: Script, place: Path, python: Path) -> None:
        super().__init__(mini)
        self.script, self.place, self.python = script, place, python
        self.slow, self.still_s = place / "slow", list[float]()

    def begin(self) -> None:
        """Submit it, and wait until it trains and can be moved."""
        flags = ("--gandiva-pack=never", "--requeue", "--open-mode=append", "-o", str(self.place / "out"))
        self.slow.touch()
        self.job = self.fleet.submit(USER, self.command("moved"), *flags)
        self.fleet.wait_running(self.job)
        wait_for(lambda: len(self.lines()) > FEW, lambda: f"it to train: {self.said()}", START_S)
        wait_for(lambda: "image of its" in self.story(), lambda: f"a word on images: {self.story()}")

    def command(self, run: str) -> str:
        """The lines of a shell that make this run in a directory of its own."""
        script, env = self.script, dict(self.script.env)
        # What a job's own PYTHONPATH begins with is the hook.
        more = ":".join([*filter(None, [env.pop("PYTHONPATH", "")]), str(PACE)])
        env |= {**ENV, "HF_HOME": f"{self.place}/hub.{run}", "GANDIVA_AUTO_ATTACH": "0", "USE_LIBUV": "0"}
        env |= {"GANDIVA_TRIAL": f"{self.place}/losses.{run}", "GANDIVA_PACE": f"{self.slow}:{PACE_S}"}
        said = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        words = shlex.join([str(self.python), script.file, *script.arguments.split()])
        return (
            f"cd {self.place}/{run}/{script.start}; "
            f'export PYTHONPATH="${{PYTHONPATH:-{HOOK}}}:{more}" {said}; exec {words}'
        )

    def lines(self, run: str = "moved") -> list[str]:
        """The losses of a run so far."""
        path = self.place / f"losses.{run}.0"
        return losses_of(path.read_text()[: path.read_text().rfind("\n") + 1]) if path.exists() else []

    def said(self) -> str:
        """The last that it printed, and what is known of it."""
        out = self.place / "out"
        return (out.read_text(errors="replace")[-2000:] if out.exists() else "") + self.story()

    def move(self) -> int:
        """Have it moved to the other node; how long it stood still goes to `still_s`."""
        home = self.node()
        other = self.crowd()
        wait_for(lambda: self.node() not in ("", home), lambda: f"it to move: {self.said()}", 120)
        was = len(self.lines())
        wait_for(lambda: len(self.lines()) > was, lambda: f"it to train: {self.said()}", 120)
        self.still_s.append(time.monotonic() - self.events("imaged")[-1]["mono_ns"] / 1e9)
        self.mini.exec(["scancel", str(other)])
        wait_for(lambda: len(self.lines()) > was + FEW, lambda: f"it to train on: {self.said()}", 120)
        return was

    def ended(self) -> Run:
        """Let it train as fast as it can; end it where it has not ended within a minute."""
        self.slow.unlink()
        until_s = patience.deadline(END_S)
        while not (is_over := self.fleet.slurm_state(self.job) in ("GONE", "FAILED", "COMPLETED")):
            if time.monotonic() > until_s:
                self.mini.exec(["scancel", str(self.job)])
                break
            time.sleep(0.5)
        code = int(self.wait_ended_as().split()[-1].split(":")[0])
        return Run(self.lines(), self.files("moved"), code if is_over else None)

    def wait_ended_as(self) -> str:
        """Slurm's accounting of its last run, "STATE EXIT", when that is over."""
        words = ["sacct", "-D", "-X", "-n", "-P", "-j", str(self.job), "-o", "State,ExitCode"]

        def told() -> str:
            return self.mini.exec(words).stdout.replace("|", " ").split("\n")[-2]

        wait_for(lambda: not told().startswith(("RUNNING", "PENDING")), "its end in the accounting", 60)
        return told()

    def alone(self, run: str = "alone", most: int = 0) -> Run:  # type: ignore[override]
        """Run it by itself on a node, without Slurm, to its end or to more than `most` losses."""
        until_s, is_over = patience.deadline(ALONE_S), True
        with (self.place / f"out.{run}").open("wb") as out:
            words = ["sh", "-c", self.command(run)]
            running = self.mini.popen(words, user=USER, host="n1", stdout=out, stderr=subprocess.STDOUT)
            while is_over and running.poll() is None:
                is_over = time.monotonic() < until_s and not (most and len(self.lines(run)) > most)
                time.sleep(0.2)
            if not is_over:
                running.kill()
            code = running.wait()
        return Run(self.lines(run), self.files(run), code if is_over else None)

    def files(self, run: str) -> dict[str, str]:
        """The digests of the files in a run's directory, but for what Python compiles; no dates in names."""
        base = self.place / run
        found = (path for path in base.rglob("*") if path.is_file() and path.suffix != ".pyc")
        named = ((_DATE.sub("DATE", str(path.relative_to(base))), path) for path in found)
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in named}


def look_at(mini: MiniCluster, script: Script, place: Path, directory: Path, python: Path) -> str:
    """Run one script, and return its row of the table."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    public = Public(mini, script, place, python)
    for run in ("moved", "alone", "again"):
        lay_out(directory, script, place / run)
        (place / f"hub.{run}").mkdir()
    subprocess.run(["chown", "-R", f"{UID}:{UID}", str(place)], check=True)
    try:
        public.begin()
        at = [public.move() for _ in range(2)][-1]
        moved = public.ended()
        made = public.events("imaged", "restored")
        parks = sum(public.fleet.parks(node)[public.job] for node in TYPES)
    finally:
        public.fleet.finish()
    assert len(moved.losses) > at, "nothing was computed behind the second move"
    told = compare(public, moved)
    imaged = [one for one in made if one["event"] == "imaged"]
    restored = [one for one in made if one["event"] == "restored"]
    assert len(imaged) == len(restored) >= 2, made  # more where it was in the other's way
    size = max(one["bytes"] for one in imaged) >> 20
    seconds = [
        ", ".join(f"{value:.2f}" for value in values)
        for values in (
            [one["dump_s"] for one in imaged], [one["restore_s"] for one in restored], public.still_s,
        )
    ]  # fmt: skip
    how_often = f"{parks} times | {len(restored)} times"
    return f"| {label(script)} | {how_often} | {size} | {' | '.join(seconds)} | {' | '.join(told)} |"


def compare(public: Public, moved: Run) -> tuple[str, str]:
    """Run it by itself, and say of its losses and of its files whether they are the same."""
    most = 0 if moved.code is not None else len(moved.losses)
    alone = public.alone("alone", most)
    count = min(len(alone.losses), len(moved.losses))
    losses, files = f"the same ({count})", "-"
    is_same = alone.losses[:count] == moved.losses[:count]
    has_ended = None not in (alone.code, moved.code)
    if has_ended:
        is_same = is_same and len(alone.losses) == len(moved.losses) and alone.code == moved.code
    changed = sorted(name for name, digest in moved.files.items() if alone.files.get(name) != digest)
    gone = sorted(alone.files.keys() - moved.files.keys())
    if is_same and not (has_ended and (changed or gone)):
        new = len(moved.files) - sum(1 for _ in (public.place / "again").rglob("*") if _.is_file())
        return losses, f"the same ({new})" if has_ended else files
    again = public.alone("again", most)
    if again.losses[:count] != alone.losses[:count]:
        return "not deterministic: two runs alone differ too", files
    if not is_same:
        return f"**differ**: {count} compared, exit codes {moved.code} and {alone.code}", files
    known = {name for name in alone.files if alone.files[name] == again.files.get(name)}
    wrong = [name for name in (*changed, *gone) if name in known or name not in alone.files]
    return losses, f"**differ**: {', '.join(wrong)}" if wrong else "the same, but for those that differ alone"


def main(words: Sequence[str]) -> int:
    """Run what is asked, and print the table as it grows; 1: a script was not moved, or is not the same."""
    suite, directory, numbered = words[0], Path(words[1]).absolute(), chosen(words[2:])
    place = OUT / suite
    spec = {"backend": f"docker:{suite}", "process_images": True, "shares": (str(OUT),)}
    rows: list[str] = []
    print(HEAD, flush=True)
    with own_cluster("public", "v100:1x1,k80:1x1", 0.5, spec=spec, moves=MOVES) as mini:
        mini.path("/home/user2/light.py").write_text(LIGHT)
        for number, script in numbered:
            try:
                row = look_at(mini, script, place / f"{number:02}", directory, place / "venv/bin/python")
            except AssertionError as err:
                row = f"| {label(script)} | **{str(err).strip().splitlines()[-1][:300]}** | | | | | | | |"
                (place / f"{number:02}.why").write_text(str(err))
            rows.append(row)
            print(row, flush=True)
    (place / "table.md").write_text("\n".join((HEAD, *rows)) + "\n")
    return int(any("**" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
