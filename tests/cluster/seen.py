"""What a user sees of a mini cluster that shares directories: the same on both back ends."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gandiva_slurm.mini import layout
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.spec import USERS

SCRIPT = "#!/bin/sh\nid -un\npwd\necho made >made\n"
ONLY_HERE = "next: gandiva mini down, then gandiva mini up --share"


def gandiva(*words: str, name: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command line, as a user types it in the directory `cwd`."""
    return subprocess.run([str(layout.bin_dir() / "gandiva"), *words], text=True, capture_output=True,
                          env=os.environ | {"GANDIVA_MINI": name}, timeout=300, cwd=cwd)


def sbatch(*words: str, name: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """user1 submits from `cwd`."""
    return gandiva("mini", "exec", "--user", "user1", "--", "sbatch", *words, name=name, cwd=cwd)


@contextmanager
def places() -> Iterator[dict[str, Path]]:
    """A current directory below /tmp, another below a closed one of /root, one that is not shared."""
    with tempfile.TemporaryDirectory(prefix="gandiva-here-") as tmp, tempfile.TemporaryDirectory(
            prefix="gandiva-closed-", dir="/root") as closed, tempfile.TemporaryDirectory(
            prefix="gandiva-hidden-") as hidden:
        made = {"here": Path(tmp, "a work"), "shared": Path(closed, "data"), "hidden": Path(hidden)}
        for place in made.values():
            place.mkdir(exist_ok=True)
            place.chmod(0o777)
            (place / "job.sh").write_text(SCRIPT)
            (place / "job.sh").chmod(0o755)
        (made["shared"].parent / "secret").write_text("secret")
        yield made


def check_jobs(name: str, place: dict[str, Path]) -> None:
    """Scripts in the current directory and in a shared one run there, and their files lie on this machine."""
    for which, cwd in (("here", place["here"]), ("shared", place["shared"]), ("here", place["here"] / "..")):
        script = "job.sh" if cwd == place[which] else str(place[which] / "job.sh")
        chdir = [] if cwd == place[which] else ["--chdir", str(place[which])]
        done = sbatch("--wait", "-o", "out", *chdir, script, name=name, cwd=cwd)
        assert done.returncode == 0 and "gandiva" not in done.stderr, done.stderr
        for file in ("out", "made"):
            assert (place[which] / file).stat().st_uid == USERS["user1"]
            (place[which] / file).replace(place[which] / f"{file}.seen")
        assert (place[which] / "out.seen").read_text() == f"user1\n{place[which]}\n"


def check_sentences(name: str, place: dict[str, Path]) -> None:
    """What is not shared is said with what to do, before the job ends without a word."""
    hidden = place["hidden"]
    done = sbatch("job.sh", name=name, cwd=hidden)
    assert done.returncode != 0 and f"{hidden}/job.sh is on this machine and not inside" in done.stderr
    assert f"{ONLY_HERE} {hidden}" in done.stderr
    done = sbatch("--chdir", str(hidden), "--wrap", "true", name=name, cwd=hidden)
    assert f"gandiva: the working directory {hidden} does not exist inside" in done.stderr
    done = sbatch("--output", f"{hidden}/%j/out", "--wrap", "true", name=name, cwd=place["here"])
    assert f"gandiva: the directory of --output, {hidden} does not exist inside" in done.stderr
    assert "next: make it there, or" in done.stderr and "gandiva mini up --share DIR" in done.stderr
    done = gandiva("mini", "exec", "--user", "user1", "--", "pwd", name=name, cwd=hidden)
    assert done.stdout == "/home/user1\n" and done.stderr == ""


def check_hostile(cluster: MiniCluster, place: dict[str, Path]) -> None:
    """A user inside makes links in a share, and looks around beside it: what was private is."""
    here, closed = place["here"], place["shared"].parent
    for number, target in enumerate(("/root/.ssh", str(closed / "secret"), str(place["hidden"]), "/root",
                                     "/proc/1/root/root")):
        link = here / f"link{number}"
        cluster.exec(["ln", "-s", target, str(link)], user="user1")
        for words in (["ls", f"{link}/"], ["cat", str(link)]):
            assert cluster.exec(words, user="user1", check=False).returncode != 0, (words, target)
    for words in (["ls", "/root"], ["touch", f"{closed}/x"], ["mv", str(here), "/tmp/x"],
                  ["cat", "/etc/shadow"]):
        assert cluster.exec(words, user="user1", check=False).returncode != 0, words
    assert cluster.exec(["ls", "-A", str(closed)]).stdout.split() == ["data"]
