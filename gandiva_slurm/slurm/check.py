"""`gandiva check`: compare what Slurm runs with, its files on this host, and gandiva.yaml.

Run it where slurmctld runs: job_submit.lua is read there only. Nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.config import Config
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.snapshot import SlurmNode
from gandiva_slurm.slurm import check_collisions, check_files, check_partitions, check_site, check_yaml
from gandiva_slurm.slurm.backend import Choice, choose
from gandiva_slurm.slurm.commands import CommandsPort, Timeouts
from gandiva_slurm.slurm.finding import ERROR, WARNING, Finding, error
from gandiva_slurm.slurm.reader import nodes_command, read_gres, read_nodes, release
from gandiva_slurm.slurm.run import Commands

__all__ = ["ERROR", "WARNING", "Finding", "Survey", "run_checks"]

READ_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Survey:
    """What was found, worst first, and how Slurm is talked to from here; None while it does not answer."""

    findings: tuple[Finding, ...]
    choice: Choice | None


async def run_checks(config: Config, commands: Commands | None = None) -> Survey:
    """Return every misconfiguration found."""
    commands = commands or Commands()
    try:
        site = await read_site(config, commands)
    except GandivaError as err:
        away = error("slurmctld", str(err), "start it, or run this where Slurm's commands work")
        return Survey((away,), None)
    found = [*check_site.check(site, config), *check_files.check(site, config, _directory(site))]
    found += check_partitions.check(site, await _nodes(site, config, commands), config)
    found += check_yaml.check(site, config, _directory(site))
    found += check_collisions.check(site, config, _directory(site))
    choice = None
    try:
        port, choice = await choose(config.slurm.backend, config.partitions, commands, Timeouts())
        await port.close()
    except GandivaError as err:
        found.append(error("gandiva.yaml: slurm.backend", str(err), "docs/pyslurm.md tells how to build it"))
    return Survey(tuple(sorted(found, key=lambda finding: finding.level != ERROR)), choice)


async def read_site(config: Config, commands: Commands) -> check_site.Site:
    """Ask Slurm for everything the rules look at; SlurmUnreachable when it does not answer."""
    port = CommandsPort(config.partitions, commands=commands)
    running = await port.slurm_config()
    user = config.controller.slurm_user
    return check_site.Site(
        config=running,
        partitions=await port.partitions(),
        gres=await read_gres(commands, READ_TIMEOUT_S, release(await port.version())),
        client_version=await port.version(),
        admin_level=await _admin_level(commands, user),
    )


async def _nodes(site: check_site.Site, config: Config, commands: Commands) -> tuple[SlurmNode, ...]:
    """The nodes of our partitions; none when Slurm has just gone away."""
    command = nodes_command(release(site.client_version))
    try:
        return read_nodes(
            await commands.output(command, READ_TIMEOUT_S), frozenset(config.partitions), command
        )
    except GandivaError:
        return ()


async def _admin_level(commands: Commands, user: str) -> str | None:
    """Return the AdminLevel of a user in slurmdbd; None when slurmdbd does not say."""
    argv = ("sacctmgr", "-nP", "show", "user", user, "format=AdminLevel")
    try:
        return (await commands.output(argv, READ_TIMEOUT_S)).strip()
    except GandivaError:
        return None


def _directory(site: check_site.Site) -> Path:
    return Path(site.config.get("SLURM_CONF") or "/etc/slurm/slurm.conf").parent
