"""What `gandiva doctor` and `try` say of an image of a script's processes, by gandivad's checks (ADR 0054).

A node looks at the same before it makes one. What criu alone can know, it is asked for there only.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from pathlib import Path

from gandiva_slurm.cli import script_ways
from gandiva_slurm.cli.lone import LoneNode
from gandiva_slurm.cli.script_ways import Script
from gandiva_slurm.config import load_config
from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.node import criu, imageable, procs
from gandiva_slurm.node.imageable import NoImage

#: Where criu lies, which is not in every user's PATH.
_ROOTS_PROGRAMS = "/usr/local/sbin:/usr/sbin:/sbin"
#: What is told where nothing stands in its way.
COULD = "could be made, as far as is seen here"
OF_CARDS = "it uses a GPU: on nodes that have proven their driver, to GPUs of its model (docs/images.md)"


def told(node: LoneNode, script: Script, way: str) -> str:
    """Say whether one could be made of the script that runs under `node`, and whether one would be here.

    `way`: how else it is moved, "" where no way is known: an image is made of no other job.
    """
    if node.status is not None or node.is_over():
        return "not known: the script was over"
    found, has_card = _look(node, script)
    why = script_ways.why_never(script) or found
    if why:
        return f"no: {why}"
    if way:
        return f"could be made, and is not needed: it is moved otherwise ({way})"
    words = (COULD, _of_site(), OF_CARDS * has_card, _of_criu())
    return "; ".join(filter(None, words))


def _look(node: LoneNode, script: Script) -> tuple[str, bool]:
    """Say what the script has that cannot be in an image, "" for nothing seen; and whether it uses a GPU."""
    line = script.marks.get("nodes")
    if line:
        return f"{imageable.ON_SEVERAL_NODES} ({line})", False
    if node.tasks():
        return imageable.NOT_ONE_STEP, False
    root = procs.read_proc(node.pid)
    if root is None:
        return "it ended", False
    try:
        tree, besides = imageable.tree_below(root, os.getuid()), _not_the_jobs(node, script)
        has_card = imageable.check(tree, _gid(), besides, _why_no_cards())
        imageable.files_of(tree, besides)
        return "", has_card
    except NoImage as err:
        return str(err), False


def _gid() -> int:
    """Return the group that gandivad restores this user's jobs with."""
    try:
        return pwd.getpwuid(os.getuid()).pw_gid
    except KeyError:
        raise NoImage("this machine does not know its user") from None


def _not_the_jobs(node: LoneNode, script: Script) -> tuple[str, ...]:
    """What it has open by being tried: the trial's files, a batch script's, our standard input.

    A shell reads sbatch's copy of the script, below SlurmdSpoolDir; a job's standard input is /dev/null.
    """
    found = [f"{node.run.parent}/"]
    if script.is_batch:
        found += [str(Path(word).resolve()) for word in script.command if Path(word).is_file()]
    with contextlib.suppress(OSError):  # closed
        found.append(os.readlink("/proc/self/fd/0"))
    return tuple(found)


def _why_no_cards() -> str:
    """Say why this site makes no images of GPU programs; "" where it does, or is not known."""
    with contextlib.suppress(ConfigError):
        settings = load_config().node
        return "" if settings.process_images_gpu or not settings.process_images else imageable.CARDS_OFF
    return ""


def _of_site() -> str:
    try:
        settings = load_config().node
    except ConfigError:
        return "whether this site makes images is not known here (no gandiva.yaml)"
    if not settings.process_images:
        return "this site makes none (node.process_images is off)"
    return "this site makes them (node.process_images)"


def _of_criu() -> str:
    """Say what is known of criu on this machine; the nodes may have another."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), _ROOTS_PROGRAMS])
    unfit = criu.unfit(path)
    if unfit:
        return unfit
    version = ".".join(map(str, criu.version(path)))
    if os.geteuid() != 0:
        return f"criu {version} is here, and root alone may have it check the kernel"
    fails = criu.fails_its_check(path)
    return f"criu {version} is here, and " + (f"its check finds: {fails}" if fails else "passes its check")
