"""Rules of `gandiva check` on gandiva.yaml against this host, and on what it says beside Slurm's files."""

from __future__ import annotations

import os
import pwd
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from gandiva_slurm.config import Config
from gandiva_slurm.slurm.check_site import Site
from gandiva_slurm.slurm.finding import Finding, error, warning


def check(site: Site, config: Config, directory: Path) -> Iterator[Finding]:
    """Yield every fault."""
    yield from _host(config)
    yield from _user(site, config, directory)
    yield from _deadlines(config)
    yield from _virtual_clusters(config, directory / "job_submit.lua")


def _host(config: Config) -> Iterator[Finding]:
    host = config.controller.host
    try:
        socket.getaddrinfo(host, config.controller.port)
    except OSError as err:
        what = f"{host}: {err.strerror or err}: neither nodes nor commands find gandivactld"
        yield error(
            "gandiva.yaml: controller.host",
            what,
            "name the host gandivactld runs on, as all machines know it",
        )


def _user(site: Site, config: Config, directory: Path) -> Iterator[Finding]:
    name = config.controller.slurm_user
    where = "gandiva.yaml: controller.slurm_user"
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        yield error(where, f"there is no user {name} on this host", "make it, the same on all machines")
        return
    yield from _state_dir(Path(config.controller.state_dir), name, uid)
    if name != site.user("SlurmUser") and not _is_trusted(directory / "job_submit.lua", uid):
        what = f"job_submit.lua does not trust {name} ({uid}): it would refuse gandivactld's own changes"
        yield error(str(directory / "job_submit.lua"), what, f"add to configure: admin_uids = {{{uid}}}")


def _state_dir(path: Path, name: str, uid: int) -> Iterator[Finding]:
    """The controller's state: its owner's alone, where this host has it."""
    where = "gandiva.yaml: controller.state_dir"
    try:
        info = os.stat(path)
    except OSError:
        return  # another host's, or made at the first start
    if not stat.S_ISDIR(info.st_mode):
        yield error(where, f"{path} is no directory", "name a directory, or let gandivactld make it")
    elif info.st_uid != uid:
        yield error(where, f"{path} is not owned by {name}", f"chown -R {name} {path}")
    elif info.st_mode & stat.S_IWOTH:
        yield error(where, f"everybody may write {path}", f"chmod 700 {path}")


def _is_trusted(script: Path, uid: int) -> bool:
    """True when configure names this number; also when that cannot be seen."""
    text = _code(script)
    if text is None:
        return True
    names = re.findall(r"\b(?:admin_uids\s*=\s*\{([^{}]*)\}|slurm_uid\s*=\s*(\d+))", text)
    return str(uid) in re.findall(r"\d+", " ".join(" ".join(pair) for pair in names))


def _code(script: Path) -> str | None:
    """A Lua script without its comments; None when it cannot be read here."""
    try:
        return re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", script.read_text(errors="replace"), flags=re.DOTALL)
    except OSError:
        return None


def _virtual_clusters(config: Config, script: Path) -> Iterator[Finding]:
    """The submission filter refuses the names that it is not told."""
    text = _code(script)
    listed = re.search(r"\bvcs\s*=\s*\{([^{}]*)\}", text or "")
    known = set(re.findall(r"""["']([^"']+)["']""", listed[1])) if listed else set()
    missing = [name for name in config.virtual_clusters if name not in known]
    if missing and text is not None:
        what = f"it does not know virtual cluster {', '.join(missing)}: jobs that name it are refused"
        names = ", ".join(f'"{name}"' for name in config.virtual_clusters)
        yield error(str(script), what, f"add to configure: vcs = {{{names}}}")


def _deadlines(config: Config) -> Iterator[Finding]:
    part, node = config.controller, config.node
    if part.silent_after_s < 3 * part.cycle_s:
        cycles = f"three cycles of {part.cycle_s:g} s"
        what = f"{part.silent_after_s:g} s are less than {cycles}: one lost answer closes a node"
        yield warning("gandiva.yaml: controller.silent_after_s", what, f"set {10 * part.cycle_s:g}")
    if node.park_deadline_s > node.max_park_s:
        what = f"{node.park_deadline_s:g} s are longer than the longest park, {node.max_park_s:g} s"
        yield warning("gandiva.yaml: node.park_deadline_s", what, "shorten it, or raise max_park_s")
