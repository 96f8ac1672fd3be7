"""Each test of the GPU floor finds the device as empty as torch can make it."""

import gc

import pytest
import torch

from gandiva_slurm.node import nvml
from tests.gpu.device import of_device
from tests.skips import NO_NVML


@pytest.fixture(autouse=True)
def empty_device():
    """What an earlier test has left is none of this one's."""
    yield
    gc.collect()
    getattr(torch._C, "_cuda_clearCublasWorkspaces", int)()  # a build for CPUs has none
    of_device().empty_cache()


@pytest.fixture
def library():
    """NVML, which needs nvidia-ml-py; `make test-gpu` installs it."""
    found = nvml.load()
    if found is None:
        pytest.skip(NO_NVML)
    return found
