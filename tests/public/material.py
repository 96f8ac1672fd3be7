"""Small data and models for public scripts, drawn by fixed seeds; nothing is fetched.

`make` takes one word of tests/public/scripts.py: what, then where (from the directory that the script is
started in), then how much, separated by colons.
"""

from __future__ import annotations

import csv
import pickle
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_WORDS = tuple(f"{first}{last}" for first in "bdfgklmnprst" for last in ("a", "en", "il", "or", "us", "ym"))


def make(word: str, place: Path) -> None:
    """Make what a word says, in the directory `place`; KeyError for a word that is not known."""
    what, _, rest = word.partition(":")
    where, _, size = rest.partition(":")
    _MAKERS[what](place / where, size)


def _mnist(path: Path, size: str) -> None:
    """Digits in the files of MNIST, as torchvision finds them downloaded."""
    raw, draw = path / "MNIST/raw", np.random.default_rng(0)
    raw.mkdir(parents=True)
    for name, count in (("train", int(size)), ("t10k", max(100, int(size) // 6))):
        images = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        head = struct.pack(">IIII", 2051, count, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def _images(path: Path, size: str) -> None:
    from PIL import Image

    path.mkdir(parents=True)
    draw = np.random.default_rng(len(path.as_posix()))
    for number in range(int(size)):
        Image.fromarray(draw.integers(0, 256, (260, 260, 3), dtype=np.uint8)).save(path / f"{number}.jpg")


def _sines(path: Path, _: str) -> None:
    """Waves as the script's own generator writes them, fewer and shorter."""
    import torch

    phases = np.random.default_rng(2).integers(-80, 80, 12).reshape(12, 1)
    waves = np.sin((np.arange(60) + phases) / 20.0).astype("float64")
    torch.save(waves, path / "traindata.pt", pickle_protocol=4)


def _sentences(count: int) -> Iterator[str]:
    draw = random.Random(3)
    for _ in range(count):
        yield " ".join(draw.choices(_WORDS, k=draw.randint(4, 14)))


def _text(path: Path, size: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("O God, O God!\n" + "".join(f"{line}\n" for line in _sentences(int(size))))


def _characters(path: Path, _: str) -> None:
    """A text by characters, as nanoGPT's prepare.py leaves it."""
    text = "\n".join(_sentences(400))
    known = sorted(set(text))
    numbers = np.array([known.index(one) for one in text], dtype=np.uint16)
    path.mkdir(parents=True, exist_ok=True)
    numbers[:-2000].tofile(path / "train.bin")
    numbers[-2000:].tofile(path / "val.bin")
    meta = {
        "vocab_size": len(known),
        "itos": dict(enumerate(known)),
        "stoi": {one: n for n, one in enumerate(known)},
    }
    (path / "meta.pkl").write_bytes(pickle.dumps(meta))


def _rows(path: Path, columns: tuple[str, ...], counts: dict[str, int]) -> None:
    """A data set of the hub's kind in a directory, a file a split; `score` is a number between 0 and 1."""
    path.mkdir(parents=True)
    draw = random.Random(4)
    for split, count in counts.items():
        lines = _sentences(count * len(columns))
        with (path / f"{split}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(columns)
            for _ in range(count):
                rows.writerow(f"{draw.random():.3f}" if name == "score" else next(lines) for name in columns)


def _table(path: Path, columns: str) -> None:
    _rows(path, tuple(columns.split(",")), {"train": 400, "test": 20})


def _mrpc(path: Path, labels: str) -> None:
    """Pairs of sentences in the place of the few that lie there, with these two labels, else with MRPC's."""
    names = (labels or "equivalent,not_equivalent").split(",")
    for name, count in (("train", 300), ("dev", 8)):
        with (path / f"{name}.csv").open("w", newline="") as file:
            rows, lines = csv.writer(file), _sentences(2 * count)
            rows.writerow(("label", "sentence1", "sentence2"))
            rows.writerows((names[number % 2], next(lines), next(lines)) for number in range(count))


def _stsb(path: Path, _: str) -> None:
    counts = {"train": 2000, "validation": 20, "test": 20}
    _rows(path / "sentence-transformers/stsb", ("sentence1", "sentence2", "score"), counts)


def _tokens(path: Path) -> int:
    """A tokenizer of whole words beside a model; return how many it knows."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>")
    known = {word: number for number, word in enumerate((*special, *_WORDS))}
    tokens = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad", "unk", "cls", "sep", "mask", "eos"), special, strict=True))
    named: dict[str, Any] = {f"{name}_token": text for name, text in names.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokens, model_max_length=64, **named).save_pretrained(path)
    return len(known)


def _bert(path: Path, labels: str) -> None:
    """A BERT of two layers; with a head for labels where their number is told."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    torch.manual_seed(5)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    count = {"num_labels": int(labels)} if labels else {}
    config = BertConfig(
        vocab_size=_tokens(path), max_position_embeddings=64, pad_token_id=0, **sizes, **count
    )
    (BertForSequenceClassification if labels else BertModel)(config).save_pretrained(path)


def _llama(path: Path, labels: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    torch.manual_seed(6)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    count = {"num_labels": int(labels)} if labels else {}
    ends = {"pad_token_id": 0, "eos_token_id": 5, "bos_token_id": 5}
    config = LlamaConfig(vocab_size=_tokens(path), max_position_embeddings=128, **sizes, **count, **ends)
    (LlamaForSequenceClassification if labels else LlamaForCausalLM)(config).save_pretrained(path)


_METRIC = '''\
"""Accuracy, in place of the hub's own metric of this name."""

import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        values = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(values))

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references))
        return {"accuracy": sum(one == other for one, other in pairs) / len(pairs)}
'''


def _metric(path: Path, _: str) -> None:
    path.mkdir(parents=True)
    (path / f"{path.name}.py").write_text(_METRIC)


_MAKERS = {
    "mnist": _mnist,
    "images": _images,
    "sines": _sines,
    "text": _text,
    "characters": _characters,
    "table": _table,
    "mrpc": _mrpc,
    "stsb": _stsb,
    "bert": _bert,
    "llama": _llama,
    "metric": _metric,
}
