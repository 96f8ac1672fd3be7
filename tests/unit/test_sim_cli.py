"""`gandiva sim run` as it is typed: the JSON, the files, exit codes, and plug-ins by entry point."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gandiva_slurm.cli.main import cli, main
from gandiva_slurm.policy.registry import make_policy, policy_names
from gandiva_slurm.sim.outcome import jain, percentile

DATA = Path(__file__).parents[1] / "data"
KEYS = {
    "version", "policy", "jobs", "finished", "avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s",
    "avg_queue_s", "avg_first_100_minibatches_s", "useful_gpu_s", "held_gpu_s", "suspends", "resumes",
    "migrations", "packs_tried", "packs_kept", "packs_undone", "grows", "shrinks", "evictions", "refusals",
    "trades", "jain", "max_ftf", "users", "events", "wall_s", "peak_rss_mib",
}  # fmt: skip
GAVEL = (
    "--workload", str(DATA / "gavel" / "gavel_static100_s20.trace"), "--format", "gavel",
    "--throughputs", str(DATA / "gavel" / "simulation_throughputs.json.xz"),
    "--cluster", "v100:3x4,p100:3x4,k80:3x4",
)  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "w.csv"
    path.write_text("job_id,submit_s,gpus,length_s,user\na,10,2,10,ann\nb,12,1,4,bob\nc,12,1,2,bob\n")
    return ("--workload", str(path), "--format", "gandiva", "--cluster", "gpu:1x2")


def run(*args: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["sim", "run", *args, "--check-invariants", "--json", "-"])
    assert done.exit_code == 0, (done.output, done.exception)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_json_has_every_key_and_the_right_numbers(small: tuple[str, ...]) -> None:
    result = run(*small, "--policy", "fifo")
    assert result.keys() == KEYS
    assert (result["jobs"], result["finished"], result["policy"], result["version"]) == (3, 3, "fifo", 1)
    # a 0..10, b 10..14, c 10..12; submitted at 0, 2, 2
    assert result["avg_jct_s"] == pytest.approx((10 + 12 + 10) / 3)
    assert (result["makespan_s"], result["p50_jct_s"], result["events"]) == (14, 10, 6)
    assert result["avg_queue_s"] == pytest.approx(16 / 3)
    assert (result["held_gpu_s"], result["useful_gpu_s"]) == (26, 26)
    # two users, a GPU each: until 2 only ann wants any
    ann, bob = result["users"]["ann"], result["users"]["bob"]
    assert ann["gpu_s"] == 20 and bob["gpu_s"] == 6 and ann["share"] == pytest.approx(20 / 26)
    assert ann["tickets"] == 1 and ann["entitled"] == pytest.approx((4 + 8) / (4 + 16 + 6))


def test_files_of_jobs_and_events(small: tuple[str, ...], tmp_path: Path) -> None:
    jobs, events = tmp_path / "jobs.csv", tmp_path / "events.jsonl"
    run(*small, "--policy", "srtf", "--jobs", str(jobs), "--events", str(events))
    rows = [*csv.DictReader(jobs.open())]
    assert [*rows[0]] == ["job_id", "user", "gpus", "submit_s", "start_s", "end_s", "jct_s", "gpu_s"]
    assert [(row["job_id"], row["end_s"]) for row in rows] == [("a", "14.0"), ("b", "6.0"), ("c", "4.0")]
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    story = [(line["t_s"], line["event"]) for line in lines if line["job_id"] == "a"]
    assert story == [(0, "submit"), (0, "start"), (2, "suspend"), (6, "resume"), (14, "finish")]


def test_a_real_trace_with_packing_and_users(tmp_path: Path) -> None:
    result = run(*GAVEL, "--policy", "gandiva_fair", "--users", "4", "--quantum", "360", "--limit", "40")
    assert result["finished"] == 40 and result["jain"] > 0.9
    assert [*result["users"]] == ["user0", "user1", "user2", "user3"]
    assert result["packs_tried"] >= result["packs_kept"] + result["packs_undone"] > 0
    assert result["avg_first_100_minibatches_s"] > 0


def test_the_same_command_gives_the_same_result() -> None:
    first, second = (run(*GAVEL, "--policy", "srsf", "--limit", "30", "--switch-cost", "1") for _ in range(2))
    for result in (first, second):
        del result["wall_s"], result["peak_rss_mib"]
    assert first == second


@pytest.mark.parametrize(
    ("args", "status", "sentence"),
    [
        (("--policy", "nobody"), 2, "there is no policy 'nobody'; there are: "),
        (("--policy", "fifo", "--cluster", "gpu:x"), 2, "'gpu:x' is not TYPE:NODESxGPUS"),
        (("--policy", "fifo", "--users", "2", "--users-column", "user"), 2, "give one of them"),
        (("--policy", "fifo", "--quantum", "0"), 2, "--quantum"),
        (("--policy", "fifo", "--quantum", "nan"), 2, "'--quantum': 'nan' is no number in the range"),
        (("--policy", "fifo", "--switch-cost", "inf"), 2, "--switch-cost"),
        (("--policy", "fifo", "--rate-noise", "nan"), 2, "--rate-noise"),
        (("--policy", "fifo", "--jobs", "/nowhere/x.csv"), 2, "/nowhere/x.csv: No such file"),
    ],
)
def test_wrong_use_is_told(
    small: tuple[str, ...],
    args: tuple[str, ...],
    status: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["sim", "run", *small, *args])
    assert end.value.code == status
    assert sentence in capsys.readouterr().err


def test_every_policy_can_be_made() -> None:
    from gandiva_slurm.policy.port import PolicySettings

    assert {"fifo", "srtf", "srsf", "gandiva", "gandiva_fair"} <= {*policy_names()}
    told = {name for name in policy_names() if make_policy(name, PolicySettings(10**9))[1]}
    assert {"fifo", "srtf", "srsf"} <= told and not told & {"gandiva", "gandiva_fair"}


def test_percentiles_and_jain() -> None:
    assert [percentile([1, 2, 3, 4], at) for at in (0, 50, 100)] == [1, 2.5, 4]
    assert percentile([], 50) == 0
    assert jain([1, 1, 1]) == pytest.approx(1) and jain([1, 0, 0, 0]) == 0.25 and jain([]) == 1


LED = [name for name in policy_names() if name not in ("gavel_max_min_alone", "ffdl_spread")]

TOLD = {"fifo", "srtf", "srsf", "gavel_max_min", "backfill"}


@pytest.mark.parametrize("name", LED)
def test_every_policy_is_carried_out_by_the_engine(name: str) -> None:
    told = (*GAVEL, "--limit", "20", "--users", "3", "--switch-cost", "1", "--restart-cost", "8")
    at_once = run(*told, "--policy", name)
    led = run(*told, "--policy", name, "--world", "slurm")
    assert led["finished"] == 20 and led["policy"] == name
    if name in TOLD:
        return  # they are told true rates and lengths where there is no engine
    assert led["avg_jct_s"] == pytest.approx(at_once["avg_jct_s"], rel=0.05)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--policy", "fifo", "--world", "slurm", "--compat", "gavel"), "has a world of its own"),
    ],
)
def test_worlds_that_cannot_be_are_refused(args: tuple[str, ...], sentence: str) -> None:
    done = CliRunner().invoke(cli, ["sim", "run", *GAVEL, *args])
    assert sentence in str(done.exception)
