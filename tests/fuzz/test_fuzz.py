"""The short form of `make fuzz`: fixed seeds, some thousand cases; and every case that was found once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.model.errors import GandivaError
from tests.fuzz import configs, controller, flags, messages, pages, sockets
from tests.fuzz.kit import SEEDS, Budget, Target, fuzz
from tests.node.harness import NodeHarness

CASES = {"told": 60, "question": 800, "planned": 500, "ordered": 500, "http": 800, "config": 400, "page": 310}
MOST = 2_000
MESSAGES = ("line", "socket", "plan", "report", "answer", "order", "planned", "ordered", "http")
KEPT = sorted(path.name for path in SEEDS.glob("*.hex"))


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    directory = tmp_path_factory.mktemp("fuzz")
    with messages.targets(directory) as some, pages.targets() as page, configs.targets() as config:
        yield {target.name: target for target in (*some, *page, *config)}


@pytest.mark.parametrize("name", [*MESSAGES, "page", "config"])
def test_what_is_drawn_is_taken_or_refused_in_words(targets: dict[str, Target], name: str) -> None:
    tally = fuzz(targets[name], random.Random(1), Budget(CASES.get(name, MOST)))
    assert tally.findings == {}, tally.told()
    assert tally.cases == CASES.get(name, MOST) and tally.refused < tally.cases


def test_a_controller_answers_what_is_drawn(tmp_path: Path) -> None:
    with controller.targets(tmp_path) as asked:
        for target in asked:
            tally = fuzz(target, random.Random(1), Budget(CASES[target.name]))
            assert tally.findings == {}, tally.told()
            assert 0 < tally.refused < tally.cases


def test_a_real_gandivad_lives_through_what_is_drawn(make_node: Callable[..., NodeHarness]) -> None:
    tally = sockets.fuzz_node(make_node(gpus=2), random.Random(1), Budget(300))
    assert tally.findings == {}, tally.told()


@pytest.mark.skipif(bool(flags.CANNOT), reason=flags.CANNOT)
def test_plugin_and_script_say_the_same_of_hostile_flags() -> None:
    tally = flags.fuzz_flags(random.Random(1), Budget(3_000))
    assert tally.findings == {}, tally.told()
    assert tally.cases == 3_000 and 0 < tally.refused < tally.cases


@pytest.mark.parametrize("name", KEPT)
def test_what_was_found_once_is_refused_in_words_now(targets: dict[str, Target], name: str) -> None:
    case = bytes.fromhex((SEEDS / name).read_text())
    with pytest.raises(GandivaError):
        targets[name.partition(".")[0]].call(case)
