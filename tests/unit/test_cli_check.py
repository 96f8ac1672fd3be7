"""`gandiva check`: what it asks, and how it tells what it found."""

import json

import pytest

from gandiva_slurm.cli import check, main
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.slurm.backend import Choice
from gandiva_slurm.slurm.check import Survey
from gandiva_slurm.slurm.finding import warning

WELL = {"slurm_error": "", "state_error": ""}
NODE = {"node": "n1", "state": "up", "reason": ""}


@pytest.fixture
def choice():
    return None


@pytest.fixture
def run(monkeypatch, capsys, choice):
    async def run_checks(config):
        return Survey((warning("slurm.conf", "is odd", "set it"),), choice)

    monkeypatch.setattr("gandiva_slurm.slurm.check.run_checks", run_checks)
    monkeypatch.setattr("gandiva_slurm.config.load_config", lambda path: None)
    monkeypatch.setattr("gandiva_slurm.config.outdated", lambda path: [])

    def _run(*flags, ping=WELL, node=NODE, error=None):
        def answer(config, ask, args):
            if error:
                raise error
            return {"ping": ping, "nodes": [node]}[ask]

        monkeypatch.setattr(check, "query", answer)
        with pytest.raises(SystemExit) as end:
            main.main(["check", *flags])
        return end.value.code, capsys.readouterr().out.splitlines()

    return _run


def test_warnings_alone_are_no_failure(run):
    assert run() == (0, ["warning: slurm.conf: is odd; set it", "0 errors, 1 warnings"])


def test_a_controller_that_does_not_answer_is_an_error_and_comes_first(run):
    status, lines = run(error=PeerError("gandivactld does not answer at ctl:7321"))
    assert status == 1
    assert lines[0].startswith("error: gandivactld: gandivactld does not answer at ctl:7321; start it")
    assert lines[-1] == "1 errors, 1 warnings"


@pytest.mark.parametrize(
    ("told", "where"),
    [
        ({"node": {**NODE, "state": "silent", "reason": "no answer"}}, "error: gandivad on n1: no answer; "),
        ({"ping": {**WELL, "slurm_error": "away"}}, "error: gandivactld: away; "),
        ({"ping": {**WELL, "state_error": "disk full"}}, "error: gandivactld: disk full; "),
        ({"ping": {**WELL, "policy_errors": ["it is odd"]}}, "error: gandivactld: it is odd; mend what "),
    ],
)
def test_what_the_controller_knows_to_be_wrong_is_told(run, told, where):
    status, lines = run(**told)
    assert status == 1
    assert lines[0].startswith(where)


def test_what_gandiva_yaml_has_of_former_releases_is_a_warning(run, monkeypatch):
    monkeypatch.setattr("gandiva_slurm.config.outdated", lambda path: ["etc:3: moves.at_once has no effect"])
    status, lines = run()
    assert status == 0
    assert lines[1].startswith("warning: gandiva.yaml: etc:3: moves.at_once has no effect; ")


@pytest.mark.parametrize("choice", [Choice("pyslurm", "26.05.5", "26.05.5", "25.11.2")])
def test_the_back_end_and_the_versions_are_named(run, choice):
    assert run()[1][0] == "Slurm 26.05.5, through pyslurm 25.11.2"
    told = json.loads("\n".join(run("--json")[1]))["slurm"]
    want = {"back_end": "pyslurm", "slurm": "26.05.5", "commands": "26.05.5", "pyslurm": "25.11.2", "why": ""}
    assert told == want
