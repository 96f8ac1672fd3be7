"""gandivad's command line: what it says before it serves."""

import errno
import os
import pwd
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import guard, lock, procs
from gandiva_slurm.node.main import main
from gandiva_slurm.node.store import StateFile

CONF = """
cluster: test
partitions: [gandiva]
controller: {{host: 127.0.0.1, slurm_user: {user}}}
node: {{state_dir: "{state}/%n", socket: "{state}/%n.sock", addresses: {{n1: "127.0.0.1:7401"}}}}
"""


@pytest.fixture
def conf(tmp_path):
    file = tmp_path / "gandiva.yaml"
    file.write_text(CONF.format(state=tmp_path, user=pwd.getpwuid(0).pw_name))
    return file


def run(*argv):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in argv])
    return ended.value.code


def test_a_good_configuration_is_told_with_what_it_means_here(conf, capsys):
    assert run("-t", "-f", conf, "--node", "n1") == 0
    assert "node n1, port 7401" in capsys.readouterr().out


def test_a_wrong_key_ends_with_2_and_names_it(conf, capsys):
    conf.write_text(conf.read_text() + "quantumm_s: 3\n")
    assert run("-t", "-f", conf) == 2
    assert "quantumm_s: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [(), ("--thaw",)])
def test_a_directory_that_is_not_its_own_ends_with_2_and_a_sentence(conf, capsys, monkeypatch, flags):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(lock.os, "open", refuse)
    assert run(*flags, "-f", conf, "--node", "n1") == 2
    said = capsys.readouterr().err
    assert said.startswith("gandivad: error: ") and "n1/lock: Permission denied, as uid" in said


def test_the_node_is_slurmds_if_it_says_so(conf, capsys, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    assert run("-t", "-f", conf) == 0
    assert "node n7, port 7322" in capsys.readouterr().out


def test_thaw_continues_what_the_state_file_names_as_stopped(conf, tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        proc = procs.read_proc(process.pid).id
        procs.send(proc, guard.signal.SIGSTOP)
        row = {"key": str(JobKey(7, 0)), "stopped": [proc], "is_frozen": False}
        (tmp_path / "n1").mkdir()
        StateFile(tmp_path / "n1" / "state.json").save({"node": "n1", "jobs": [row]})
        assert run("--thaw", "-f", conf, "--node", "n1") == 0
        process.communicate(b"\n", timeout=10)
        assert process.returncode == 0


def test_thaw_without_a_state_has_nothing_to_do(conf):
    assert run("--thaw", "-f", conf, "--node", "n1") == 0


class Times:
    """Time that passes by waiting, and who has the lock then: (from, pid) one after the other."""

    def __init__(self, holders):
        self.now, self.holders = 0.0, holders

    def sleep(self, seconds):
        assert self.now < 1000, "nobody comes, and nothing is done"
        self.now += seconds

    def holder(self, state_dir):
        return next((pid for since, pid in reversed(self.holders) if since <= self.now), 0)


#: A gandivad that fails at its start, a quarter of a second after it began, and is started again each second.
FAILING = [(n / 8, 100 + n if n % 8 in (0, 1) else 0) for n in range(8 * 60)]


@pytest.mark.parametrize(
    ("holders", "has_come", "until"),
    [
        ([], False, 30),
        ([(1, 7)], True, 3.25),
        ([(1, 7), (2, 0)], False, 30),
        ([(29, 7)], True, 31.25),
        (FAILING, False, 31),
        ([*FAILING[:80], (10, 9)], True, 12.25),
    ],
)
def test_the_guard_leaves_it_to_one_that_stays_alone(monkeypatch, tmp_path, holders, has_come, until):
    times = Times(holders)
    monkeypatch.setattr(guard, "lock", times)
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: times.now, sleep=times.sleep))
    assert guard.another_has_come(tmp_path, 30.0) == has_come
    assert until - 1 <= times.now <= until


def test_it_takes_all_the_descriptors_it_may_have(conf):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # More than the files that tests before this one have left open.
    few = max(map(int, os.listdir("/proc/self/fd"))) + 100
    assert few < before[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
        assert run("--thaw", "-f", conf, "--node", "n1") == 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
