"""policy.placement: which nodes may take a job at all."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy.placement.needs import Need
from gandiva_slurm.policy.placement.sites import Site
from gandiva_slurm.policy.shares.associations import Leaf
from tests.builders import ACCOUNT

SITE = Site("n1", "v100", 4, cpus=8, memory_mib=1000, partitions=("gandiva", "more"))


def need(**fields: object) -> Need:
    return Need(1, Leaf(ACCOUNT, "ann"), **({"gpus": 1, "weight": 100} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "may_take"),
    [
        ({}, True),
        ({"types": ("k80", "v100")}, True),
        ({"types": ("k80",)}, False),
        ({"partitions": ("other", "more")}, True),
        ({"partitions": ("other",)}, False),
    ],
)
def test_type_and_partition_are_respected(fields: dict[str, object], may_take: bool) -> None:
    assert SITE.may_take(need(**fields)) == may_take
    assert not Site("n2", "v100", 0).may_take(need(**fields)), "it has no GPUs"


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"gpus": 4, "cpus": 8, "memory_mib": 1000}, True),
        ({"gpus": 5}, False),
        ({"cpus": 9}, False),
        ({"memory_mib": 1001}, False),
    ],
)
def test_sizes_are_respected_and_what_slurm_does_not_tell_bounds_nothing(
    fields: dict[str, object], fits: bool
) -> None:
    assert SITE.is_large_enough(need(**fields)) == fits
    assert Site("n2", "v100", 5).is_large_enough(need(**fields))
