"""Lines on the node's socket: what is understood, and what each wrong one is answered."""

import json

import pytest

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.hello import parse_bind, parse_hello, parse_object

HELLO = {"hello": 1, "rank": 0, "world": 2, "master": "h:1", "backend": "gloo", "torch": "2.13.0", "kind": 1}


def test_a_bind_line():
    bind = parse_bind(b"BIND 1 77 2 batch 0 7,3,3 -\n")
    assert (bind.key, bind.step, bind.task) == (JobKey(77, 2), "batch", 0)
    assert (bind.job_slots, bind.step_slots) == ((3, 7), ())
    assert not bind.is_numbered_step
    assert parse_bind(b"BIND 1 77 0 4 1 - 3\n").is_numbered_step


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"BIND 3 77 0 batch 0 - -\n", "version 1"),
        (b"BIND 1 77 0 batch 0 -\n", "version 1"),
        (b"BIND 1 x 0 batch 0 - -\n", "no number"),
        (b"BIND 1 77 -1 batch 0 - -\n", "no number"),
        (b"BIND 1 99999999999 0 batch 0 - -\n", "no number"),
        (b"BIND 1 77 0 batch 99999999999 - -\n", "no number"),
        (b"BIND 1 77 0 batch -1 - -\n", "no number"),
        (b"BIND 1 77 0 else 0 - -\n", "step 'else'"),
        (b"BIND 1 77 0 batch 0 1,,2 -\n", "no number"),
        (b"BIND \xff\n", "version 1"),
    ],
)
def test_wrong_bind_lines(line, why):
    with pytest.raises(PeerError, match=why):
        parse_bind(line)


def test_a_hello():
    hello = parse_hello(json.dumps(HELLO | {"job": 1, "pid": 5, "unknown": []}).encode())
    assert (hello.rank, hello.world, hello.master, hello.kind) == (0, 2, "h:1", 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hello": 2}, "version 1"),
        ({"rank": 2}, "impossible"),
        ({"rank": -1}, "impossible"),
        ({"world": 1 << 20}, "impossible"),
        ({"world": True}, "no number"),
        ({"rank": "0"}, "no number"),
        ({"kind": None}, "no number"),
        ({"kind": 1 << 64}, "no number of 32 bits"),
        ({"master": 5}, "no text"),
    ],
)
def test_wrong_hellos(change, why):
    with pytest.raises(PeerError, match=why):
        parse_hello(json.dumps(HELLO | change).encode())


@pytest.mark.parametrize("line", [b"", b"null", b"[1]", b"\xff\xfe", b"{" * 4000, b"[" * 4000])
def test_what_is_no_object(line):
    with pytest.raises(PeerError):
        parse_object(line)


def test_text_of_users_is_cut_and_made_printable():
    hello = parse_hello(json.dumps(HELLO | {"master": "a\x1b\n" + "b" * 999}).encode())
    assert hello.master.startswith("a  bbb") and len(hello.master) == 256
