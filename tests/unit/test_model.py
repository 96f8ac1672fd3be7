"""model: the state table and the catalogue of reasons are whole."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest

import gandiva_slurm
from gandiva_slurm.model import job as states
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.reason import CATALOGUE, because, of_node

PACKAGE = Path(gandiva_slurm.__file__).parent


def test_every_state_leads_only_to_states_of_the_table() -> None:
    for row in states.STATES.values():
        assert set(row.then) <= states.STATES.keys()
        assert row.name not in row.then
        assert row.invariant and row.slurm_shows and row.survives


def test_every_state_can_be_reached_and_can_end() -> None:
    reached = {states.HELD}
    while grown := {then for name in reached for then in states.STATES[name].then} - reached:
        reached |= grown
    assert reached == states.STATES.keys()
    assert all(states.ENDED in row.then for row in states.STATES.values() if row.name != states.ENDED)


def test_reports_may_skip_what_happened_between_them() -> None:
    for was in states.SLICED:
        for to in states.SLICED:
            if was != to:
                states.check_move("7.0", was, to, "")


def test_wrong_move_says_what_is_allowed_and_tells_the_story() -> None:
    with pytest.raises(states.IllegalTransition) as caught:
        states.check_move("7.1", states.HELD, states.SUSPENDED, "  once upon a time")
    text = str(caught.value)
    assert "job 7.1: HELD does not lead to SUSPENDED, only to STARTING or RUNNING or ENDED" in text
    assert text.endswith("once upon a time")


def test_reason_has_its_facts_filled_in() -> None:
    reason = because("TooManyGpus", "n1 has 4", gpus=9, most=4)
    assert reason.text == "asks for 9 GPUs on a node, the largest that may take it has 4"
    assert reason.next == "cancel it and ask for 4 or fewer"
    assert reason.evidence == ("n1 has 4",)


def test_reason_without_its_facts_is_a_bug_not_a_sentence() -> None:
    with pytest.raises(KeyError):
        because("TooManyGpus", gpus=9)
    with pytest.raises(KeyError):
        because("NoSuchCode")


def test_nodes_words_are_shown_known_or_not() -> None:
    assert of_node("Parked", "").text == CATALOGUE["Parked"][0]
    assert of_node("NoClient", "no boundary in 120 s").evidence == ("no boundary in 120 s",)
    assert "HoldsBreath" in of_node("HoldsBreath", "since noon").text
    assert of_node("NodeDown", "").text


def test_sentences_are_sentences() -> None:
    for code, (text, then) in CATALOGUE.items():
        assert code[0].isupper() and code.isalnum()
        assert text and not text.endswith(".")
        for fact in [fact for _, fact, _, _ in string.Formatter().parse(text + then) if fact]:
            assert fact.isidentifier()


def test_engine_and_node_use_codes_of_the_catalogue() -> None:
    """Every literal `because("Code")` in the package, with the facts its wording needs."""
    used = set()
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    for path, source in texts.items():
        for node in ast.walk(ast.parse(source)) if "because(" in source else ():
            is_call = (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "because"
            )
            if is_call and isinstance(node.args[0], ast.Constant):  # type: ignore[attr-defined]
                code = node.args[0].value  # type: ignore[attr-defined]
                used.add(code)
                text, then = CATALOGUE[code]
                facts = {fact for _, fact, _, _ in string.Formatter().parse(text + then) if fact}
                given = {item.arg for item in node.keywords}  # type: ignore[attr-defined]
                assert None in given or facts <= given, f"{path.name}: {code} needs {facts}, has {given}"
    assert {"Starting", "NoFreeSlots", "Stale"} <= used


def test_job_key_reads_what_it_writes() -> None:
    assert JobKey.parse(str(JobKey(12, 3))) == JobKey(12, 3)
    with pytest.raises(ValueError):
        JobKey.parse("12")
