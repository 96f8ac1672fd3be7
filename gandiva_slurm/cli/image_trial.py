"""`gandiva try` by root: nothing of the script is run as root, and where criu is its images are proven.

It runs as the user who called sudo, else as the owner of the directory: what `gandiva try` is for that user
first, then twice moved by images of its processes, and alone for the comparison.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from gandiva_slurm.cli import image_told, stand_in
from gandiva_slurm.cli.lone import environment
from gandiva_slurm.cli.runs import BEHIND, losses_of, slurm_env
from gandiva_slurm.cli.script_ways import Script
from gandiva_slurm.config import load_config
from gandiva_slurm.controller.what_if import COMMAND
from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import criu, images
from gandiva_slurm.node.image_rounds import own_store
from gandiva_slurm.node.image_subject import Failed, Round, Subject

#: How often it is moved.
MOVES = 2
#: Where images lie that no site has a place for: root's own, as all above it.
DIRECTORY, MOST = Path("/var/lib/gandiva-try"), 64 << 30


def user() -> pwd.struct_passwd | None:
    """As whom root tries a script; None: this is not root, or it would be root all the same."""
    if os.geteuid() != 0:
        return None
    uid = int(os.environ.get("SUDO_UID", "0")) or Path.cwd().stat().st_uid
    try:
        return pwd.getpwuid(uid) if uid else None
    except KeyError:
        return None


def by_root(who: pwd.struct_passwd, words: Sequence[str], script: Script, deadline_s: float) -> int:
    """Have `gandiva try WORDS` run by that user; prove the script's images where it says that they could be.

    Return the exit code.
    """
    child = subprocess.Popen(
        [*COMMAND, *words],
        user=who.pw_uid,
        group=who.pw_gid,
        extra_groups=os.getgrouplist(who.pw_name, who.pw_gid),
        env={**os.environ, "HOME": who.pw_dir, "USER": who.pw_name, "LOGNAME": who.pw_name},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    could_be = False
    for line in child.stdout:
        click.echo(line, nl=False)
        is_told = line.startswith("image:") and image_told.COULD in line
        could_be = could_be or (is_told and image_told.OF_CARDS not in line)
    code = child.wait()
    if code or not could_be:
        return code
    told, verdict = prove(who, script, deadline_s)
    click.echo(f"image:   {told}")
    if verdict:
        click.echo(verdict)
    return int(bool(verdict))


def prove(who: pwd.struct_passwd, script: Script, deadline_s: float) -> tuple[str, str]:
    """Run it, moved by images, and alone; return what is told, and the verdict: "" for the same losses."""
    root, most = _store()
    why = criu.unfit() or (images.why_not(root) if root.exists() else images.why_not(root.parent))
    if why:
        return f"not proven: {why}", ""
    try:
        with own_store(root, f"try-{os.uname().nodename}") as store:
            runs, subject = _Runs(who, script, deadline_s), Subject(store, who, most)
            programs = stand_in.make(store / "programs", subject.own_file("notes"))
            moved, made = runs.moved(subject, store, programs)
            alone = runs.alone(subject, store, programs, len(moved))
    except Failed as err:
        return f"not proven: {err}", ""
    return _told(made, len(moved)), compare(alone, moved)


class _Runs:
    """The runs of a script as its user, in the current directory."""

    def __init__(self, who: pwd.struct_passwd, script: Script, deadline_s: float) -> None:
        self._who, self._script, self._deadline_s = who, script, deadline_s

    def moved(self, subject: Subject, store: Path, programs: Path) -> tuple[list[str], list[Round]]:
        """Return its losses, but the last, which may be half written, and what each of its moves took."""
        count, made = self._start(subject, store, programs, "imaged"), list[Round]()
        batch = tuple(str(Path(word).resolve()) for word in self._script.command if Path(word).is_file())
        try:
            for number in range(MOVES + 1):
                if number:
                    made.append(subject.move(JobKey(0, number), batch))
                wanted = count() + BEHIND
                subject.wait(lambda wanted=wanted: count() >= wanted, _NO_LOSSES, self._deadline_s)  # type: ignore[misc]
        finally:
            subject.end()
        return losses_of((store / "imaged.0").read_text())[:-1], made

    def alone(self, subject: Subject, store: Path, programs: Path, wanted: int) -> list[str]:
        """Return the first `wanted` losses of a run that stays where it is."""
        count = self._start(subject, store, programs, "alone")
        try:
            subject.wait(lambda: count() > wanted, _NO_LOSSES, self._deadline_s)
        finally:
            subject.end()
        return losses_of((store / "alone.0").read_text())[:wanted]

    def _start(self, subject: Subject, store: Path, programs: Path, name: str) -> Callable[[], int]:
        """Start a run; return what counts its losses."""
        file = subject.own_file(f"{name}.0")
        subject.own_file(f"{name}.0.facts")
        env = environment(store / name) | {"HOME": self._who.pw_dir}
        env["PATH"] = os.pathsep.join([str(programs), env.get("PATH", os.defpath)])
        env |= slurm_env(self._script) if self._script.is_batch else {}
        subject.start(["setpriv", *subject.as_user(), "--", *self._script.command], env, Path.cwd())
        return lambda: len(losses_of(file.read_text()))


_NO_LOSSES = "it computes no more losses"


def compare(alone: list[str], moved: list[str]) -> str:
    """Return "" where the losses are the same, else from where on they are not."""
    pairs = enumerate(zip(alone, moved, strict=False))
    place = next((number for number, (one, other) in pairs if one != other), None)
    if place is None and len(alone) >= len(moved):
        return ""
    at = min(len(alone), len(moved)) if place is None else place
    return f"moved by images of its processes it computes something else, from loss {at} on"


def _told(made: list[Round], count: int) -> str:
    size, dump_s, restore_s = (
        max(each) for each in zip(*((one.bytes, one.dump_s, one.restore_s) for one in made), strict=True)
    )
    times = f"dump {dump_s:.2f} s, restore {restore_s:.2f} s, {size >> 20} MiB"
    return f"proven: moved {len(made)} times by images of its processes, {count} losses; {times}"


def _store() -> tuple[Path, int]:
    """Where images lie here, and how large one may be: as the site has it, where that is known."""
    try:
        node = load_config().node
    except ConfigError:
        return DIRECTORY, MOST
    return Path(node.image_dir or DIRECTORY), round(node.image_most_gib * (1 << 30))
