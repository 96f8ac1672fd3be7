"""container/install-packages.sh with an apt of our own: what it does, what it waits for, its sentences."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "container/install-packages.sh"
TOOLS = [
    "sh",
    "sed",
    "grep",
    "date",
    "mktemp",
    "rm",
    "tail",
    "awk",
    "chmod",
    "sort",
    "paste",
    "cat",
    "df",
    "env",
]
#: apt's own words, as Debian 12 has them.
HELD = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 4711 (apt-get)"
DISK_FULL = "E: You don't have enough free space in /var/cache/apt/archives/."
NO_LISTS = "E: Unable to locate package munge"
REFUSED = (
    "E: Failed to fetch http://mirror/munge.deb  Could not connect to 127.0.0.1:9 - connect (111: refused)"
)
CUT = "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem."


class Machine:
    """A PATH with a few tools and fakes, and the script with its places in a directory of the test's."""

    def __init__(self, base: Path) -> None:
        self.base, self.bin = base, base / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        self.policy, self.calls = base / "policy-rc.d", base / "calls"
        self.calls.touch()
        text = SCRIPT.read_text().replace("/usr/sbin/policy-rc.d", str(self.policy))
        (base / "script.sh").write_text(text.replace("/run/systemd/system", "/nowhere"))
        self.fake("id", "echo 0")
        self.fake("sleep", ":")
        self.fake("dpkg", f'echo "dpkg $*" >>{self.calls}')
        self.fake("dpkg-query", 'echo "strace installed"; echo "munge not-installed"; exit 1')
        self.apt("")

    def fake(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def apt(self, body: str) -> None:
        self.fake("apt-get", f'echo "apt-get $*" >>{self.calls}\n{body}')

    def start(self, wait_s: int = 300) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", str(self.base / "script.sh"), "strace", "munge", "slurmd"],
            env={"PATH": str(self.bin), "TMPDIR": str(self.base), "GANDIVA_APT_WAIT": str(wait_s)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, wait_s: int = 300) -> tuple[int, str, str]:
        process = self.start(wait_s)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_is_missing_is_installed_with_its_services_kept_off_and_the_time_told(machine: Machine) -> None:
    machine.apt(f"cat {machine.policy} >>{machine.calls}")
    code, out, err = machine.run()
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first == "== packages: installing munge slurmd"
    assert second.startswith("   packages: ") and second.endswith(" s")
    calls = machine.calls.read_text()
    assert "apt-get update -qq" in calls
    assert "apt-get install -y -qq --no-install-recommends munge slurmd" in calls
    assert calls.count("exit 101") == 2
    assert not machine.policy.exists()


def test_nothing_is_said_or_done_where_all_are_there(machine: Machine) -> None:
    machine.fake("dpkg-query", 'for p in strace munge slurmd; do echo "$p installed"; done')
    assert machine.run() == (0, "", "")
    assert machine.calls.read_text() == ""


def test_a_policy_of_the_machines_own_stays(machine: Machine) -> None:
    machine.policy.write_text("its own\n")
    assert machine.run()[0] == 0
    assert machine.policy.read_text() == "its own\n"


def test_an_ordinary_user_is_told_what_is_missing_and_how_to_get_it(machine: Machine) -> None:
    machine.fake("id", "echo 1000")
    code, _, err = machine.run()
    assert code == 3
    assert "only root installs Debian packages: munge slurmd\n" in err
    assert "gandiva: next: run 'make setup' as root, or: sudo apt-get install" in err
    assert machine.calls.read_text() == ""


@pytest.mark.parametrize("lacks", ["apt-get", "dpkg-query"])
def test_another_system_than_debian_is_told_what_is_wanted(machine: Machine, lacks: str) -> None:
    (machine.bin / lacks).unlink()
    code, _, err = machine.run()
    assert code == 3
    assert "this is no Debian" in err and "strace munge slurmd" in err
    assert "gandiva: next: install their like" in err


@pytest.mark.parametrize(
    ("words", "what", "then"),
    [
        (NO_LISTS, "apt does not reach its package lists", "check the network"),
        (REFUSED, "apt does not reach its package lists", "check the network"),
        (DISK_FULL, "too little space for them", "make room"),
        ("E: Sub-process /usr/bin/dpkg returned an error code (1)", "apt-get failed", "mend what they name"),
    ],
)
def test_each_failure_of_apt_has_its_sentence(machine: Machine, words: str, what: str, then: str) -> None:
    machine.apt(f'case $1 in install) echo "{words}" >&2; exit 100;; esac')
    code, _, err = machine.run()
    assert code == 1
    assert words in err
    assert f"gandiva: packages: {what}" in err
    assert f"gandiva: next: {then}" in err
    assert not machine.policy.exists()


def test_a_lock_is_waited_for_and_its_holder_named(machine: Machine) -> None:
    tries = machine.base / "tries"
    machine.apt(f'echo >>{tries}; [ "$(grep -c "" {tries})" -gt 3 ] || {{ echo "{HELD}" >&2; exit 100; }}')
    code, out, err = machine.run()
    assert (code, err) == (0, "")
    assert out.count("waiting at most 300 s for apt's lock") == 1
    assert "process 4711 (apt-get)" in out


def test_a_lock_is_waited_for_no_longer_than_its_bound(machine: Machine) -> None:
    machine.apt(f'echo "{HELD}" >&2; exit 100')
    code, _, err = machine.run(wait_s=0)
    assert code == 1
    assert "another process still holds apt's lock after 0 s" in err and "process 4711 (apt-get)" in err
    assert "gandiva: next: let it end" in err


def test_an_interrupted_dpkg_is_finished_first(machine: Machine) -> None:
    tried = machine.base / "tried"
    machine.apt(f'[ "$1" = update ] || [ -e {tried} ] || {{ echo >{tried}; echo "{CUT}" >&2; exit 100; }}')
    code, out, _ = machine.run()
    assert code == 0
    assert "finishing what an interrupted dpkg left" in out
    assert "dpkg --configure -a" in machine.calls.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_the_policy_away_and_a_policy_left_by_a_kill_is_taken_over(
    machine: Machine, number: signal.Signals
) -> None:
    pipe = machine.base / "pipe"
    os.mkfifo(pipe)
    machine.apt(f"echo $$ >{pipe}; read -r _ <{pipe}")
    process = machine.start()
    apt = int(pipe.read_text())
    assert machine.policy.exists()
    process.send_signal(number)
    os.kill(apt, number)
    assert process.wait(timeout=60) == 130
    assert "next: make setup goes on from here" in process.communicate()[1]
    assert not machine.policy.exists()

    machine.policy.write_text("#!/bin/sh\n# gandiva: while its packages are installed\nexit 101\n")
    machine.apt("")
    assert machine.run()[0] == 0
    assert not machine.policy.exists()
