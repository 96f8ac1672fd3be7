"""What a job asks for that is not submitted yet: sbatch's words, and `gandiva when --new`."""

from __future__ import annotations

import json
import shlex

import pytest

from gandiva_slurm.cli.newcomer import limit_s, newcomer_of
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.model.wish import NEW_ID, Wish, parse_new
from gandiva_slurm.sim.forecast.lengths import Lengths
from gandiva_slurm.sim.forecast.ranges import Present
from gandiva_slurm.sim.forecast.ranges import forecast as make
from tests.builders import a_job
from tests.unit.test_forward import NOW_NS, copy, engine


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ("", "gpus=1,nodes=1"),
        ("--gandiva --gres=gpu:v100:2 -t 1:00:00", "gpus=2,nodes=1,type=v100,limit=3600"),
        ("--gres gpu:2 --mem=16G -A lab", "gpus=2,nodes=1"),
        ("--gres=gres:gpu", "gpus=1,nodes=1"),
        ("--gpus=k80:4", "gpus=4,nodes=1,type=k80"),
        ("-N2 --gpus-per-node=2 -t 90", "gpus=4,nodes=2,limit=5400"),
        ("-N 2 --gpus-per-task=1 --ntasks-per-node=3", "gpus=6,nodes=2"),
        ("-n 4 --gpus-per-task=1", "gpus=4,nodes=1"),
        ("--nodes=1-2 --gandiva-elastic=1-8 --gres=gpu:4", "gpus=4,nodes=1"),
    ],
)
def test_words_of_sbatch(words: str, want: str) -> None:
    assert newcomer_of(words.split()) == want
    parse_new(want)


def test_lines_of_the_script_count_before_the_command_line(tmp_path) -> None:  # type: ignore[no-untyped-def]
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gres=gpu:4 -t 10 # a comment\n\n# more\nsrun x\n#SBATCH -t 99\n")
    assert newcomer_of([], str(script)) == "gpus=4,nodes=1,limit=600"
    assert newcomer_of(["--gres=gpu:1"], str(script)) == "gpus=1,nodes=1,limit=600"
    assert newcomer_of([], str(tmp_path / "none")) == newcomer_of([], "/proc/self/mem") == "gpus=1,nodes=1"
    script.write_text("#SBATCH --comment='not closed\n")
    assert newcomer_of([], str(script)) == "gpus=1,nodes=1"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("1:30", 90), ("1:00:00", 3600), ("2-0", 172_800), ("1-2:30", 95_400), ("0-0:0:5", 5)],
)
def test_limits(text: str, seconds: int) -> None:
    assert limit_s(text) == seconds


@pytest.mark.parametrize("words", ["-t soon", "--gres=gpu:many:x", "-N 2-4", "-N '２'", "--time=1:2:3:4"])
def test_what_cannot_be_read_is_an_error(words: str) -> None:
    with pytest.raises(UsageError):
        parse_new(newcomer_of(shlex.split(words)))


@pytest.mark.parametrize(
    "text", ["", "gpus=0", "gpus=x", "tickets=5", "gpus=3,nodes=2", "type=", "type=a b", "limit=999999999"]
)
def test_new_is_read_or_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid --new"):
        parse_new(text)


def test_the_engine_run_forward_says_when_it_would_start() -> None:
    """On a cluster that one job has for a while; a larger one than any node never starts, and why is told."""

    def foretold(**asked: object) -> object:
        told = {"gpus": 1, "nodes": 1, "type": "", "limit": 3600, "user": "user2", "uid": 0}
        wish = Wish(NEW_ID, "new", json.dumps(told | {"partition": "gandiva"} | asked))
        found = make(Present(lambda: copy(busy), NOW_NS, Lengths(), wish=wish), 1, draws=2)
        return next(row for row in found.jobs if row.job_id == NEW_ID)

    busy = engine(a_job(1), gpus=2)
    fits, wide = foretold(), foretold(gpus=64)
    assert fits.start is not None and fits.start.mid_s is not None and not fits.why  # type: ignore[attr-defined]
    assert wide.start is None and "64" in wide.why  # type: ignore[attr-defined]
