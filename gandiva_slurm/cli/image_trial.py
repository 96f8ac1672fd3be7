"""`gandiva try` as root, where criu is: the script is moved by images of its processes, its losses compared.

It runs as the user who called sudo, else as the owner of the directory: an image is of no process of root's.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from gandiva_slurm.cli import runs
from gandiva_slurm.cli.lone import environment
from gandiva_slurm.cli.runs import Trial, losses_of
from gandiva_slurm.config import load_config
from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import criu, images
from gandiva_slurm.node.image_rounds import own_store
from gandiva_slurm.node.image_subject import Failed, Round, Subject

#: How often it is moved.
MOVES = 2
#: Where images lie that no site has a place for: root's own, as all above it.
DIRECTORY, MOST = "/var/lib/gandiva-try", 64 << 30


def why_not() -> str:
    """Say why nothing can be proven here; "" where it can."""
    if os.geteuid() != 0:
        return "root alone can prove it"
    return criu.unfit() or ("" if _user() else "it would run as root; next: sudo from your own account")


def prove(trial: Trial) -> tuple[str, str]:
    """Run it, moved by images; return what is told of that, and the verdict: "" for the same losses."""
    who = _user()
    assert who is not None
    root, most = _store()
    if why := images.why_not(root.parent):
        return f"not proven: {why}", ""
    try:
        with own_store(root, f"try-{os.uname().nodename}") as store:
            subject = Subject(store, who, most)
            file = subject.own_file("losses.0")
            subject.own_file("losses.0.facts")
            made = _move(trial, subject, file, environment(store / "losses") | {"HOME": who.pw_dir})
            got = losses_of(file.read_text())
    except Failed as err:
        return f"not proven: {err}", ""
    return _told(made, len(got)), _compare(trial, got)


def _move(trial: Trial, subject: Subject, file: Path, env: dict[str, str]) -> list[Round]:
    def train_on() -> None:
        so_far = len(file.read_text().splitlines())
        wanted = so_far + runs.BEHIND
        is_there = lambda: len(file.read_text().splitlines()) >= wanted  # noqa: E731
        subject.wait(is_there, "it computes no more losses", trial.deadline_s)

    made = []
    batch = tuple(str(Path(word).resolve()) for word in trial.script.command if Path(word).is_file())
    subject.start(["setpriv", *subject.as_user(), "--", *trial.script.command], env, Path.cwd())
    try:
        train_on()
        for number in range(MOVES):
            made.append(subject.move(JobKey(0, number), batch))
            train_on()
    finally:
        subject.end()
    return made


def _compare(trial: Trial, got: list[str]) -> str:
    """Return "" where the losses, but the last, which may be half written, are those of the script alone."""
    got = got[:-1]
    if len(trial.losses(trial.alone).get(0, ())) < len(got):
        trial.alone = "alone-imaged"
        runs.run_alone(trial, trial.alone, len(got))
    want = trial.losses(trial.alone).get(0, [])
    place = next((n for n, (one, other) in enumerate(zip(want, got, strict=False)) if one != other), None)
    if place is None and len(want) >= len(got):
        return ""
    return f"moved by images of its processes it computes something else, from loss {place} on"


def _told(made: list[Round], count: int) -> str:
    size, dump_s, restore_s = (
        max(each) for each in zip(*((one.bytes, one.dump_s, one.restore_s) for one in made), strict=True)
    )
    times = f"dump {dump_s:.2f} s, restore {restore_s:.2f} s, {size >> 20} MiB"
    return f"proven: moved {len(made)} times by images of its processes, {count} losses; {times}"


def _user() -> pwd.struct_passwd | None:
    """As whom it runs; None: as root, of whose processes there are no images."""
    uid = int(os.environ.get("SUDO_UID", "0")) or Path.cwd().stat().st_uid
    try:
        return pwd.getpwuid(uid) if uid else None
    except KeyError:
        return None


def _store() -> tuple[Path, int]:
    """Where images lie here, and how large one may be: as the site has it, where that is known."""
    try:
        node = load_config().node
    except ConfigError:
        return Path(DIRECTORY), MOST
    return Path(node.image_dir or DIRECTORY), round(node.image_most_gib * (1 << 30))
