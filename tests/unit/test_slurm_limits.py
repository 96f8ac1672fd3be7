"""slurm.limits: partitions' MaxTime and reservations out of scontrol's lines, as 22.05.8 prints them."""

from __future__ import annotations

import time

import pytest

from gandiva_slurm.model.bounds import Reservation
from gandiva_slurm.slurm.limits import duration_s, read_max_times, read_reservations

PARTITIONS = """\
PartitionName=plain AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED Nodes=p1
PartitionName=gandiva AllowGroups=ALL DefaultTime=01:00:00 MaxTime=7-00:00:00 MinNodes=0 Nodes=n[1-2] State=UP
"""
MAINT = (
    "ReservationName=maint StartTime=2026-11-21T01:06:35 EndTime=2026-11-21T01:16:35 Duration=00:10:00 "
    "Nodes=n[1-2] NodeCnt=2 CoreCnt=32 PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES "
    "TRES=cpu=32 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE MaxStartDelay=(null)"
)


def unix_s(text: str) -> int:
    return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("01:00:00", 3600),
        ("7-00:00:00", 7 * 86400),
        ("1-12", 36 * 3600),
        ("1-12:30", 36 * 3600 + 1800),
        ("30", 1800),
        ("30:15", 1815),
        ("00:00:20", 20),
        ("UNLIMITED", None),
        ("NONE", None),
        ("", None),
        ("soon", None),
        ("1:2:3:4", None),
    ],
)
def test_durations(text: str, seconds: int | None) -> None:
    assert duration_s(text) == seconds


def test_only_partitions_with_an_end_have_a_max_time() -> None:
    assert [*read_max_times(PARTITIONS)] == [("gandiva", 7 * 86400)]


def test_a_reservation() -> None:
    (found,) = read_reservations(MAINT + "\n")
    start_s, end_s = unix_s("2026-11-21T01:06:35"), unix_s("2026-11-21T01:16:35")
    assert found == Reservation("maint", ("n1", "n2"), start_s, end_s)


@pytest.mark.parametrize(
    "text",
    ["No reservations in the system\n", "", MAINT.replace("Nodes=n[1-2]", "Nodes=(null)"),
     MAINT.replace("2026-11-21T01:06:35", "Unknown")],
)
def test_what_reserves_no_node_or_cannot_be_read(text: str) -> None:
    assert [*read_reservations(text)] == []


def test_words_in_a_comment_at_the_end_do_not_count() -> None:
    (found,) = read_reservations(MAINT + " Comment=for Nodes=n9 EndTime=x\n")
    assert found.nodes == ("n1", "n2")
