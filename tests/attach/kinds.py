"""Trainings of more kinds, as tests/attach_recipes.py has them: rows of a table in docs/integrations.md."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.attach_recipes import CLASSES, WIDTH, Recipe, net, plain
from tests.device.build import DEADLINE_S, LIBRARIES, CannotBuildError, compiler_and_places
from tests.skips import NO_COMPILER

SQUARED = """
#include <ATen/ATen.h>
#include <torch/library.h>
#include <torch/csrc/autograd/custom_function.h>
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
struct Squared : torch::autograd::Function<Squared> {
    static at::Tensor forward(AutogradContext *context, const at::Tensor &x) {
        context->save_for_backward({x});
        return x * x;
    }
    static variable_list backward(AutogradContext *context, variable_list gradients) {
        return {at::mul(context->get_saved_variables()[0], gradients[0]).mul_(2)};
    }
};
TORCH_LIBRARY(gandiva_kinds, library) {
    library.def("squared", [](const at::Tensor &x) { return Squared::apply(x); });
}
"""


def amp() -> Recipe:
    """The forward pass in bfloat16."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(number: int, x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Recipe(model, optimizer, step)


def compiled() -> Recipe:
    """The model compiled by Inductor, for the processor."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Recipe(model, optimizer, plain(torch.compile(model), optimizer))


def accelerated() -> Recipe:
    """Model and optimizer as accelerate prepares them."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = net()
    prepared = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))

    def step(number: int, x: Any, y: Any) -> Any:
        model, optimizer = prepared
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        return loss

    return Recipe(*prepared, step)


def custom_op() -> Recipe:
    """An activation of its own, in C++, with a gradient of its own."""
    squared = torch.ops.gandiva_kinds.squared
    model = nn.ModuleList([nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Recipe(model, optimizer, plain(lambda x: model[1](squared(model[0](x))), optimizer))


def build_op(directory: Path) -> None:
    """Compile that activation, and load it."""
    source, made = directory / "squared.cpp", directory / "squared.so"
    source.write_text(SQUARED)
    try:
        compiler, places = compiler_and_places()
    except CannotBuildError as err:
        pytest.skip(f"{NO_COMPILER}: {err}")
    words = [*["-std=c++20", "-O1", "-fPIC", "-shared"], *places, str(source), "-o", str(made), *LIBRARIES]
    done = subprocess.run([compiler, *words], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    torch.ops.load_library(made)


def has_compiler() -> bool:
    """Inductor's code for the processor is C++."""
    return shutil.which("c++") is not None


KINDS = {kind.__name__: kind for kind in (amp, compiled, accelerated, custom_op)}
