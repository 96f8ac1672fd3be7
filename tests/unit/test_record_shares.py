"""What tests make of a node's log: the part a job had in its last whole turns."""

import math

from tests.records import share_of_turns


def a_log(*turns):
    """The events of turns on one GPU, each (job, length in s), one after the other."""
    now_ns, events = 0, []
    for job, length_s in turns:
        events.append({"event": "grant", "job": job, "restart": 0, "gpus": [0], "mono_ns": now_ns})
        now_ns += length_s * 10**9
        events.append({"event": "release", "job": job, "restart": 0, "gpus": [0], "mono_ns": now_ns})
    return events


def test_only_the_last_whole_turns_count():
    start_up, settled = [(1, 90), (2, 10)], [(1, 6), (2, 4)] * 5
    assert share_of_turns(a_log(*start_up, *settled), 1, (2,), turns=4) == 0.6
    assert share_of_turns(a_log(*start_up, *settled, (1, 50)), 1, (2,), turns=5) == 0.6, "not whole yet"


def test_there_is_no_part_before_there_were_so_many_turns():
    assert math.isnan(share_of_turns(a_log(*[(1, 5), (2, 5)] * 4), 1, (2,), turns=4))


def test_a_pack_shares_what_both_hold_and_others_do_not_count():
    pack = [
        {"event": "grant", "job": 1, "restart": 0, "gpus": [0], "mono_ns": 0},
        {"event": "grant", "job": 2, "restart": 0, "gpus": [0], "mono_ns": 0},
        {"event": "packed", "job": 1, "mate": 2, "mono_ns": 0},
        {"event": "release", "job": 1, "restart": 0, "mono_ns": 4 * 10**9},
        {"event": "release", "job": 2, "restart": 0, "mono_ns": 4 * 10**9},
    ]
    later = [dict(event, mono_ns=event["mono_ns"] + 4 * 10**9) for event in a_log((3, 2), (9, 5), (3, 1))]
    again = [dict(event, mono_ns=event["mono_ns"] + 12 * 10**9) for event in pack]
    last = [dict(event, mono_ns=event["mono_ns"] + 16 * 10**9) for event in a_log((3, 1), (3, 1))]
    events = pack + later + again + last
    assert share_of_turns(events, 3, (1, 2), turns=2) == 2 / 6, "4 s of two are 4, not 8; job 9 is nobody"
