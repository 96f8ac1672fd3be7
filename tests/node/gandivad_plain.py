"""gandivad itself, with clear-text signatures and no Slurm: what the node tests start.

Usage: gandivad_plain.py SETTINGS.json

"slurm_up": a file that exists while slurmctld is said to answer, with a line JOB RESTART for each incarnation
that it shows, on whatever node, and one for each node that it does not hear.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from gandiva_slurm import logs
from gandiva_slurm.model.errors import SlurmUnreachable
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import cgroups
from gandiva_slurm.node.daemon import Daemon
from gandiva_slurm.node.settings import NodeSettings
from tests.controller.plain_signer import PlainSigner


class NoSlurm:
    """As much of the Slurm port as gandivad uses."""

    def __init__(self, sign_of_life: Path, can_be_asked: bool) -> None:
        self._sign_of_life, self._can_be_asked = sign_of_life, can_be_asked

    async def ping(self) -> bool | None:
        return self._sign_of_life.exists() if self._can_be_asked else None

    async def hears(self, node: str) -> bool:
        return node not in self._text()

    async def shown(self, node: str) -> frozenset[JobKey]:
        lines = [line.split() for line in self._text().splitlines() if line[0].isdigit()]
        return frozenset(JobKey(int(job), int(restart)) for job, restart in lines)

    def _text(self) -> str:
        try:
            return self._sign_of_life.read_text()
        except OSError as err:
            raise SlurmUnreachable("slurmctld is away") from err

    async def slurm_config(self) -> Mapping[str, str]:
        return {}


def main() -> int:
    raw = json.loads(Path(sys.argv[1]).read_text())
    slurm = NoSlurm(Path(raw.pop("slurm_up")), raw.pop("slurm_asked", "") != "cannot be")
    look_s = raw.pop("look_s")
    names = ("socket", "state_dir", "dcgm_mapping_dir", "gpustat_dir")
    paths = {name: Path(raw.pop(name)) for name in names if name in raw}
    settings = NodeSettings(**raw | paths, obeyed_uids=frozenset({0}), hierarchy=cgroups.hierarchy())
    logs.set_up()
    return asyncio.run(Daemon(settings, PlainSigner(0), slurm, look_s=look_s).run())  # type: ignore[arg-type]


sys.exit(main())
