"""Ours on any small cluster: legal plans, nobody waits beside idle GPUs, every job ends, no surprises."""

from gandiva_slurm.policy import gandiva, gandiva_fair
from tests.policy_world import Case, check_on, conserving, on_cases


@on_cases(150)
def test_gandiva_fair_is_legal_conserving_and_the_same_twice(case: Case) -> None:
    check_on(case, gandiva_fair.make, conserving)


@on_cases(60)
def test_gandiva_is_legal_conserving_and_the_same_twice(case: Case) -> None:
    check_on(case, gandiva.make, conserving)
