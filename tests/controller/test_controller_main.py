"""The daemon as a process: options, users, signals, a kill, and questions over real munge."""

import os
import pwd
import signal
import subprocess
import sys
import time

import pytest

from gandiva_slurm.cli.client import query
from gandiva_slurm.controller.main import main
from gandiva_slurm.model.errors import GandivaError, PeerError
from tests import patience
from tests.munged import running_munged
from tests.ports import free_port

DEADLINE_S = 60
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def munged(tmp_path_factory):
    with running_munged(tmp_path_factory.mktemp("munge")) as path:
        yield path


@pytest.fixture
def conf(tmp_path):
    """Write gandiva.yaml; keyword arguments are lines of `controller:`."""
    port = free_port()

    def write(munge: str = "", user: str = ME, **controller: object) -> str:
        part = {"host": "127.0.0.1", "port": port, "state_dir": tmp_path / "state", "slurm_user": user}
        part.update(controller)
        lines = "".join(f"  {key}: {value}\n" for key, value in part.items())
        text = f"cluster: mini\npartitions: [gandiva]\nmunge_socket: '{munge}'\ncontroller:\n{lines}"
        (tmp_path / "gandiva.yaml").write_text(text)
        return str(tmp_path / "gandiva.yaml")

    return write


class Daemon:
    """A gandivactld of a test; Slurm is not reachable for it."""

    def __init__(self, conf: str, log) -> None:
        self.conf, self.log = conf, log
        command = [sys.executable, "-m", "gandiva_slurm.controller.main", "-D", "-f", conf]
        env = {**os.environ, "PATH": str(log.parent / "bin")}
        self.process = subprocess.Popen(command, stderr=open(log, "ab"), env=env)  # noqa: SIM115

    def ask(self, name: str = "ping", **args: object):
        """Ask until it answers."""
        return until(lambda: self._ask(name, args), lambda: self.text)[0]

    def ended(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def _ask(self, name, args):
        try:
            return [query(self.conf, name, args)]
        except PeerError:
            assert self.process.poll() is None, self.text
            return None


def until(condition, told):
    end_s = patience.deadline(DEADLINE_S)
    while not (value := condition()):
        assert time.monotonic() < end_s, told()
        time.sleep(0.02)
    return value


@pytest.fixture
def start(tmp_path):
    daemons = []
    (tmp_path / "bin").mkdir()
    for command in ("squeue", "sinfo", "scontrol", "sacctmgr"):
        script = tmp_path / "bin" / command
        script.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
        script.chmod(0o755)

    def _start(conf: str) -> Daemon:
        daemons.append(Daemon(conf, tmp_path / "log"))
        return daemons[-1]

    yield _start
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.ended(signal.SIGKILL)


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
