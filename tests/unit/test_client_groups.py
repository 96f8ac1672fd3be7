"""What a rank says of its process groups' time-outs."""

import datetime
import sys
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from gandiva_slurm.client.groups import shortest_timeout_ms

MODULE = "torch.distributed.distributed_c10d"


def test_smallest_of_all_groups_counts(tmp_path):
    assert shortest_timeout_ms() == 0
    first, second = datetime.timedelta(seconds=77), datetime.timedelta(seconds=33)
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=first
    )
    try:
        assert shortest_timeout_ms() == 77_000
        dist.new_group([0], timeout=second)
        assert shortest_timeout_ms() == 33_000
    finally:
        dist.destroy_process_group()
    assert shortest_timeout_ms() == 0


@pytest.mark.parametrize(
    "module", [SimpleNamespace(), SimpleNamespace(_world=SimpleNamespace(pg_map={1: 2}))]
)
def test_torch_that_does_not_tell_is_no_harm(monkeypatch, module):
    monkeypatch.setitem(sys.modules, MODULE, module)
    assert shortest_timeout_ms() == 0
