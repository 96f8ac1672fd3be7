"""When torch is asked for expandable segments, and when not."""

from types import SimpleNamespace

import pytest
import torch

from gandiva_slurm.client import segments

SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")


def played(setters=SETTERS[:1], release="2.13.0+cu130", cuda="13.0"):
    """A torch, and what its allocator was told."""
    told = []
    core = SimpleNamespace(**dict.fromkeys(setters, told.append))
    return SimpleNamespace(_C=core, __version__=release, version=SimpleNamespace(cuda=cuda)), told


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    for name in (*segments.CHOICES, "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("setter", SETTERS)
def test_expandable_where_nobody_has_chosen(setter):
    made, told = played([setter])
    assert segments.prefer_expandable(made) and told == ["expandable_segments:True"]


@pytest.mark.parametrize("name", segments.CHOICES)
def test_what_the_user_set_stays(name, monkeypatch):
    monkeypatch.setenv(name, "max_split_size_mb:64")
    made, told = played()
    assert not segments.prefer_expandable(made) and not told


def test_the_saver_has_none(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/lib/torch_memory_saver_hook_mode_preload.abi3.so")
    made, told = played()
    assert not segments.prefer_expandable(made) and not told


@pytest.mark.parametrize("torch_of", [{"release": "2.5.1"}, {"cuda": None}, {"setters": ()}])
def test_a_torch_that_does_not_have_them_is_left_alone(torch_of):
    made, told = played(**torch_of)
    assert not segments.prefer_expandable(made) and not told


def test_a_refusal_is_none_of_the_scripts_trouble():
    made, _ = played()

    def refuse(text):
        raise RuntimeError(f"unknown setting {text}")

    made._C._accelerator_setAllocatorSettings = refuse
    assert not segments.prefer_expandable(made)


def test_the_installed_torch_knows_the_word():
    assert hasattr(torch._C, SETTERS[0])
    asked = SimpleNamespace(_C=torch._C, __version__=torch.__version__, version=SimpleNamespace(cuda="13.0"))
    try:
        assert segments.prefer_expandable(asked)
    finally:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
