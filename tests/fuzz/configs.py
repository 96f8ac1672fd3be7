"""Mutated gandiva.yaml: only ConfigError, whose sentences name the file, and the line where there is one."""

from __future__ import annotations

import contextlib
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gandiva_slurm.config import Config, load_config, outdated
from gandiva_slurm.model.errors import ConfigError
from tests.fuzz.kit import HERE, Target, mutated

EXAMPLE = (HERE.parents[1] / "slurm_conf/gandiva.yaml").read_bytes()
#: Without comments: what is changed means something.
BARE = b"\n".join(
    line.split(b" #")[0].rstrip()
    for line in EXAMPLE.splitlines()
    if line.strip() and not line.lstrip().startswith(b"#")
)
SMALL = b"cluster: c\npartitions: [gandiva]\ncontroller:\n  host: h\n"
FULL = SMALL + (
    b"quantum_s: 60\nparked: {gandiva: trust}\nisolation: 60\npolicy: gandiva_fair\n"
    b"node:\n  port: 7322\n  socket: /run/gandiva/%n.sock\n  refusal_bound_s: auto\n"
    b"  checkpoint_dir: /scratch/%u/%j\n  addresses:\n    n1: n1:7322\n"
    b"moves: {enabled: true, min_run_s: 0, at_once: 3}\npacking: {floor: 1.05}\n"
    b"virtual_clusters:\n  a: {v100: 4}\ncells:\n  v100: {switch: 4, socket: 8}\n"
)
VALUES = (
    b"null", b"~", b"yes", b"0x1F", b"1_000", b"1:30:00", b".inf", b"-.inf", b".nan", b"2026-11-25", b"0o17",
    b"017",
    b"!!python/object/apply:os.system [id]", b"!!binary aGk=", b"!!set {a, b}", b"!!omap [a: 1]", b"&a [1]",
    b"*a",
    b"<<", b"{<<: {a: 1}}", b"[[[[]]]]", b"{}", b"{? [a] : b}", b"? {a: b}\n: c", b"|\n  x", b">-\n  y",
    b"'", b'"\\ud800"',
    b'"\\x00"', b"9" * 5000, b"1e999", b"!!int x", b"!!float x", b"!!timestamp x", b"!!null x", b"!!bool x",
    b"=", b"@", b"`",
    b"%YAML 1.1\n---", b"---\n---", b"...", b"\t", b"2026-99-99", b"!!timestamp 2026-13-45", b"-1", b"1.5",
    b"!x y",
    # what would take memory, or time, without end
    b"0x" + b"f" * 5000, b"0b" + b"1" * 20_000, b"0" + b"7" * 9000, b"1:" * 9000 + b"1", b"1:" * 300 + b"1.5",
    b"1" + b"_" * 9000, b"1e" + b"9" * 9000, b"1048576",
    b"{" + b", ".join(b"k%d: 1" % n for n in range(500)) + b"}",
)  # fmt: skip
#: More than a configuration has, in a list and in a mapping.
ENDLESS = (
    b"[" + b"a, " * 60_000 + b"a]",
    b"{" + b", ".join(b"a%d: {b: 1}" % n for n in range(30_000)) + b"}",
    b"[" * 40_000,
)
_VALUE = re.compile(rb"(?<=: )[^\n{}\[\],]+|(?<=- )[^\n]+")
#: A bomb as in XML's: each name nine times the one before.
BOMB = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + n, 98 + n, b", ".join([b"*%c" % (97 + n)] * 9)) for n in range(9)
)
#: A sentence of ours: the file, a line or not, what is wrong.
_SENTENCE = re.compile(r"^\S*gandiva\.yaml(:\d+)?: \S", re.DOTALL)


def draw(chance: random.Random) -> bytes:
    """A text that was a configuration."""
    text = chance.choice((SMALL, FULL, FULL, BARE, EXAMPLE if chance.random() < 0.1 else FULL))
    way = chance.random()
    if way < 0.002:
        return text + chance.choice((b"parked: ", b"partitions: ", b"x: ")) + chance.choice(ENDLESS)
    if way < 0.02:
        return text + BOMB if way < 0.01 else BOMB + text
    if way < 0.7:
        for _ in range(chance.choice((1, 1, 2, 4))):
            text = _valued(text, chance)
    elif way < 0.8:
        text = _shuffled(text, chance)
    return mutated(text, chance) if way >= 0.6 else text


def _valued(text: bytes, chance: random.Random) -> bytes:
    found = list(_VALUE.finditer(text))
    if not found:
        return text
    match = chance.choice(found)
    return text[: match.start()] + chance.choice(VALUES) + text[match.end() :]


def _shuffled(text: bytes, chance: random.Random) -> bytes:
    """Lines that stand where others were, or twice."""
    lines = text.split(b"\n")
    for _ in range(chance.choice((1, 2, 5))):
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
    return b"\n".join(lines)


def reader(directory: Path) -> Callable[[bytes], None]:
    """Return what reads a text as every daemon does."""
    file = directory / "gandiva.yaml"

    def read(case: bytes) -> None:
        file.write_bytes(case)
        try:
            config = load_config(file)
        except ConfigError as err:
            first = str(err)
            assert _SENTENCE.match(first) and "Traceback" not in first, first[:200]
            raise
        _use(config)
        outdated(file)

    return read


def _use(config: Config) -> None:
    """What a daemon makes of it at its start."""
    assert config.quantum_ns > 0 and config.refusal_bound_ns >= 0
    for name in ("n1", *config.node.addresses):
        config.node_url(name), config.node_socket(name), config.node_state_dir(name)
    for partition in config.partitions:
        config.trusts(partition)
    assert config.controller_url


@contextlib.contextmanager
def targets() -> Iterator[tuple[Target, ...]]:
    """Yield what takes configurations."""
    with tempfile.TemporaryDirectory(prefix="gandiva-conf-") as directory:
        yield (Target("config", draw, reader(Path(directory)), (ConfigError,)),)
