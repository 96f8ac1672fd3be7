"""engine.span_park: one change of hands, order by order."""

from __future__ import annotations

from gandiva_slurm.model import span as words
from gandiva_slurm.model.span import IN, LEAVE, OUT, PartStand
from gandiva_slurm.slicing.span_park import (
    MAX_REAIMS,
    MAX_RESENDS,
    RENEW_NS,
    TORN,
    WIDEST_MARGIN,
    MoveSettings,
    Send,
    SpanMove,
    Stood,
    margin,
    move_wanted,
)

MS = 1_000_000
NODES = ("n1", "n2")


def a_part(phase: str, node: str = "n1", **more: object) -> PartStand:
    """A part of a span of two nodes with two ranks each."""
    ranks = (0, 1) if node == "n1" else (2, 3)
    facts: dict[str, object] = {"world": 4, "ranks": ranks, "min_seq": 40, "max_seq": 41, "is_parkable": True}
    facts |= {"step_ns": 12 * MS, "fast_ns": 10 * MS, "spread_ns": 2 * MS} | more
    return PartStand(7, 0, phase, **facts)  # type: ignore[arg-type]


class Bench:
    """A move and nodes that answer as they are told."""

    def __init__(self, to: str, *phases: str, saves: bool = False, **more: object) -> None:
        parts = {n: a_part(phase, n, **more) for n, phase in zip(NODES, phases, strict=True)}
        stood = {node: Stood(part, 0) for node, part in parts.items()}
        self.move = SpanMove(stood, to, MoveSettings(), saves=saves)
        self.now_ns = MS
        self.sends = self.move.begin(self.now_ns)

    def asked(self) -> list[tuple[str, str]]:
        """What is under way."""
        return [(send.node, send.what) for send in self.sends]

    def yes(self, node: str, phase: str = "", **more: object) -> None:
        """A node has done as it was told."""
        send = self._take(node)
        stands = a_part(phase or words.ORDERS[send.what][1], node, at=send.at, **more)
        self._add(self.move.answered(send.number, True, "", "", Stood(stands, self.now_ns), self.now_ns))

    def no(self, node: str, code: str, phase: str, **more: object) -> None:
        """A node has not, and says why."""
        send, part = self._take(node), a_part(phase, node, **more)
        answer = self.move.answered(
            send.number, False, code, "because", Stood(part, self.now_ns), self.now_ns
        )
        self._add(answer)

    def lost(self, node: str) -> None:
        """A node does not answer."""
        self._add(self.move.lost(self._take(node).number, "no answer", self.now_ns))

    def all(self) -> None:
        """All nodes do as they were told, once."""
        for node in [send.node for send in self.sends]:
            self.yes(node)

    def _take(self, node: str) -> Send:
        send = [send for send in self.sends if send.node == node][-1]
        self.sends.remove(send)
        return send

    def _add(self, sends: list[Send]) -> None:
        self.now_ns += MS
        if sends and sends[0].what != (self.sends[0].what if self.sends else ""):
            self.sends = []  # a new stage: older orders no longer matter
        self.sends = [old for old in self.sends if old.node not in {send.node for send in sends}] + sends


def test_park_holds_then_commits_then_frees() -> None:
    bench = Bench(OUT, words.ON, words.ON)
    assert bench.asked() == [("n1", words.AIM), ("n2", words.AIM)]
    assert {send.at for send in bench.sends} == {bench.move.at} and bench.move.at > 41
    bench.yes("n1")
    assert bench.asked() == [("n2", words.AIM)], "nobody is told to release before all hold"
    bench.yes("n2")
    assert bench.asked() == [("n1", words.COMMIT), ("n2", words.COMMIT)]
    bench.yes("n2")
    assert bench.asked() == [("n1", words.COMMIT)], "nothing is given on before all have released"
    bench.yes("n1")
    assert bench.asked() == [("n1", words.FREE), ("n2", words.FREE)]
    bench.all()
    assert (bench.move.outcome, bench.move.error) == (words.OFF, "")
    assert [mark.stage for mark in bench.move.marks] == ["AIM", "COMMIT", "FREE", "off"]


def test_a_miss_aims_further_ahead_and_the_sixth_gives_up() -> None:
    bench = Bench(OUT, words.ON, words.ON)
    margins, ats = [bench.move.margin], [bench.move.at]
    assert margins == [3]
    for missed in range(1, MAX_REAIMS + 1):
        bench.no("n2", words.MISS, words.AIMING, max_seq=ats[-1] + 1)
        assert bench.asked() == [("n1", words.AIM), ("n2", words.AIM)] and bench.move.reaims == missed
        margins.append(bench.move.margin)
        ats.append(bench.move.at)
        assert ats[-1] > ats[-2] + 1
    assert margins[-1] >= margins[0] << MAX_REAIMS - 1 and margins[-1] <= WIDEST_MARGIN
    bench.no("n1", words.LATE, words.AIMING)
    assert bench.asked() == [("n1", words.RUN), ("n2", words.RUN)]
    bench.all()
    assert bench.move.outcome == words.ON and "because" in bench.move.error


def test_a_boundary_that_is_not_reached_in_time_is_waited_for_twice_as_long() -> None:
    bench = Bench(OUT, words.ON, words.ON)
    at, waited_ns = bench.move.at, bench.sends[0].wait_ns
    bench.yes("n1")
    bench.no("n2", words.LATE, words.AIMING)
    assert bench.asked() == [("n1", words.AIM), ("n2", words.AIM)]
    assert {(send.at, send.wait_ns) for send in bench.sends} == {(at, 2 * waited_ns)}


def test_boundaries_are_not_waited_for_past_the_deadline() -> None:
    bench = Bench(OUT, words.ON, words.ON)
    first_ns, deadline_ns = bench.sends[0].wait_ns, bench.move.settings.deadline_ns
    bench.now_ns += deadline_ns - 3 * first_ns // 2
    bench.no("n1", words.LATE, words.AIMING)
    assert first_ns <= bench.sends[0].wait_ns <= 3 * first_ns // 2, "no longer than is left"
    bench.now_ns += deadline_ns
    bench.no("n2", words.LATE, words.AIMING)
    assert bench.move.stage == words.RUN and bench.move.reaims == 1


def test_a_yes_that_shows_another_boundary_is_a_miss() -> None:
    bench = Bench(OUT, words.ON, words.ON)
    send = bench._take("n1")
    part = Stood(a_part(words.HOLDING, "n1", at=send.at - 1), 0)
    again = bench.move.answered(send.number, True, "", "", part, bench.now_ns)
    assert [(s.node, s.what) for s in again] == [("n1", words.AIM), ("n2", words.AIM)]


def test_silence_before_free_takes_everything_back() -> None:
    for answered in range(2):
        bench = Bench(OUT, words.ON, words.ON)
        for _ in range(answered):
            bench.all()
        bench.lost("n2")
        assert bench.asked() == [("n1", words.RUN), ("n2", words.RUN)]
        bench.all()
        assert bench.move.outcome == words.ON and bench.move.error == "no answer"


def test_a_release_that_failed_takes_everything_back() -> None:
    bench = Bench(OUT, words.ON, words.ON)
    bench.all()
    bench.yes("n1")
    bench.no("n2", words.NO, words.RELEASING)
    assert bench.asked() == [("n1", words.RUN), ("n2", words.RUN)]


def test_free_is_said_again_and_a_part_that_came_back_by_itself_tears_the_span() -> None:
    bench = Bench(OUT, words.ON, words.ON)
    bench.all()
    bench.all()
    bench.yes("n1")
    bench.lost("n2")
    assert bench.asked() == [("n2", words.FREE)]
    bench.no("n2", words.NO, words.ON)
    assert bench.move.outcome == TORN and bench.move.error


def test_lost_orders_are_sent_again_so_often_and_no_more() -> None:
    bench = Bench(IN, words.OFF, words.OFF)
    bench.all()
    bench.yes("n1")
    for _ in range(MAX_RESENDS):
        bench.lost("n2")
        assert bench.asked() == [("n2", words.GO)]
    bench.lost("n2")
    assert bench.move.outcome == TORN and not bench.sends


def test_an_order_that_takes_long_is_said_again_to_all() -> None:
    """It renews the bound of those who wait, and reaches one it was lost to."""
    bench = Bench(OUT, words.ON, words.ON)
    bench.all()
    bench.yes("n1")
    assert bench.move.tick(bench.now_ns) == []
    bench.now_ns += RENEW_NS
    bench.sends = bench.move.tick(bench.now_ns)
    assert bench.asked() == [("n1", words.COMMIT), ("n2", words.COMMIT)]
    bench.yes("n2")
    assert bench.asked() == [("n1", words.COMMIT)]
    bench.yes("n1")
    assert bench.asked() == [("n1", words.FREE), ("n2", words.FREE)]


def test_an_order_that_takes_too_long_is_given_up() -> None:
    for to, phase, back in ((OUT, words.ON, words.RUN), (IN, words.OFF, words.UNRESERVE)):
        bench = Bench(to, phase, phase)
        if to == OUT:
            bench.all()
        bench.yes("n1")
        bench.now_ns += MoveSettings().deadline_ns + RENEW_NS
        assert {send.what for send in bench.move.tick(bench.now_ns)} == {back}
        assert "within 30 s" in bench.move.error


def test_no_client_is_frozen_and_ranks_that_wait_for_nobody_stop_where_they_are() -> None:
    frozen = Bench(OUT, words.ON, words.ON, is_parkable=False)
    assert frozen.asked() == [("n1", words.FREEZE), ("n2", words.FREEZE)]
    frozen.all()
    assert frozen.asked() == [("n1", words.FREE), ("n2", words.FREE)]
    solo = Bench(OUT, words.ON, words.ON, world=1)
    assert [(send.what, send.at) for send in solo.sends] == [(words.AIM, 0)] * 2


def test_one_that_refused_for_too_long_is_stopped_without_being_asked() -> None:
    stood = {node: Stood(a_part(words.ON, node), 0) for node in ("n1", "n2")}
    move = SpanMove(stood, OUT, MoveSettings(), freezes=True)
    assert [(send.node, send.what) for send in move.begin(0)] == [("n1", words.FREEZE), ("n2", words.FREEZE)]


def test_half_a_gang_that_cannot_be_made_whole_is_stopped_where_it_is() -> None:
    bench = Bench(OUT, words.ON, words.OFF)
    assert bench.asked() == [("n1", words.FREEZE)], "half of its ranks is parked: it comes to no boundary"
    bench.all()
    assert bench.asked() == [("n1", words.FREE)]
    bench.all()
    assert (bench.move.outcome, bench.move.error) == (words.OFF, "")


def test_a_yes_that_shows_another_phase_is_not_believed() -> None:
    bench = Bench(OUT, words.ON, words.ON)
    bench.all()
    bench.yes("n1", words.HOLDING)
    assert bench.asked() == [("n1", words.RUN), ("n2", words.RUN)]


def test_missing_ranks_are_no_gang_to_aim_at() -> None:
    bench = Bench(OUT, words.ON, words.ON, world=5)
    assert bench.asked() == [("n1", words.FREEZE), ("n2", words.FREEZE)]


def test_all_come_in_together_or_none() -> None:
    bench = Bench(IN, words.OFF, words.OFF)
    assert bench.asked() == [("n1", words.RESERVE), ("n2", words.RESERVE)]
    bench.yes("n1")
    bench.no("n2", words.NO, words.RESERVED)
    assert bench.asked() == [("n1", words.UNRESERVE), ("n2", words.UNRESERVE)]
    bench.all()
    assert (bench.move.outcome, bench.move.error) == (words.OFF, "because")


def test_a_go_that_came_too_late_for_one_clears_its_gpus_again() -> None:
    bench = Bench(IN, words.OFF, words.OFF)
    bench.all()
    bench.yes("n1")
    bench.no("n2", words.NO, words.OFF)
    assert bench.asked() == [("n2", words.RESERVE)]
    bench.yes("n2")
    bench.yes("n2")
    assert (bench.move.outcome, bench.move.error) == (words.ON, "")


def test_what_another_controller_left_in_mid_turn_runs_and_the_rest_follows() -> None:
    bench = Bench(IN, words.RELEASED, words.OFF)
    assert bench.asked() == [("n1", words.RUN)]
    bench.yes("n1")
    assert bench.asked() == [("n2", words.RESERVE)]
    bench.no("n2", words.LATE, words.RESERVED)
    assert bench.move.outcome == TORN, "one part runs: the other one's GPUs are asked for again"


def test_margin_covers_what_may_pass_meanwhile() -> None:
    part = Stood(a_part(words.ON, fast_ns=5 * MS, step_ns=20 * MS), 0)
    assert margin([part], rtt_ns=5 * MS, now_ns=3 * MS) == 2 + 1
    assert margin([part], rtt_ns=20 * MS, now_ns=20 * MS) == 2 + 5
    fresh = Stood(a_part(words.ON), 19 * MS)
    assert margin([part, fresh], rtt_ns=20 * MS, now_ns=20 * MS) == 2 + 3, "they go in step"
    slow = Stood(a_part(words.ON, fast_ns=900 * MS, step_ns=900 * MS), 0)
    assert margin([slow], rtt_ns=5 * MS, now_ns=3 * MS) == 1


def test_which_move_is_wanted() -> None:
    on, off = words.ON, words.OFF
    assert move_wanted([on, on], words.STAY) == move_wanted([off, off], OUT) == ""
    assert move_wanted([on, on], OUT) == OUT
    assert move_wanted([off, words.READY], IN) == IN
    for phase in (words.AIMING, words.HOLDING, words.RELEASED):
        assert move_wanted([on, phase], OUT) == IN, "all of it runs first"
    assert move_wanted([on, off], IN) == move_wanted([on, off], words.STAY) == IN
    assert move_wanted([on, off], OUT) == OUT


def test_nodes_hear_with_their_last_order_whether_it_may_come_back_by_itself() -> None:
    """As it is decided by then, not when the change of hands began."""
    bench = Bench(OUT, words.ON, words.ON)
    bench.all()
    bench.move.comes_back = True
    bench.yes("n1")
    assert not any(send.comes_back for send in bench.sends)
    bench.yes("n2")
    assert [(send.what, send.comes_back) for send in bench.sends] == [(words.FREE, True)] * 2


def test_to_be_moved_all_save_themselves_before_they_release_and_have_time_to() -> None:
    bench = Bench(OUT, words.ON, words.ON, saves=True)
    assert [send.saves for send in bench.sends] == [True, True]
    bench.all()
    settings = bench.move.settings
    assert {send.wait_ns for send in bench.sends} == {settings.deadline_ns + settings.save_ns}
    bench.now_ns += settings.deadline_ns + settings.save_ns - RENEW_NS
    assert bench.move.tick(bench.now_ns)[0].what == words.COMMIT
    bench.now_ns += 2 * RENEW_NS
    assert {send.what for send in bench.move.tick(bench.now_ns)} == {words.RUN}
    assert (bench.move.kind, "within 330 s" in bench.move.error) == (LEAVE, True)


def test_a_save_that_fails_is_taken_back_for_all_and_an_aim_that_fails_is_none() -> None:
    bench = Bench(OUT, words.ON, words.ON, saves=True)
    bench.all()
    bench.no("n2", words.NO, words.ON)
    assert bench.asked() == [("n1", words.RUN), ("n2", words.RUN)]
    bench.all()
    assert (bench.move.outcome, bench.move.kind) == (words.ON, LEAVE)
    missed = Bench(OUT, words.ON, words.ON, saves=True)
    missed.no("n1", words.NO, words.ON)
    assert missed.move.kind == OUT
    done = Bench(OUT, words.ON, words.ON, saves=True)
    half = Bench(OUT, words.ON, words.ON, saves=True)
    for bench, has_saved in ((done, True), (half, False)):
        bench.all()
        bench.all()
        bench.yes("n1", has_saved=True)
        bench.yes("n2", has_saved=has_saved)
    assert (done.move.outcome, done.move.kind) == (words.OFF, OUT)
    assert (half.move.outcome, half.move.kind) == (words.OFF, LEAVE), "or it is asked as soon as it is on"


def test_the_answer_to_an_order_that_was_sent_again_does_not_count() -> None:
    bench = Bench(OUT, words.ON, words.ON)
    bench.all()
    (first, _), now_ns = bench.sends, bench.now_ns + RENEW_NS
    assert first.what == words.COMMIT and len(bench.move.tick(now_ns)) == 2
    released = Stood(a_part(words.RELEASED, "n1", at=first.at), now_ns)
    assert bench.move.answered(first.number, True, "", "", released, now_ns) == []
    assert bench.move.stood["n1"].part.phase == words.HOLDING
