"""The store of process images: root's directory that all nodes see (ADR 0054).

    image_dir/           root, 0711
      work/NAME/         the job's user, 0700: while criu writes, and its logs at a restore
      whole/JOB.RESTART/ root, below a directory of mode 0700: copies with digests, and manifest.json;
                         with .new behind the name: a newer one, for the moment in which it takes its place
      nodes/NODE         root: this node sees the store. One that sees no other's mark has it for itself
      here/              root, 0755, empty: in the mount namespace of a restore the image is seen there

What is begun is called JOB.RESTART@NODE@RUN@…, what is used JOB.RESTART-used@NODE@RUN@…, by the gandivad that
works on it (`Node.images_by`), with a dot before it in whole/. So a node's next gandivad knows what one that
was killed has left; and a job's next image takes away what is left of its earlier incarnations, by any node.

A user never has an image open for writing: it is a copy by root, of files that are its own and no links. What
belongs to which job, incarnation and user is in the manifest, and so are the digests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from gandiva_slurm.model.ids import JobKey

VERSION = 1
#: Of one of a GPU program, which a release before this would not put onto its GPU.
OF_CARD = 2
#: Of one with files of its node alone, which a release before this would not put there.
OF_FILES = 3
MANIFEST = "manifest.json"
#: What is written of one that is told anew, until it is whole: a killed gandivad may leave it.
RETOLD = f".{MANIFEST}"
#: A manifest is smaller than this; an image has fewer files.
MOST_MANIFEST, MOST_FILES = 8 << 20, 100_000
#: What was begun or put away so long ago is nobody's; so is an image of a job of which for so long neither
#: gandivactld has told that it waits, nor a node that it lives there; sooner where a node has its own alone.
OLD_S, UNTOLD_S, OWN_UNTOLD_S = 24 * 3600.0, 2 * 3600.0, 600.0
#: The file system has at least so much left when an image is made, and is full with less than that.
SPARE, FULL = 1 << 30, 1 << 20
_CHUNK = 1 << 20
_NEWER = ".new"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_PART = re.compile(r"\.?(\d+\.\d+)(-used)?@(.+)@(.+)@[0-9a-f]+")
_GONE = ".gone-"


class BadImage(Exception):
    """It is not used; the text says why."""


class Damaged(BadImage):
    """It is not what was written: no node may restore it."""


def why_not(root: Path) -> str:
    """Say why images may not lie here, "" where they may: nobody but root may put another in its place."""
    for place in (root, *root.parents):
        try:
            status = os.stat(place, follow_symlinks=False)
        except OSError as err:
            if isinstance(err, FileNotFoundError) and place == root:
                continue  # it is made below its parent, which is looked at
            return f"node.image_dir: {place}: {err.strerror}"
        if not stat.S_ISDIR(status.st_mode):
            return f"node.image_dir: {place} is no directory"
        is_shared = status.st_mode & 0o022 and not (status.st_mode & stat.S_ISVTX and place != root)
        if status.st_uid != 0 or is_shared:
            return f"node.image_dir: {place} may be changed by others than root (chown root, chmod go-w)"
    return ""


def prepare(root: Path) -> None:
    """Make what the store consists of; OSError when that fails."""
    root.mkdir(mode=0o711, exist_ok=True)
    for name, mode in (("work", 0o711), ("whole", 0o700), ("here", 0o755), ("nodes", 0o700)):
        (root / name).mkdir(mode=mode, exist_ok=True)
        (root / name).chmod(mode)


def is_shared(root: Path, node: str) -> bool:
    """Leave this node's mark; True when another's is there."""
    (root / "nodes" / node).touch(mode=0o600)
    return any(name != node for name in os.listdir(root / "nodes"))


def sweep(root: Path, live: Collection[int] | None, untold_s: float = UNTOLD_S) -> None:
    """Delete what is old, but for images of `live` jobs; None: it is not known which these are."""
    now_s = time.time()
    for place in (*(root / "work").glob("*"), *(root / "whole").glob("*")):
        is_whole = place.parent.name == "whole" and place.name[0].isdigit()
        with contextlib.suppress(OSError, ValueError):
            if is_whole and (live is None or JobKey.parse(place.name.removesuffix(_NEWER)).job_id in live):
                if live is not None:
                    os.utime(place)
            elif place.stat().st_mtime < now_s - (untold_s if is_whole else OLD_S):
                shutil.rmtree(place)


def new_work(root: Path, key: JobKey, by: str, uid: int, gid: int) -> Path:
    """Make a directory of the job's user for criu; `by`: by whom, as in `Node.images_by`."""
    work = root / "work" / part_name(key, by)
    work.mkdir(mode=0o700)
    os.chown(work, uid, gid)
    return work


def has_any(root: Path, job_id: int) -> bool:
    """True when there is an image of any incarnation of this job."""
    return bool(keys_of(root, job_id))


def keys_of(root: Path, job_id: int) -> list[JobKey]:
    """Return the incarnations of this job that there are images of."""
    found = (root / "whole").glob(f"{job_id}.[0-9]*")
    return [*{JobKey.parse(place.name.removesuffix(_NEWER)) for place in found}]


def all_keys(root: Path) -> set[JobKey]:
    """Return the incarnations that there are whole images of."""
    found = (root / "whole").glob("[0-9]*")
    return {JobKey.parse(place.name.removesuffix(_NEWER)) for place in found}


def place_of(root: Path, key: JobKey) -> Path:
    """Where the whole image of an incarnation lies, or is to lie."""
    place = root / "whole" / str(key)
    newer = place.with_name(place.name + _NEWER)
    return newer if newer.exists() else place


def seal(root: Path, work: Path, key: JobKey, uid: int, most: int, facts: dict[str, Any]) -> int:
    """Copy what criu wrote into the store; return the bytes. BadImage or OSError: there is none then."""
    new = begin(root, work.name)
    try:
        files, total = {}, 0
        names = sorted(os.listdir(work))
        if len(names) > MOST_FILES:
            raise BadImage(f"it has {len(names)} files")
        if odd := [name for name in names if not is_plain(name)]:
            raise BadImage(f"it has a file of a strange name: {odd[0]!r:.80}")
        for name in names:
            size, digest = _copy(work / name, new / name, uid, most - total)
            files[name], total = [size, digest], total + size
        version = _version(facts)
        manifest = {"version": version, "job": str(key), "uid": uid, "files": files, **facts}
        finish(root, key, new, manifest)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return total


def _version(manifest: dict[str, Any]) -> int:
    """The oldest that says all that an image needs."""
    return OF_FILES if manifest.get("files_of_node") else OF_CARD if manifest.get("card") else VERSION


def begin(root: Path, name: str) -> Path:
    """Make the directory in which an image comes to be; `name`: as `part_name` has it."""
    new = root / "whole" / f".{name}"
    new.mkdir(mode=0o755)
    return new


def finish(root: Path, key: JobKey, new: Path, manifest: dict[str, Any]) -> None:
    """Its files are there: with its manifest it is whole."""
    with open(new / MANIFEST, "x", encoding="utf-8") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    _replace(root / "whole" / str(key), new)


def sizes_of(manifest: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of each file of an image; BadImage for what is none."""
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or len(files) > MOST_FILES:
        raise BadImage("its manifest does not say what files it has")
    sizes = {}
    for name, told in files.items():
        if not is_plain(name) or not isinstance(told, list) or len(told) != 2 or type(told[0]) is not int:
            raise BadImage(f"its manifest is not understood: {name!r:.80}")
        if told[0] < 0:
            raise BadImage(f"its manifest is not understood: {name!r:.80}")
        sizes[name] = told[0]
    return sizes


def size_of(manifest: dict[str, Any]) -> int:
    """Return the bytes of an image; BadImage for what is none."""
    return sum(sizes_of(manifest).values())


def is_plain(name: str) -> bool:
    """True for a name that an image's file may have."""
    return bool(_NAME.fullmatch(name)) and name != MANIFEST


def _replace(place: Path, new: Path) -> None:
    """Put a whole image where an older one may be: whatever is killed meanwhile, one of them is there."""
    newer = place.with_name(place.name + _NEWER)
    if newer.exists():  # one that was killed here
        _replace_older(place, newer)
    new.rename(newer)
    _replace_older(place, newer)


def _replace_older(place: Path, newer: Path) -> None:
    gone = place.with_name(f"{_GONE}{place.name}-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        place.rename(gone)
    newer.rename(place)
    shutil.rmtree(gone, ignore_errors=True)


def claim_place(root: Path, key: JobKey, by: str) -> Path:
    """Return a new place for an image that is to be claimed: a daemon writes it down before it is there."""
    return root / "whole" / f".{part_name(f'{key}-used', by)}"


def claim(root: Path, key: JobKey, used: Path) -> None:
    """Take an incarnation's image out of the store's order, to be restored once; BadImage: there is none."""
    try:
        place_of(root, key).rename(used)
    except FileNotFoundError:
        raise BadImage(f"there is no image of job {key} any more") from None
    for gone in put_away(root, key):
        remove(gone)


def give_back(root: Path, used: Path, key: JobKey) -> None:
    """Put an image back that was claimed and of which nothing lives; OSError when there is another one.

    Done twice it is done once: who did so may have been killed before that was written down.
    """
    if used.exists() or not place_of(root, key).exists():
        os.utime(used)
        used.rename(place_of(root, key))


def pass_on(root: Path, used: Path, old: JobKey, key: JobKey, is_spare: bool = False) -> None:
    """Let what was restored be the first image of the incarnation that goes on from it.

    `is_spare`: of that one alone, should Slurm start the same again; the next one begins anew.
    """
    manifest = json.loads((used / MANIFEST).read_bytes()[:MOST_MANIFEST])
    told = {"job": str(key), "pages_of": manifest.get("pages_of", str(old)), "is_spare": is_spare}
    retell(used, manifest | told)
    os.utime(used)
    _replace(root / "whole" / str(key), used)


def retell(place: Path, manifest: dict[str, Any]) -> None:
    """Have an image say another thing of itself, at once."""
    with open(place / RETOLD, "w", encoding="utf-8") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    (place / RETOLD).rename(place / MANIFEST)


def pages_of(manifest: dict[str, Any], key: JobKey) -> JobKey:
    """Return the incarnation whose pages its ranks have in an image of `key`."""
    return JobKey.parse(manifest.get("pages_of", str(key)))


def read(root: Path, key: JobKey, uid: int, place: Path | None = None) -> dict[str, Any]:
    """Return the manifest of an incarnation's image; BadImage when there is none that is this user's.

    `place`: where it was claimed to.
    """
    try:
        with open((place or place_of(root, key)) / MANIFEST, "rb") as file:
            manifest: dict[str, Any] = json.loads(file.read(MOST_MANIFEST))
    except (OSError, ValueError) as err:
        raise BadImage(f"the image of job {key} cannot be read ({err})") from err
    sizes_of(manifest)
    told = (manifest.get("version"), manifest.get("job"), manifest.get("uid"))
    if told != (_version(manifest), str(key), uid):
        raise BadImage(f"the image of job {key} is another job's, or another version's")
    return manifest


def verify(place: Path, key: JobKey, manifest: dict[str, Any]) -> None:
    """Read the whole image; Damaged when a file is not what was written."""
    files = manifest["files"]
    if {*os.listdir(place)} - {RETOLD} != {*files, MANIFEST}:
        raise Damaged(f"the image of job {key} has other files than were written")
    for name, (_, want) in files.items():
        with open(os.open(place / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            if hashlib.file_digest(file, "blake2b").hexdigest() != want:
                raise Damaged(f"the image of job {key} was changed: {name}")


def put_away(root: Path, key: JobKey) -> list[Path]:
    """Take an incarnation's image out of use, at once; return what is to be removed."""
    found = []
    for name in (f"{key}{_NEWER}", str(key)):
        gone = root / "whole" / f"{_GONE}{key}-{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):
            (root / "whole" / name).rename(gone)
            found.append(gone)
    return found


def begun(root: Path, key: JobKey, by: str) -> list[Path]:
    """Return what was begun by this gandivad of an incarnation's image, or exchanged for it; no whole one."""
    whole = root / "whole"
    exchanged = whole.glob(f"{_GONE}{key}-*")  # what makes it is ended at times before it has removed that
    return [*(root / "work").glob(f"{key}@{by}@*"), *whole.glob(f".{key}@{by}@*"), *exchanged]


def rests(root: Path, key: JobKey, by: str = "") -> list[Path]:
    """Return what was begun of an image, or used of it, by any node or this one alone; no whole one."""
    return [place for place, of, who in _parts(root) if of == key and by in ("", "@".join(who))]


def outlived(root: Path, key: JobKey) -> list[Path]:
    """Return what is left of a job's earlier incarnations when an image of this one is made.

    This one is trained, so nothing is restored from these any more.
    """
    parts = [place for place, of, _ in _parts(root) if of.job_id == key.job_id and of.restart < key.restart]
    return [*parts, *(root / "whole").glob(f"{_GONE}{key.job_id}.*")]


def left_behind(root: Path, by: str) -> list[Path]:
    """Return what former gandivads of a node have left: begun, used, or put away and not removed."""
    node, _, run = by.rpartition("@")
    former = [place for place, _, of in _parts(root) if of[0] == node and of[1] != run]
    return [*former, *(root / "whole").glob(f"{_GONE}*")]


def claimed(place: Path) -> set[JobKey]:
    """Return the incarnation whose image this is, claimed for a restore; nothing for any other place."""
    match = _PART.fullmatch(place.name)
    return {JobKey.parse(match[1])} if match is not None and match[2] else set()


def part_name(key: JobKey | str, by: str) -> str:
    """Return a new name for what is begun or used of an image, by whom."""
    return f"{key}@{by}@{secrets.token_hex(4)}"


def _parts(root: Path) -> Iterator[tuple[Path, JobKey, tuple[str, str]]]:
    """Yield what is no whole image: where it lies, of which incarnation, by which node and run."""
    for place in (*(root / "work").glob("*"), *(root / "whole").glob("*")):
        match = _PART.fullmatch(place.name)
        if match is not None:
            yield place, JobKey.parse(match[1]), (match[3], match[4])


def remove(gone: Path) -> None:
    """Remove what was put away; what is left is swept later."""
    shutil.rmtree(gone, ignore_errors=True)


def _copy(source: Path, target: Path, uid: int, most: int) -> tuple[int, str]:
    """Copy a regular file of the user's with one name; BadImage for any other."""
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != uid:
            raise BadImage(f"{source.name} is not what criu writes")
        digest, size = hashlib.blake2b(), 0
        with open(target, "xb") as copy:
            os.fchmod(copy.fileno(), 0o444)
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                if size > most:
                    raise BadImage("it is larger than node.image_most_gib allows")
                copy.write(chunk)
                digest.update(chunk)
    return size, digest.hexdigest()


def why_full(place: Path) -> str:
    """Say that a file system is full, "" where it is not; criu's log, which lies there, cannot tell then."""
    return f"{place.parent} is full" if shutil.disk_usage(place).free < FULL else ""


def check_room(root: Path, need: int, most: int) -> None:
    """BadImage when these bytes, there twice for a moment, are too many or do not fit."""
    free = shutil.disk_usage(root).free
    if need > most:
        raise BadImage(f"it takes {need >> 20} MiB, and node.image_most_gib allows {most >> 20}")
    if 2 * need + SPARE > free:
        raise BadImage(f"it takes twice {need >> 20} MiB for a moment, and {root} has {free >> 20} MiB free")
