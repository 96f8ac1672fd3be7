"""The simulated card: built at first use, one of its own for each test, and a place to run on it."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.device import backend, build, card
from tests.skips import NO_CARD

MIB = 1 << 20
#: What a test's card has, and what each process's context takes of it.
TOTAL, CONTEXT = 128 * MIB, 8 * MIB


@pytest.fixture(scope="session")
def library() -> Path:
    """The library of the simulated card."""
    try:
        return build.library()
    except build.CannotBuildError as err:
        pytest.skip(f"{NO_CARD}: {err}")


@pytest.fixture
def card_path(tmp_path: Path) -> Path:
    """A card that nobody uses yet."""
    return card.make(tmp_path / "card", TOTAL, CONTEXT)


@pytest.fixture
def card_env(library: Path, card_path: Path) -> dict[str, str]:
    """The environment of a process on that card."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
    return kept | backend.environment(library, card_path)


@pytest.fixture
def on_card(card_env: dict[str, str]) -> Callable[[Callable[[Any], Any]], Any]:
    """Run a function of torch.card in a process of its own; return what it returns.

    The process is forked, which spares the import of PyTorch; autograd does not work there.
    """

    def run(check: Callable[[Any], Any]) -> Any:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            _answer(check, card_env, write_end)
        os.close(write_end)
        with open(read_end, encoding="utf-8") as answers:
            said = json.loads(answers.read() or "null")
        os.waitpid(child, 0)
        assert said is not None, "the process on the card ended without a word"
        assert "error" not in said, said["error"]
        return said["value"]

    return run


def _answer(check: Callable[[Any], Any], env: dict[str, str], write_end: int) -> None:
    """In the child: run the check, say what it found, and end."""
    try:
        os.environ.update(env)
        torch.set_num_threads(1)
        said = {"value": check(backend.install())}
    except BaseException:
        said = {"error": traceback.format_exc()}
    os.write(write_end, json.dumps(said).encode())
    os._exit(0)
