"""The job's own --signal, as sbatch was given it: the SPANK plugin hands it on to job_submit.lua."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.spank_runner import MISSING, Outcome, build, run

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SIGNAL = "GANDIVA_SIGNAL"
Told = Callable[..., str | None]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("spank"))


@pytest.fixture
def told(built: tuple[Path, Path]) -> Told:
    """told(*words, signal=None): what a job's command line and SBATCH_SIGNAL hand on."""

    def call(*words: str, signal: str | None = None) -> str | None:
        environ = {"SBATCH_SIGNAL": signal} if signal is not None else None
        outcome: Outcome = run(built, "allocator", "opt:gandiva", *words, environ=environ)
        assert (outcome.errors, outcome.rc["init_post_opt"]) == ([], 0)
        return outcome.control.get(SIGNAL)

    return call


@pytest.mark.parametrize("words", [
    ["--signal=B:USR1@90"], ["--signal", "B:USR1@90"], ["--sig=B:USR1@90"], ["--signa", "B:USR1@90"],
    ["--signal=USR2@10", "-p", "gpu", "--signal", "B:USR1@90"],
    ["--signal=B:USR1@90", "script", "--signal=TERM"],
])
def test_as_getopt_reads_it_and_nothing_behind_the_script(told: Told, words: list[str]) -> None:
    assert told(*words) == "B:USR1@90"


@pytest.mark.parametrize("words", [
    [], ["script", "--signal=USR1"], ["--signals=USR1"], ["--si=USR1"], ["-signal=USR1"], ["signal=USR1"],
    ["--signal"], ["--signal="], ["--comment=--signal=USR1"],
])
def test_no_signal_is_none(told: Told, words: list[str]) -> None:
    assert not told(*words)


@pytest.mark.parametrize("value", ["USR1 ", "USR1\n", "A" * 32, "US$1", "USR1;true", "\x1b[2J", "USR1é"])
def test_a_value_that_is_no_signal_is_left_to_sbatch(told: Told, value: str) -> None:
    assert told(f"--signal={value}") is None
    assert told(signal=value) is None


def test_the_environment_s_counts_less_than_the_command_line_s(told: Told) -> None:
    assert told(signal="USR2@30") == "USR2@30"
    assert told("--signal=B:USR1@90", signal="USR2@30") == "B:USR1@90"


def test_it_goes_to_the_filter_alone_which_knows_whose_the_partition_is(built: tuple[Path, Path]) -> None:
    outcome = run(built, "allocator", "--signal=USR1")
    assert outcome.control == {SIGNAL: "USR1"} and outcome.mine == {}


def test_a_job_submitted_from_inside_one_does_not_inherit_it(built: tuple[Path, Path]) -> None:
    inherited = {f"SLURM_SPANK_{SIGNAL}": "B:USR1@90", "SLURM_JOB_ID": "5"}
    outcome = run(built, "allocator", "opt:gandiva", environ=inherited)
    assert SIGNAL not in outcome.control and f"SLURM_SPANK_{SIGNAL}" not in outcome.mine
