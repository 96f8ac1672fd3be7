"""Which back end is taken: pyslurm only where it fits and agrees with the commands."""

from typing import Any

import pytest

from gandiva_slurm.model.errors import SlurmUnreachable
from gandiva_slurm.model.snapshot import SlurmJob, SlurmNode, Snapshot
from gandiva_slurm.slurm import backend
from gandiva_slurm.slurm.backend import Choice, ChosenPort, choose
from gandiva_slurm.slurm.commands import CommandsPort, Timeouts
from gandiva_slurm.slurm.pyslurm_port import PyslurmPort
from gandiva_slurm.slurm.run import Commands

JOB = SlurmJob(7, "user1", 5001, "research", "gandiva", "PENDING", submit_s=1000)
NODE = SlurmNode("n1", frozenset({"IDLE"}), "v100", 16)
CONFIG = {"SLURM_VERSION": "26.05.5", "AccountingStorageTRES": "cpu,gres/gpu"}


class Site:
    """What both back ends of one Slurm say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config, self.client, self.pyslurm = dict(CONFIG), "26.05.5", "25.11.2"
        self.plain = self.through_pyslurm = Snapshot((JOB,), (NODE,))
        self.broken: Exception | None = None
        site = self

        async def config(port: CommandsPort) -> dict[str, str]:
            return site.config

        async def version(port: CommandsPort) -> str:
            return site.client

        async def versions(port: PyslurmPort) -> tuple[str, str]:
            if site.broken:
                raise site.broken
            return site.pyslurm, site.config["SLURM_VERSION"]

        async def snapshot(port: CommandsPort, with_associations: bool) -> Snapshot:
            return site.through_pyslurm if isinstance(port, PyslurmPort) else site.plain

        monkeypatch.setattr(CommandsPort, "slurm_config", config)
        monkeypatch.setattr(CommandsPort, "version", version)
        monkeypatch.setattr(CommandsPort, "snapshot", snapshot)
        monkeypatch.setattr(PyslurmPort, "versions", versions)

    async def choose(self, wanted: str = "auto") -> Choice:
        port, choice = await choose(wanted, ["gandiva"], Commands(), Timeouts())
        assert isinstance(port, PyslurmPort) == (choice.back_end == "pyslurm")
        return choice


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


async def test_pyslurm_is_taken_where_it_fits(site: Site) -> None:
    choice = await site.choose()
    assert choice.sentence == "Slurm 26.05.5, through pyslurm 25.11.2"
    site.pyslurm = "26.5.0"
    assert (await site.choose()).back_end == "pyslurm"


def changed(job: dict[str, Any]) -> Snapshot:
    return Snapshot((SlurmJob(**(vars(JOB) | job)),), (NODE,))


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"pyslurm": "24.11.0"}, "pyslurm 24.11.0 is for another Slurm than slurmctld's 26.05.5"),
        ({"client": "25.05.1"}, "this host's Slurm is 25.05.1, slurmctld's 26.05.5"),
        ({"config": {"SLURM_VERSION": "26.05.5", "AccountingStorageTRES": "cpu"}}, "lacks gres/gpu"),
        ({"broken": SlurmUnreachable("said: No module named 'pyslurm'; ...")}, "(pyslurm is not installed)"),
        ({"broken": SlurmUnreachable("its process was killed by signal 11")}, "signal 11"),
        (
            {"through_pyslurm": changed({"submit_s": 5001})},
            "of job 7 pyslurm shows submit_s=5001, the commands 1000",
        ),
        ({"through_pyslurm": Snapshot((JOB,), ())}, "other nodes"),
        (
            {"through_pyslurm": Snapshot((), (SlurmNode("n1", frozenset(), "v100", 0),))},
            "of node n1 pyslurm shows slots=0, the commands 16",
        ),
    ],
)
async def test_where_pyslurm_does_not_fit_the_commands_are_taken(
    site: Site, what: dict[str, Any], why: str
) -> None:
    vars(site).update(what)
    choice = await site.choose()
    assert choice.back_end == "commands"
    assert why in choice.sentence
    with pytest.raises(SlurmUnreachable, match=r"slurm\.backend is pyslurm, but"):
        await site.choose("pyslurm")


async def test_jobs_seen_by_one_look_only_are_no_disagreement(site: Site) -> None:
    site.through_pyslurm = Snapshot((JOB, SlurmJob(8, "user2", 5002, "", "gandiva", "PENDING")), (NODE,))
    site.plain = Snapshot((JOB, SlurmJob(9, "user2", 5002, "", "gandiva", "PENDING")), (NODE,))
    assert (await site.choose()).back_end == "pyslurm"


async def test_the_commands_can_be_forced(site: Site) -> None:
    choice = await site.choose("commands")
    assert choice.sentence == "Slurm 26.05.5, through its commands 26.05.5 (slurm.backend is commands)"


class Choosers:
    """Ports made one after the other, whose pictures fail as often as said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: list[int]) -> None:
        self.failures, self.made = failures, 0
        monkeypatch.setattr(CommandsPort, "snapshot", self.snapshot)

    async def snapshot(self, with_associations: bool) -> Snapshot:
        self.failures[self.made - 1] -= 1
        if self.failures[self.made - 1] >= 0:
            raise SlurmUnreachable("away")
        return Snapshot((), ())

    async def __call__(self, *how: Any) -> tuple[CommandsPort, Choice]:
        self.made += 1
        return CommandsPort(["gandiva"]), Choice("commands", "26.05.5", "26.05.5", why=f"try {self.made}")


async def test_after_some_missed_pictures_the_choice_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = Choosers(monkeypatch, [backend.PATIENCE, 0])
    port = ChosenPort("auto", ["gandiva"], Timeouts(), chooser=chooser)
    for _ in range(backend.PATIENCE):
        with pytest.raises(SlurmUnreachable):
            await port.snapshot(False)
    assert chooser.made == 1
    await port.snapshot(False)
    assert chooser.made == 2
    assert port.choice is not None and port.choice.why == "try 2"


async def test_single_missed_pictures_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = Choosers(monkeypatch, [1])
    port = ChosenPort("auto", ["gandiva"], Timeouts(), chooser=chooser)
    for _ in range(2 * backend.PATIENCE):
        chooser.failures[0] = 1
        with pytest.raises(SlurmUnreachable):
            await port.snapshot(False)
        await port.snapshot(False)
    assert chooser.made == 1
