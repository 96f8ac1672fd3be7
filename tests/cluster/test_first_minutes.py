"""The first ten minutes of docs/using.md, typed as they stand there on a new cluster, look as they do."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster, wait_for
from tests.slow import slow

pytestmark = slow("30 s; tests/test_docs_commands.py has command lines and headings without a cluster")

PAGE = (Path(__file__).parents[2] / "docs/using.md").read_text()
SECTION = PAGE.split("## The first ten minutes\n")[1].split("\n## ")[0]
#: In the place of a training by PyTorch: as many mini-batches as `eff` needs, in each turn too, without its
#: seconds of import.
TRAIN = "import time\nimport gandiva_slurm as gandiva\nfor _ in gandiva.steps(range(600)): time.sleep(0.02)\n"
LEFT_OUT = "…"
SBATCH = "sbatch -J train job.sh"


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    with own_cluster("first", "v100:1x2", 1.0, packing={"enabled": False}) as made:
        yield made


def steps() -> Iterator[tuple[str, list[str]]]:
    """Each command of the section, and the lines that the page has below it."""
    for block in re.findall(r"^```\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL):
        for part in block.split("$ ")[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            yield command, lines


def looks_like(got: list[str], want: list[str]) -> bool:
    """Lines begin with the same words, numbers aside; there are as many, but where some are left out."""
    is_part = LEFT_OUT in want
    return words(want) - {LEFT_OUT} <= words(got) and (is_part or len(got) == len(want))


def words(lines: list[str]) -> set[str]:
    """What the lines begin with, N for a number."""
    return {re.sub(r"\d+", "N", line.split()[0]) for line in lines if line.split()}


def test_the_first_ten_minutes_are_as_the_page_has_them(fleet: Fleet) -> None:
    told = dict(steps())
    assert [*told] == [
        "cat job.sh", SBATCH, "gandiva queue --me", "gandiva why 1", "gandiva acct", "gandiva eff 1",
    ]  # fmt: skip
    for user in ("user1", "user2"):
        fleet.home(user, "job.sh").write_text("\n".join(told["cat job.sh"]) + "\n")
        fleet.home(user, "train.py").write_text(TRAIN)

    def typed(command: str, user: str = "user1") -> list[str]:
        return fleet.mini.exec(["sh", "-c", f"cd ~ && {command}"], user=user).stdout.splitlines()

    def check(command: str) -> None:
        seen: list[list[str]] = []
        wait_for(
            lambda: seen.append(typed(command)) or looks_like(seen[-1], told[command]),
            lambda: f"{command} to look as on the page: {seen[-1]}",
        )

    for user in ("user1", "user1", "user1", "user2", "user2"):
        lines = typed(SBATCH, user)
        assert looks_like(lines, told[SBATCH])
        fleet.jobs.append(int(lines[0].split()[-1]))
    for job in fleet.jobs:
        fleet.wait_running(job)
    check("gandiva queue --me")
    wait_for(lambda: fleet.count("parked", 1) >= 2, "job 1 to be parked")
    check("gandiva why 1")
    for job in fleet.jobs:
        fleet.wait_ended(job, "COMPLETED", deadline_s=90)
    check("gandiva acct")
    check("gandiva eff 1")
