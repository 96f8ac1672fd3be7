"""Who a process is, under every launcher."""

import sys
from types import SimpleNamespace

import pytest

from gandiva_slurm.client import identity
from gandiva_slurm.client.identity import Identity, find_identity

NAMES = [
    *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "GANDIVA_JOB", "GANDIVA_RESTART"),
]


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def process_group(rank, world):
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: world,
        get_backend=lambda: "gloo",
    )


@pytest.mark.parametrize(
    "env, want",
    [
        pytest.param({}, Identity(0, 1, "", ""), id="plain python"),
        pytest.param(
            {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_ID": "5"},
            Identity(0, 1, "", ""),
            id="sbatch --ntasks=2, plain python",
        ),
        pytest.param(
            {"SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
            Identity(0, 1, "", ""),
            id="batch step by its number",
        ),
        pytest.param(
            {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"},
            Identity(3, 4, "", ""),
            id="srun",
        ),
        pytest.param(
            {
                "RANK": "1",
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "n1",
                "MASTER_PORT": "29500",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_PROCID": "0",
            },
            Identity(1, 2, "n1:29500", ""),
            id="torchrun inside srun",
        ),
        pytest.param({"RANK": "x", "WORLD_SIZE": ""}, Identity(0, 1, "", ""), id="nonsense"),
    ],
)
def test_identity_from_environment(monkeypatch, env, want):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert find_identity() == want


def test_process_group_tells_when_no_launcher_does(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed", process_group(1, 2))
    monkeypatch.setenv("SLURM_NTASKS", "9")
    assert find_identity() == Identity(1, 2, "", "gloo")


def test_hello_names_process_and_job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    monkeypatch.setenv("GANDIVA_RESTART", "3")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0"))
    message = identity.hello(find_identity(), kind=2)
    with open("/proc/self/stat") as stat:
        want_start = int(stat.read().rpartition(")")[2].split()[19])
    assert message == {
        "hello": 1,
        "start": want_start,
        "rank": 0,
        "world": 1,
        "master": "",
        "backend": "",
        "torch": "2.13.0",
        "kind": 2,
        "job": 41,
        "restart": 3,
    }
