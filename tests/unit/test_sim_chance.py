"""What the seed of `gandiva sim run` draws: rates that scatter, nodes that fail; and tickets by the tree."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gandiva_slurm.cli.main import cli, main
from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.faults import Chance, Fault, read_faults

S = 10**9
DATA = Path(__file__).parents[1] / "data" / "gavel"
GAVEL = (
    "--workload", str(DATA / "gavel_static100_s20.trace"), "--format", "gavel", "--limit", "30",
    "--throughputs", str(DATA / "simulation_throughputs.json.xz"), "--policy", "gandiva_fair",
    "--cluster", "v100:3x4,p100:3x4,k80:3x4", "--quantum", "360", "--restart-cost", "10",
)  # fmt: skip
NOISE = ("--rate-noise", "0.1")
FAILURES = ("--node-mtbf", "20000", "--node-repair", "1000")


def run(*args: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["sim", "run", *args, "--check-invariants", "--json", "-"])
    assert done.exit_code == 0, (done.output, done.exception)
    result: dict[str, Any] = json.loads(done.stdout)
    del result["wall_s"], result["peak_rss_mib"]
    return result


@pytest.mark.parametrize("drawn", [NOISE, FAILURES, (*NOISE, *FAILURES)], ids=["noise", "failures", "both"])
def test_the_same_seed_gives_the_same_result_and_another_another(drawn: tuple[str, ...]) -> None:
    first, again, other = (run(*GAVEL, *drawn, "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again
    assert first["avg_jct_s"] != other["avg_jct_s"] != run(*GAVEL)["avg_jct_s"]


def test_the_seed_changes_nothing_where_nothing_is_drawn() -> None:
    assert run(*GAVEL, "--seed", "1") == run(*GAVEL, "--seed", "2")


def test_failures_by_chance_can_be_gone_through_twice() -> None:
    chance = Chance(3, 100 * S, 10 * S, seed=7)
    first, again = ([*itertools.islice(chance, 20)] for _ in range(2))
    assert first == again and first == sorted(first)
    assert [*itertools.islice(Chance(3, 100 * S, 10 * S, seed=8), 20)] != first


@pytest.fixture
def small(tmp_path: Path) -> tuple[str, ...]:
    """Two jobs of a node each, for ten seconds."""
    path = tmp_path / "w.csv"
    path.write_text(
        "job_id,submit_s,gpus,length_s,user,account\na,0,2,10,ann,physics\nb,0,2,10,bob,biology\n"
    )
    return ("--workload", str(path), "--format", "gandiva", "--cluster", "gpu:2x2")


def test_a_list_of_failures(small: tuple[str, ...], tmp_path: Path) -> None:
    """A node is away from 4 to 6: its job has done 4 s, waits 2 s, pays 1 s to begin again."""
    path, events = tmp_path / "faults.csv", tmp_path / "events.jsonl"
    path.write_text("at_s,node,state\n6,n2,up\n4,n2,down\n")
    args = ("--faults", str(path), "--restart-cost", "1", "--events", str(events))
    result = run(*small, "--policy", "fifo", *args)
    assert result["makespan_s"] == 13
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    story = [(line["t_s"], line["event"]) for line in lines if line["event"].startswith("node")]
    assert story == [(4, "node_down"), (6, "node_up")]


def test_a_list_of_failures_is_read_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "faults.csv"
    path.write_text("at_s,node,state\n6.5,n2,up\n4,n2,down\n")
    assert read_faults(path, Cluster([("gpu", 2)] * 2)) == [
        Fault(4 * S, 1, True),
        Fault(6 * S + S // 2, 1, False),
    ]


def test_tickets_by_the_account_tree(small: tuple[str, ...], tmp_path: Path) -> None:
    """One node, two jobs, physics has three shares of four: ann is given three quanta of four."""
    tree = tmp_path / "tree"
    tree.write_text(
        "Account|User|ParentName|Share\nphysics||root|3\nphysics|ann||1\nbiology||root|1\nbiology|bob||1\n"
    )
    jobs = tmp_path / "jobs.csv"
    args = ("--cluster", "gpu:1x2", "--quantum", "1", "--tickets", str(tree), "--jobs", str(jobs))
    result = run(*small, "--policy", "gandiva_fair", *args)
    assert {user: told["tickets"] for user, told in result["users"].items()} == {"ann": 150, "bob": 50}
    # ann has 10 s done at 13 or 14, bob the rest of 20
    ends = [float(line.split(",")[5]) for line in jobs.read_text().splitlines()[1:]]
    assert ends == [pytest.approx(13.5, abs=0.5), 20]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--node-mtbf", "9"), "give --faults FILE, or both --node-mtbf S and --node-repair S"),
        (("--node-mtbf", "9", "--node-repair", "1", "--faults", "x"), "give --faults FILE, or both"),
        (("--faults", "{n9}"), ":2: there is no node 'n9'; --cluster has n1 to n2"),
        (("--faults", "{broken}"), ":2: state is 'broken'; it takes down or up"),
        (
            ("--tickets", "{nobody}"),
            "has none of the workload's users; its first is 'ann' in account 'physics'",
        ),
        (("--rate-noise", "2"), "--rate-noise"),
        (("--half-life", "0"), "--half-life"),
        (("--compat", "gavel", *NOISE), "neither costs nor slots nor noise nor failures"),
    ],
)
def test_wrong_use_is_told(
    small: tuple[str, ...], tmp_path: Path, args: tuple[str, ...], sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    texts = {
        "n9": "at_s,node,state\n1,n9,down\n",
        "broken": "at_s,node,state\n1,n1,broken\n",
        "nobody": "Account,User,Share\nphysics,nobody,1\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    filled = [arg.format(**{name: tmp_path / name for name in texts}) for arg in args]
    with pytest.raises(SystemExit) as end:
        main(["sim", "run", *small, "--policy", "fifo", *filled])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err
