"""GPU programs in images of processes: off their GPUs before the dump, onto others behind it (ADR 0073).

NVIDIA's process checkpoint does both (`driver_checkpoint`): what it has taken off its GPUs has no device
open, and criu sees a plain program. Behind the restore it is told which GPU stands for which, by their UUIDs:
of the same model, by the same driver. No node does so before its administrator has had it proven there, by
`gandiva check --process-images 20`: public threads tell of drivers that hang, or hang the host.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gandiva_slurm.logs import warn_once
from gandiva_slurm.node import driver_checkpoint, imageable, nvml
from gandiva_slurm.node.driver_checkpoint import CudaError, Refused
from gandiva_slurm.node.images import BadImage
from gandiva_slurm.node.procs import ProcId

if TYPE_CHECKING:  # the guard, and what makes and restores an image, are processes that need no settings
    from gandiva_slurm.node.context import Node
    from gandiva_slurm.node.jobs import Resident

#: Images in a row that a node must have made and restored with its driver.
ROUNDS = 20
_HOW = "`gandiva check --process-images 20` there does so"
#: Where a node's proof lies, below node.image_dir.
PROOFS = "proven"
#: How long room on its GPUs is waited for: those that were there before are about to be off them.
ROOM_S = 30.0

log = logging.getLogger(__name__)


def why_not(root: Path, node: Node) -> str:
    """Say why no GPU program of this node can be in an image; "" where it can."""
    if not node.settings.image_cards:
        return imageable.CARDS_OFF
    why = _why_not_proven(root, node.nvml)
    if why:
        warn_once(log, f"node.process_images_gpu is on, and {why}")
    return why


def _why_not_proven(root: Path, library: nvml.Library | None) -> str:
    if library is None:
        return "NVML, or the extra `nvml`, is missing on this node"
    try:
        proof = json.loads(_proof(root).read_text())
        is_proven = proof == {"driver": library.driver(), "models": _models(library)}
    except (OSError, ValueError):
        is_proven = False
    why = f"images of GPU programs are not proven with this node's driver, {library.driver()}: {_HOW}"
    return "" if is_proven else why


def of_job(resident: Resident) -> dict[str, Any]:
    """What the program that makes the image must know of a job's GPUs (`take_off`)."""
    away = resident.away
    return {
        "is_off": away.is_out,
        "procs": away.procs if away.is_out else [proc.id for proc in resident.processes.members()],
        "bytes": away.bytes if away.is_out else {},
        "cgroups": sorted(resident.processes.cgroups),
        "gpus": list(resident.gpus),
    }


def note_asked(resident: Resident) -> None:
    """The driver is asked to take it off its GPUs, and may have, whatever becomes of the one who asks."""
    away = resident.away
    if not away.is_out:
        away.is_out, away.procs, away.bytes = True, [p.id for p in resident.processes.members()], {}


def note_answer(resident: Resident, card: Mapping[str, Any] | None) -> None:
    """Take the program's answer: what the driver keeps of it is brought back in its next turn."""
    if card:
        away = resident.away
        away.is_out, away.bytes = card["is_off"], card["bytes"]
        away.procs = [ProcId(*proc) for proc in card["procs"]]


def note_proven(root: Path) -> None:
    """Write down that images of GPU programs were made and restored here, with the driver of now."""
    library, path = driver_checkpoint.load_nvml(), _proof(root)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps({"driver": library.driver(), "models": _models(library)}))
    os.replace(new, path)


def forget_proof(root: Path) -> bool:
    """It is no proof any more; True where it was one, of the driver that is here now."""
    was_proven = not _why_not_proven(root, nvml.load())
    with contextlib.suppress(OSError):
        _proof(root).unlink()
    return was_proven


def take_off(card: dict[str, Any], pids: Sequence[int]) -> None:
    """Take a program off its GPUs; `procs` and `bytes` of `card` are then what the driver keeps.

    `card`: its processes, control groups, and whether the driver keeps its memory already. `pids`: all
    processes of the image, none of which may have a GPU open then. BadImage: they have, or it failed.
    """
    if card["is_off"] and not card["bytes"]:
        # Its driver was asked, and has not answered: the job's next turn finds out, and brings it back.
        raise BadImage("whether its driver has taken it off its GPU is not known; it is put on again first")
    if not card["is_off"]:
        try:
            said = driver_checkpoint.out({"procs": card["procs"], "cgroups": card["cgroups"]})
        except (Refused, CudaError) as err:
            raise BadImage(f"its driver did not take it off its GPU: {err}") from err
        card.update(is_off=True, procs=said["procs"], bytes=said["bytes"])
        if said["why"]:
            raise BadImage(f"its driver did not take it off its GPU: {said['why']}")
    if left := next(filter(None, map(imageable.open_card, pids)), ""):
        raise BadImage(f"{left} is open behind the driver's checkpoint, as a loader's worker may have it")


def facts(card: Mapping[str, Any]) -> dict[str, Any]:
    """What the node that restores it must know of its GPUs: `gpus` are their numbers, in the job's order."""
    library = driver_checkpoint.load_nvml()
    known = library.identities()
    return {
        "driver": library.driver(),
        "cards": [list(known[gpu]) for gpu in card["gpus"]],
        "bytes": [int(card["bytes"].get(str(gpu), 0)) for gpu in card["gpus"]],
        "inner": imageable.inner_pid(ProcId(*card["procs"][0]).pid),
    }


def why_not_here(card: Mapping[str, Any], gpus: Sequence[int], root: Path | None) -> str:
    """Say why a program of these GPUs (`facts`) cannot go on on those of these numbers; "" where it can.

    `root`: node.image_dir, where this node's proof lies; None: it is being proven.
    """
    library = nvml.load()
    if library is None:
        return "it used a GPU, and there is no NVML here"
    if why := _why_not_proven(root, library) if root is not None else "":
        return why
    here = library.identities()
    if library.driver() != card["driver"]:
        return f"this node's driver is {library.driver()}, and it ran with {card['driver']}"
    models, those = [here[gpu][1] for gpu in gpus if gpu < len(here)], [name for _, name in card["cards"]]
    if models != those:
        return f"its GPUs are of {', '.join(those)}, and here of {', '.join(models) or 'none'}"
    return ""


def put_on(proc: ProcId, card: Mapping[str, Any], gpus: Sequence[int]) -> None:
    """Let the driver put a restored process onto the GPUs of these numbers. BadImage: it did not."""
    here = driver_checkpoint.load_nvml().identities()
    pairs = [(old, here[gpu][0]) for (old, _), gpu in zip(card["cards"], gpus, strict=True)]
    need = {str(gpu): size for gpu, size in zip(gpus, card["bytes"], strict=True)}
    try:
        driver = driver_checkpoint.Driver()
        with driver_checkpoint.alone(proc):
            driver_checkpoint.wait_for_room(need, time.monotonic() + ROOM_S)
            driver_checkpoint.bring_back(driver, proc.pid, pairs)
    except (Refused, CudaError) as err:
        raise BadImage(f"its driver did not put it onto a GPU: {err}") from err


def _proof(root: Path) -> Path:
    return root / PROOFS / f"{os.uname().nodename}.json"


def _models(library: nvml.Library) -> list[str]:
    return sorted({name for _, name in library.identities()})
