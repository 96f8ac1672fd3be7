"""`gandiva sim paper`: every name runs, its numbers are what is claimed, and the command's manners."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gandiva_slurm.cli.main import cli, main
from gandiva_slurm.sim.paper import automl
from gandiva_slurm.sim.paper.catalogue import CATALOGUE
from gandiva_slurm.sim.paper.result import Setup, published
from tests.slow import long_form, slow, soaked

NAMES = [entry.name for entry in CATALOGUE]
#: Those that take no time; the others have tests of their own.
QUICK = ["stride", "timeslicing", "packing", "homogeneous", "trading"]
SLOW = {"automl", "early-feedback"}


def ask(*args: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["sim", "paper", *args, "--json", "-"])
    assert done.exit_code == 0, (done.output, done.exception)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def rows_of(name: str) -> dict[str, dict[str, Any]]:
    rows: list[dict[str, Any]] = ask(name)["rows"]
    assert all(row.keys() == {"what", "ours", "paper", "unit", "note"} for row in rows)
    return {row["what"]: row for row in rows}


def test_every_name_is_tested_here_or_beside() -> None:
    assert {*QUICK, *SLOW} == {*NAMES}


@pytest.mark.parametrize("word", ["LIST", "list"])
def test_the_list_names_all_with_their_papers(word: str) -> None:
    told = ask(word)
    assert told["version"] == 1 and [entry["name"] for entry in told["papers"]] == NAMES
    lines = CliRunner().invoke(cli, ["sim", "paper", word]).stdout.splitlines()
    assert len(lines) == len(NAMES) + 1
    assert all("OSDI 2018" in line or "EuroSys 2020" in line for line in lines[1:])


def test_an_unknown_name_is_told_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sim", "paper", "automle"])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == ""
    assert "'automle'" in said.err and all(name in said.err for name in NAMES)


def test_a_table_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "stride.json"
    done = CliRunner().invoke(cli, ["sim", "paper", "stride", "--json", str(path)])
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and lines[0].startswith("Gandiva_fair, EuroSys 2020")
    assert lines[1].split()[:3] == ["WHAT", "OURS", "PAPER"]
    told = json.loads(path.read_text())
    assert (told["version"], told["name"], told["seed"]) == (1, "stride", 0)
    assert len(told["rows"]) == len(lines) - 2


def test_a_missing_folder_is_told_before_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sim", "paper", "stride", "--json", str(tmp_path / "no" / "x.json")])
    assert ended.value.code == 2 and "make" in capsys.readouterr().err


def test_stride_is_the_papers_to_the_digit() -> None:
    rows = rows_of("stride")
    assert len(rows) == 18 and all(row["ours"] == row["paper"] and not row["note"] for row in rows.values())


def test_six_jobs_share_four_gpus_and_lose_less_than_the_paper_says() -> None:
    rows = rows_of("timeslicing")
    for which in ("slowest", "fastest"):
        assert rows[f"{which} job, of its rate alone"]["ours"] == pytest.approx(4 / 6, rel=0.01)
    lost = rows["lost in all"]
    assert 0 < lost["ours"] < 2 and lost["paper"] == "< 2"


def test_packing_keeps_the_first_five_and_undoes_the_last_three() -> None:
    rows = rows_of("packing")
    verdicts = {what: row["note"].split(",")[0] for what, row in rows.items()}
    assert [*verdicts.values()] == ["kept"] * 5 + ["undone"] * 3
    for model, paper in published("gandiva")["packing"].items():
        measured = round(100 * (paper["pair_sum"] - 1))
        assert rows[f"{model} x 2"]["ours"] == measured == min(paper["gain_pct"], 100)
        assert "tried 1x" in rows[f"{model} x 2"]["note"]


def test_homogeneous_shares_are_the_users() -> None:
    rows = rows_of("homogeneous")
    assert len(rows) == 9
    for row in rows.values():
        assert row["ours"] == pytest.approx(row["paper"], rel=0.01)


@slow("12 s; test_market has trades and their ledger")
def test_trading_gains() -> None:
    rows = ask("trading")["rows"]
    gains = [row for row in rows if row["what"].endswith(": gain")]
    exact = [30.6, 0.0, 0.0, 26.0, 29.8, 18.4, 0.0, 12.7]
    assert [row["ours"] for row in gains] == exact
    simulated = [row["ours"] for row in rows if row["what"].endswith(": simulated")]
    assert simulated == pytest.approx(exact, abs=0.4) and simulated != exact
    assert [row["paper"] for row in gains] == ["about +30", 0, 0, "about +30"] * 2


@slow("25 s; test_automl has the rules, and the noise below the searches")
def test_a_search_reaches_eighty_and_ninety_per_cent_as_much_sooner_as_the_papers() -> None:
    """A hundred orders; the targets are the paper's own gains."""
    seen: list[tuple[int, int]] = []
    rows = {row.what: row for row in automl.run(Setup(0, lambda *at: seen.append(at)))}
    for goal, least in (("80%", 5.25), ("90%", 5.66)):
        row = rows[f"{goal}, sooner"]
        assert row.paper == least
        assert row.ours >= least, row
    assert rows["searches that gave up a winner"].ours == 0
    assert seen[-1] == (100, 100)


@pytest.mark.parametrize(
    ("seed", "orders"),
    [(1, 20), long_form(1, 100, why="8 s; 20 orders in make test"), soaked(2, 100, why="14 s; as above")],
)
def test_no_winner_is_lost_in_four_times_the_noise(seed: int, orders: int) -> None:
    hundred, turn = automl.configurations(seed), random.Random(seed)
    hopeless = 0
    for shuffle in range(orders):
        order = turn.sample(hundred, len(hundred))
        # mini-batches ten times as short: a quantum is one measurement, so that it takes a tenth of the time
        hunt = automl.introspective(order, 0.08, f"{seed}/{shuffle}", minibatch_s=0.06)
        assert not automl.is_lost(order, hunt)
        assert hunt.reached_s.keys() == {0.8, 0.9}
        hopeless += len(hunt.given_up)
    assert hopeless  # it does give up


def test_the_configurations_are_as_defined() -> None:
    finals = [one.final for one in automl.configurations(3)]
    assert len(finals) == 100 and finals[:2] == [0.9, 0.8]
    assert sum(final < 0.3 for final in finals) == 30 and max(finals[2:]) <= 0.76
    one = automl.Configuration(0.9, 0.1)
    assert one.accuracy(1.0) == pytest.approx(0.9) and one.reaches(0.9) == pytest.approx(1.0)
    part = one.reaches(0.8)
    assert part is not None and one.accuracy(part) == pytest.approx(0.8)
    assert automl.Configuration(0.8, 0.1).reaches(0.9) is None


def test_first_come_is_four_at_a_time_in_order() -> None:
    """The winner is the sixth: the second wave of four, at its end."""
    order = [automl.Configuration(0.5, 0.1)] * 5 + [automl.Configuration(0.9, 0.1)]
    reached = automl.first_come(order, minibatch_s=1.0)
    part = order[5].reaches(0.8)
    assert part is not None
    assert reached[0.9] == pytest.approx(2 * automl.HORIZON)
    assert reached[0.8] == pytest.approx((1 + part) * automl.HORIZON)
