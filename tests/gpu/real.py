"""Trainings as users have them, by kind: `real.py KIND OUT STEPS STOP`; losses go to OUT as JSON.

It ends behind STEPS steps, or where the file STOP is there. Two of them have no line of Gandiva's: the hook
has them parked.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gandiva_slurm as gandiva
from tests.gpu.device import IS_SIM, kind
from tests.gpu.resnet import resnet50

#: What a step takes of the models, of vision and of language; on the simulated card all is small.
IMAGES, TOKENS = ((1, 3, 64, 64), (1, 16)) if IS_SIM else ((32, 3, 224, 224), (8, 256))
#: Of BERT and Llama: width, layers, heads, words known.
BERT, LLAMA = ((32, 2, 2, 100), (32, 2, 2, 100)) if IS_SIM else ((768, 12, 12, 30522), (1024, 24, 16, 32000))
Step = Callable[[], Any]


def _step(model: Any, data: Step, loss_of: Callable[[Any, Any], Any], **options: Any) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, data())
        loss.backward()
        optimizer.step()
        return loss

    return step


def _images() -> Any:
    return torch.randn(IMAGES, device=kind())


def _square(model: Any, data: Any) -> Any:
    return model(data).float().square().mean()


def _tokens(known: int) -> Any:
    return torch.randint(known, TOKENS, device=kind())


def _language(model: Any, tokens: Any) -> Any:
    return model(input_ids=tokens, labels=tokens).loss


def bert() -> Step:
    """BERT's base size, from transformers, by its own attention."""
    from transformers import BertConfig, BertForMaskedLM

    width, layers, heads, known = BERT
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    config = BertConfig(vocab_size=known, intermediate_size=4 * width, **sizes)
    return _step(BertForMaskedLM(config).to(kind()), lambda: _tokens(known), _language)


def llama() -> Step:
    """A Llama in bfloat16 with one kernel for all of AdamW."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers, heads, known = LLAMA
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    config = LlamaConfig(vocab_size=known, intermediate_size=3 * width, **sizes)
    model = LlamaForCausalLM(config).to(kind(), torch.bfloat16)
    return _step(model, lambda: _tokens(known), _language, fused=not IS_SIM)


def compiled() -> Step:
    """Layers as a transformer has behind its attention, by Inductor, without graphs."""
    width, rows = 2048, 512
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width)]
    model = nn.Sequential(*layers).to(kind())
    return _step(torch.compile(model), lambda: torch.randn(rows, width, device=kind()), _square)


def scaled() -> Step:
    """A ResNet-50 in float16 with a loss scaler."""
    model = resnet50().to(kind())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler(kind())

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast(kind(), torch.float16):
            loss = _square(model, _images())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


def _by_nccl() -> None:
    """A gang of one: its communicator is NCCL's all the same."""
    device = torch.device(kind(), 0)
    method = f"file://{tempfile.mkdtemp()}/store"
    torch.distributed.init_process_group("nccl", init_method=method, rank=0, world_size=1, device_id=device)


def ddp() -> Step:
    """A ResNet-50 in DistributedDataParallel."""
    _by_nccl()
    return _step(nn.parallel.DistributedDataParallel(resnet50().to(kind())), _images, _square)


def views() -> Step:
    """The same, gradients being views of its buckets."""
    _by_nccl()
    model = nn.parallel.DistributedDataParallel(resnet50().to(kind()), gradient_as_bucket_view=True)
    return _step(model, _images, _square)


def fsdp() -> Step:
    """A Llama by FSDP2, each layer on its own."""
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    _by_nccl()
    width, layers, heads, known = LLAMA
    sizes = {"hidden_size": width, "num_hidden_layers": layers // 2, "num_attention_heads": heads}
    config = LlamaConfig(vocab_size=known, intermediate_size=3 * width, **sizes)
    model = LlamaForCausalLM(config).to(kind(), torch.bfloat16)
    for layer in model.model.layers:
        fully_shard(layer)
    return _step(fully_shard(model), lambda: _tokens(known), _language)


def accelerated() -> Step:
    """A ResNet-50 as accelerate prepares it, in bfloat16."""
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")
    model = resnet50()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))

    def step() -> Any:
        optimizer.zero_grad()
        loss = _square(model, _images())
        accelerator.backward(loss)
        optimizer.step()
        return loss

    return step


KINDS = {made.__name__: made for made in (bert, llama, compiled, scaled, ddp, views, fsdp, accelerated)}


class Rows(torch.utils.data.IterableDataset[Any]):
    """Each row is drawn anew, until `is_over`: a Trainer of Lightning's hears of an end by its data alone."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self.is_over = is_over

    def __iter__(self) -> Iterator[Any]:
        while not self.is_over():
            x = torch.randn(1024)
            yield {"x": x, "labels": x[:1]}


class Wide(nn.Module):
    """Some 200 MiB of parameters; takes what the Trainer gives."""

    def __init__(self) -> None:
        super().__init__()
        width = 64 if IS_SIM else 4096
        self.body = nn.Sequential(nn.Linear(1024, width), *(nn.Linear(width, width) for _ in range(3)))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        return {"loss": (self.head(self.body(x)) - labels).square().mean()}


def trainer(steps: int, is_over: Callable[[], bool], losses: list[str]) -> None:
    """transformers' Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Notes(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            if "loss" in logs:
                losses.append(float(logs["loss"]).hex())

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop |= is_over()

    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            out, max_steps=steps, per_device_train_batch_size=16, logging_steps=1, report_to=[],
            save_strategy="no", lr_scheduler_type="constant", disable_tqdm=True, logging_nan_inf_filter=False,
        )  # fmt: skip
        Trainer(Wide(), args, train_dataset=Rows(bool), callbacks=[Notes()]).train()


def lightning(steps: int, is_over: Callable[[], bool], losses: list[str]) -> None:
    """Lightning's Trainer."""
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Wide()

        def training_step(self, batch: Any) -> Any:
            loss = self.net(**batch)["loss"]
            losses.append(loss.item().hex())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-4)

    made = pytorch_lightning.Trainer(
        max_epochs=1, max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    made.fit(Module(), torch.utils.data.DataLoader(Rows(is_over), 16))


#: Trainings that go by themselves, without a line of Gandiva's.
WHOLE = {made.__name__: made for made in (trainer, lightning)}


def main(name: str, out: str, steps: int, stop: str) -> None:
    """Train, and note the losses."""
    torch.manual_seed(17)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with contextlib.suppress(AttributeError):  # its backward has no order of its own
        torch.backends.cuda.enable_mem_efficient_sdp(False)
    kind()
    losses: list[str] = []
    if name in WHOLE:
        WHOLE[name](steps, lambda: os.path.exists(stop), losses)
    else:
        step = KINDS[name]()
        for _ in gandiva.steps(range(steps)):
            losses.append(step().item().hex())
            if os.path.exists(stop):
                break
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    Path(out).write_text(json.dumps(losses))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
