"""The daemon as a process: options, users, signals, a kill, and questions over real munge."""

import signal
import time

import pytest

from gandiva_slurm.cli.client import query
from gandiva_slurm.controller.main import main
from gandiva_slurm.model.errors import GandivaError
from tests.controller.process import ME, until


def test_configuration_without_fault_passes_the_test(conf, capsys):
    file = conf()
    assert main(["-t", "-f", file]) == 0
    assert capsys.readouterr().out == f"{file}: no fault found\n"


def test_configuration_with_faults_names_each_and_exits_2(conf, capsys):
    assert main(["-t", "-f", conf(cycle=3, cycle_s=0)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("gandivactld: error: ") for line in lines)
    assert any("controller.cycle: unknown key; allowed: host, port" in line for line in lines)
    assert any("controller.cycle_s" in line and "0.1 .. 60" in line for line in lines)


def test_other_user_than_slurm_user_is_refused(conf, capsys):
    other = "nobody" if ME != "nobody" else "root"
    assert main(["-D", "-f", conf(user=other)]) == 2
    assert f"run as {other} (controller.slurm_user)" in capsys.readouterr().err


def test_without_slurm_it_runs_answers_and_ends_clean(conf, start, munged):
    daemon = start(conf(munged))
    answer = daemon.ask()
    assert answer["cluster"] == "mini" and answer["errors"] == 0
    assert until(lambda: daemon.ask()["slurm_error"], lambda: daemon.text)
    assert daemon.ask("queue") == [] and daemon.ask("nodes") == []
    assert daemon.ended(signal.SIGTERM) == 0
    assert "gandivactld ended" in daemon.text and "Traceback" not in daemon.text


def test_second_controller_on_one_state_dir_is_refused(conf, start, munged, capsys):
    file = conf(munged)
    start(file).ask()
    assert main(["-D", "-f", file]) == 2
    assert "another gandivactld uses this state_dir" in capsys.readouterr().err


def test_kill_leaves_a_state_to_start_from(conf, start, munged):
    first = start(conf(munged))
    first.ask()
    first.ended(signal.SIGKILL)
    second = start(first.conf)
    assert second.ask()["errors"] == 0


def test_hangup_reloads_what_may_change_and_nothing_else(conf, start, munged):
    daemon = start(conf(munged))
    daemon.ask()
    conf(munged, cycle_s=0.5)
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "configuration reloaded" in daemon.text, lambda: daemon.text)
    conf(munged, cycle_s=-1)
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "configuration not reloaded" in daemon.text, lambda: daemon.text)
    conf(munged, state_dir="/elsewhere")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "controller.state_dir can only change at a restart" in daemon.text, lambda: daemon.text)
    assert daemon.ask()["errors"] == 0


def test_log_lines_have_slurms_form(conf, start, munged):
    daemon = start(conf(munged))
    daemon.ask()
    line = daemon.text.splitlines()[0]
    stamp, _, text = line.partition("] ")
    time.strptime(stamp[1:20], "%Y-%m-%dT%H:%M:%S")
    assert stamp[0] == "[" and len(stamp) == len("[2026-11-20T15:00:00.123")
    assert text.startswith("gandivactld 0.")


def test_wrong_question_is_refused_over_the_wire(conf, start, munged):
    daemon = start(conf(munged))
    daemon.ask()
    with pytest.raises(GandivaError, match="unknown question"):
        query(daemon.conf, "quux", {})
