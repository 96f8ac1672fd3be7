"""What the program is told that makes an image of a job's processes (`imaging`), and why none can be made."""

from __future__ import annotations

import pwd
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.node import image_cards, imageable, procs
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.image_state import OFF
from gandiva_slurm.node.jobs import Resident

#: Directories of sockets that are made on the target.
MOST_DIRECTORIES = 16
#: A requeue's SIGCONT would let such a job run on behind its image, in the midst of whatever it does.
NOT_FROZEN = "it has no client, and no control group here that can be frozen"


@dataclass(frozen=True)
class Subject:
    """What an image is made of: the processes, and whether they use a GPU."""

    tree: imageable.Tree
    has_card: bool


def subject_of(resident: Resident, cards: str) -> Subject:
    """Return what the image of a job is made of; NoImage where there can be none. `cards` as in `why_not`."""
    tree = imageable.find_tree(resident.processes.stepds, resident.processes.uid)
    has_card = _has_card(tree, resident, cards)
    _check_all_are_in(tree, resident)
    return Subject(tree, has_card)


def task_of(node: Node, resident: Resident, subject: Subject) -> dict[str, Any]:
    """Return what the program is told."""
    tree = subject.tree
    return {
        "image_dir": str(node.settings.image_dir),
        "most": node.settings.image_most,
        "key": str(resident.key),
        "by": node.images_by,
        "uid": resident.processes.uid,
        "root": tree.root,
        "inner": tree.inner,
        "first": tree.first.pid if tree.first else 0,
        "pids": [proc.pid for proc in tree.procs],
        "goes_on": resident.image.is_kept,
        "besides": [],
        "groups": [str(group) for group in node.freezer.groups(resident)],
        "card": image_cards.of_job(resident) if subject.has_card else None,
        "facts": {
            "node": node.settings.node,
            "name": resident.name,
            "script": imageable.script_of(tree),
            "directories": imageable.socket_directories(tree)[:MOST_DIRECTORIES],
            "left": resident.image.left,
            "ranks": _ranks(resident),
            "steps": resident.steps(),
            "spent_ns": resident.image.spent_ns + resident.counts.held_ns,
        },
    }


def why_not(node: Node, resident: Resident, cards: str) -> str:
    """Say why no image of a job could be made now; `cards`: why none of a GPU program."""
    if resident.part is not None:
        return imageable.ON_SEVERAL_NODES
    resident.image.is_blind = not resident.sets and resident.is_blind(node.settings.client_wait_ns)
    if resident.image.is_blind and not node.freezer.groups(resident):
        return NOT_FROZEN
    if not resident.ranks and not resident.image.is_blind:
        return resident.image.why_not if resident.image.why_not != OFF else "no rank has registered"
    try:
        tree = imageable.find_tree(resident.processes.stepds, resident.processes.uid)
        resident.image.has_card = _has_card(tree, resident, cards)
    except imageable.NoImage as err:
        return str(err)
    return ""


def _has_card(tree: imageable.Tree, resident: Resident, cards: str) -> bool:
    """True for a program that uses a GPU, or did until its driver took it off; NoImage: there can be none."""
    has_card = imageable.check(tree, _gid(resident), cards=cards) or resident.away.is_out
    if has_card and cards:
        raise imageable.NoImage(f"its driver keeps its GPU's memory; {cards}")
    return has_card


def _gid(resident: Resident) -> int:
    try:
        return pwd.getpwuid(resident.processes.uid).pw_gid
    except KeyError:
        raise imageable.NoImage("this node does not know its user") from None


def _check_all_are_in(tree: imageable.Tree, resident: Resident) -> None:
    """NoImage when a process of the job is not below its root: it would be left behind."""
    inside = {proc.pid for proc in tree.procs}
    outside = [proc.pid for proc in resident.processes.members() if proc.pid not in inside]
    heads = {pid for stepd in resident.processes.stepds for pid in procs.children(stepd.pid)}
    if set(outside) - heads:
        raise imageable.NoImage("one of its processes has left its tree")


def _ranks(resident: Resident) -> list[dict[str, object]]:
    return [
        {
            "rank": rank.rank,
            "world": group.world,
            "master": group.master,
            "inner": imageable.inner_pid(rank.proc.pid),
            "fd": rank.remote_fd,
        }
        for group in resident.sets
        for rank in group.in_order()
        if rank.is_alive
    ]
