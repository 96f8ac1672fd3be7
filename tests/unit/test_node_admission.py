"""What a rank is told with its page."""

from types import SimpleNamespace

from gandiva_slurm.node.binding import Admission


def test_a_rank_is_told_how_long_it_may_sleep_and_a_park_may_take():
    settings = SimpleNamespace(wake_grace_s=5.0, park_deadline_ns=10_500_000_000)
    told = Admission.answer(SimpleNamespace(_node=SimpleNamespace(settings=settings)))
    assert told == {"ok": True, "wake_grace_s": 5.0, "park_deadline_s": 10.5, "confirms": True}
