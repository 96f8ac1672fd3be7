"""Jobs that ask for one node or two: elastic ones, which may grow over both (ADR 0066)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.slurm.options import read_options
from tests.job_submit import LUA, Outcome, run_module

MODULE = Path(__file__).parents[2] / "slurm_conf/gandiva_job_submit.lua"
CONFIGURE: dict[str, Any] = {"partitions": ["gandiva"], "nodes_gpus": {"v100": 4}, "slurm_uid": 64}
NODES = 6

pytestmark = pytest.mark.skipif(LUA is None, reason="no lua5.1 (make setup installs it)")

Submit = Callable[..., Outcome]


@pytest.fixture
def submit(tmp_path: Path) -> Submit:
    """submit(least, most, elastic, **fields): a job of two GPUs a node, in a partition of NODES."""

    def run(least: int, most: int, elastic: str = "", total_nodes: int = NODES, **fields: Any) -> Outcome:
        sent = [f"_SLURM_SPANK_OPTION_gandiva_gandiva_elastic={elastic}"] if elastic else []
        desc = {"partition": "gandiva", "tres_per_node": "gres:gpu:2", "spank": sent, **fields}
        parts = {"gandiva": {"flag_default": 0, "total_nodes": total_nodes}}
        case = {"configure": CONFIGURE, "call": "submit", "parts": parts, "uid": 2001}
        desc |= {"min_nodes": least, "max_nodes": most}
        return run_module(MODULE, {**case, "desc": desc}, tmp_path / "case.lua")

    return run


def test_an_elastic_job_of_one_node_or_two_begins_on_one_and_may_have_two(submit: Submit) -> None:
    outcome = submit(1, 2, "1-8")
    assert (outcome.user, outcome.rc) == ("", 0)
    assert (outcome.changes["min_nodes"], outcome.changes["max_nodes"]) == ("1", "1"), "lest it has both"
    options = read_options(outcome.changes["admin_comment"], 1)
    assert options is not None
    assert (options.gpus, options.nodes, options.max_nodes, options.sizes) == (2, 1, 2, (1, 8))


def test_one_that_asked_for_one_node_stays_on_it(submit: Submit) -> None:
    options = read_options(submit(1, 1, "1-8").changes["admin_comment"], 1)
    assert options is not None and options.max_nodes == 1


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ((1, 2), "--nodes: 1-2 asked, a Gandiva job has a fixed number; next: ask for --nodes=1, or add "
                 "--gandiva-elastic=1-N, N the most GPUs that it may grow to"),
        ((1, 3), "--nodes: 1-3 asked, a Gandiva job has a fixed number; next: ask for --nodes=1"),
        ((1, 3, "1-8"), "--nodes: 1-3 asked, a Gandiva job has a fixed number; next: ask for --nodes=1, or "
                        "for --nodes=1-2: an elastic job grows from one node to two"),
        ((2, 3, "1-8"), "--nodes: 2-3 asked, "),
        ((1, 2, "1-8", 1), "--nodes: 2 nodes asked, the partition has 1; next: ask for at most 1"),
    ],
)  # fmt: skip
def test_other_ranges_are_refused_with_what_would_do(
    submit: Submit, asked: tuple[Any, ...], sentence: str
) -> None:
    outcome = submit(*asked)
    assert outcome.user.startswith(f"gandiva: {sentence}") and outcome.changes == {}


def test_what_is_to_grow_over_nodes_asks_for_no_closer_cell(submit: Submit) -> None:
    sent = [f"_SLURM_SPANK_OPTION_gandiva_gandiva_{word}" for word in ("elastic=1-8", "cell=node")]
    told = submit(1, 2, spank=sent).user
    assert told.startswith("gandiva: --gandiva-cell: node asked for a job of 2 nodes")
