"""sbatch --test-only: what `gandiva when` says is shown, and nothing where it says nothing in time."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.spank_runner import MISSING, Outcome, build, run

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

Asked = Callable[..., Outcome]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("spank"))


@pytest.fixture
def asked(built: tuple[Path, Path], tmp_path: Path) -> Asked:
    """asked(code, *words): sbatch with these words, where `gandiva` is a shell script of this code."""

    def call(code: str, *words: str, flag: str = "opt:gandiva") -> Outcome:
        program = tmp_path / "gandiva"
        program.write_text(f"#!/bin/sh\n{code}\n")
        program.chmod(0o755)
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "OUT": str(tmp_path / "out")}
        return run(built, "allocator", *filter(None, [flag]), *words, environ=environ)

    return call


def test_it_is_asked_with_sbatchs_words_and_its_lines_are_shown(asked: Asked, tmp_path: Path) -> None:
    code = 'for word; do echo "$word"; done >$OUT; echo "submitted now: start soon"; echo "\033[2Jend"'
    outcome = asked(code, "--gres=gpu:2", "--test-only", "script", "behind")
    assert outcome.infos == ["gandiva: submitted now: start soon", "gandiva: ?[2Jend"]
    words = (tmp_path / "out").read_text().split()
    assert words[:4] == ["when", "--test-only", "script", "--"]
    assert words[-2:] == ["--gres=gpu:2", "--test-only"] and "behind" not in words
    assert outcome.rc["init_post_opt"] == 0 and outcome.errors == []


@pytest.mark.parametrize(
    ("words", "flag"),
    [(["script", "--test-only"], "opt:gandiva"), ([], "opt:gandiva"), (["--test-only"], "")],
)
def test_without_test_only_or_gandiva_nothing_is_started(
    asked: Asked, tmp_path: Path, words: list[str], flag: str
) -> None:
    assert asked("echo here; echo here >$OUT", *words, flag=flag).infos == []
    assert not (tmp_path / "out").exists()


LATE = "gandiva: no forecast within a second; `gandiva when --new gpus=N` takes the time it needs"


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("echo wrong; exit 1", []),
        ("kill -9 $$", []),
        ("exec sleep 60", [LATE]),
        ("echo begun; exec sleep 60", [LATE]),
        ("echo said; exec sleep 60 >&-", [LATE]),
        ("while :; do echo more; sleep 0.01; done", [LATE]),
        ("exec yes", []),
    ],
)
def test_without_an_answer_in_time_that_is_said_and_no_more(asked: Asked, code: str, want: list[str]) -> None:
    for _ in range(3):  # a busy machine may not have started the shell within the second
        began_s = time.monotonic()
        outcome = asked(code, "--test-only", "script")
        if outcome.infos != [LATE] or want == [LATE]:
            break
    assert outcome.infos == want and outcome.errors == [] and outcome.rc["init_post_opt"] == 0
    assert time.monotonic() - began_s < 15


def test_where_there_is_no_gandiva_nothing_is_said(built: tuple[Path, Path]) -> None:
    outcome = run(built, "allocator", "opt:gandiva", "--test-only", environ={"PATH": os.devnull})
    assert outcome.infos == outcome.errors == []


def test_a_command_line_without_end_is_not_asked_about(asked: Asked) -> None:
    assert asked("echo here", *["--x"] * 200, "--test-only").infos == []
