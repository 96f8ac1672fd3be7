"""A user without a job floods the node's socket: tasks start bound, and ranks of others come in."""

from __future__ import annotations

import statistics
import subprocess

import pytest

from gandiva_slurm.node import door
from tests import patience
from tests.node.harness import HERE, a_planned_job

#: A user whom no task runs as.
NOBODYS_UID = 61009
NOTHING = ["-I", "-c", ""]
LOOP = [str(HERE / "scripts" / "loop.py"), "4"]
#: Connects 1,000 times each half second, asks something and does not wait, until its input ends or for 20 s.
#: Tells how many connections there were, and how many had an answer when 900 others had been made after them.
FLOOD = """
use Socket; use Fcntl; use Time::HiRes qw(time sleep); $| = 1; $SIG{PIPE} = 'IGNORE';
my ($made, $answered, $begin, @open) = (0, 0, time); print "flood\\n"; fcntl(STDIN, F_SETFL, O_NONBLOCK);
while ($made < 40_000) {
    my $end = sysread(STDIN, my $word, 1); last if defined $end && $end == 0;
    for (1 .. 1000) {
        socket(my $link, PF_UNIX, SOCK_STREAM, 0) or die; fcntl($link, F_SETFL, O_NONBLOCK);
        $made++; connect($link, pack_sockaddr_un($ARGV[0])) or next;
        syswrite($link, "BIND 1 1 0 batch 0 - -\\n"); push @open, $link; next if @open < 900;
        my $old = shift @open; $answered++ if sysread($old, my $answer, 100);
    }
    my $wait = $begin + $made / 2000 - time; sleep $wait if $wait > 0;
}
print "$made $answered ", time - $begin, "\\n";
"""


class Flood:
    """The flood while it lasts."""

    def __init__(self, path: str) -> None:
        words = ["setpriv", "--reuid", str(NOBODYS_UID), "--clear-groups", "perl", "-e", FLOOD, path]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "flood\n"

    def end(self) -> tuple[int, int, float]:
        """Stop it; how many connections it made, how many of them were answered, and in what time."""
        told, _ = self._process.communicate("")
        made, answered, took_s = told.split()
        return int(made), int(answered), float(took_s)


@pytest.fixture
def node(make_node):
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,)))
    return node


def test_tasks_are_bound_in_time_beside_a_flood(node):
    flood = Flood(node.settings["socket"])
    try:
        for step in range(23):
            node.start_job(1, NOTHING, step=str(step)).wait()
    finally:
        made, _, flood_s = flood.end()
    print(f"{made} connections in {flood_s:.1f} s")
    binds = [line.split() for line in (node.out / "bind.1").read_text().splitlines()]
    assert [word for _, word in binds] == ["OK"] * 23
    took_s = sorted(float(bind_s) for bind_s, _ in binds)
    print("BIND: " + " ".join(f"{1000 * bind_s:.0f}" for bind_s in took_s) + " ms")
    # A stall of the machine makes one or two of them late; a flood that is in the way makes most late.
    assert statistics.median(took_s) < 0.5 * patience.slowness()
    assert took_s[-3] < 2 * patience.slowness()


def test_a_flood_is_dropped_and_others_ranks_come_in(node):
    """What is beyond a user's bucket costs no more than the accept; others do not notice."""
    flood = Flood(node.settings["socket"])
    try:
        node.plan(a_planned_job(2, "user2", (0,)))
        for job in (1, 2):
            node.start_job(job, LOOP)
        node.wait(lambda: all(node.resident(job).ranks == 1 for job in (1, 2)))
        node.wait(lambda: len(node.events("parked")) >= 6)
    finally:
        made, answered, took_s = flood.end()
    parks = [event["park_ms"] for event in node.events("parked")]
    print(f"{made} connections in {took_s:.1f} s, {answered} answered; parks {parks} ms")
    assert answered <= door.BURST + door.PER_S * took_s
    assert made > 2 * answered + 900
