"""The market on any small cluster: legal plans, nobody waits beside idle GPUs, every job ends."""

from gandiva_slurm.policy import gandiva_market
from tests.policy_world import Case, check_on, conserving, on_cases


@on_cases(150)
def test_gandiva_market_is_legal_conserving_and_the_same_twice(case: Case) -> None:
    check_on(case, gandiva_market.make, conserving)
