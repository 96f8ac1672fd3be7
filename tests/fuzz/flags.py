"""Hostile flags through the SPANK plugin under sanitizers and through job_submit.lua: one verdict."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import patience
from tests.fuzz.kit import HERE, SLOW_S, Budget, Tally, mutated
from tests.job_submit import LUA, lua
from tests.unit.option_cases import BAD, GOOD, TAKES
from tests.unit.spank_runner import MISSING, SPANK

MODULE = HERE.parents[1] / "slurm_conf/gandiva_job_submit.lua"
OPTION = "_SLURM_SPANK_OPTION_gandiva_gandiva"
NAMES = tuple(TAKES)
#: stepd.c is included by flags.c; the other sources of the plugin but the dispatcher, as they are.
SOURCES = ("options.c", "check.c", "config.c", "bind.c", "defaults.c", "image.c", "taskenv.c")
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
#: Texts that other kinds of a case begin from: arguments, nodes, answers, variables of a job.
TEXTS: dict[bytes, tuple[bytes, ...]] = {
    b"c": (
        b"socket=/run/gandiva/%n.sock", b"hook=/usr/lib/gandiva/client/hook", b"partitions=gandiva,b",
        b"unbound=wait:60", b"unbound=fail", b"socket=/" + b"%n" * 40, b"socket=/" + b"a" * 107,
    ),
    b"n": (b"n1", b"node-17.example.org", b"a" * 64, b"a,b", b"%n", b"../n1"),
    b"a": (
        b"OK CUDA_VISIBLE_DEVICES=0,1 GANDIVA_JOB=7 GANDIVA_RESTART=0 GANDIVA_NODE=n1", b"OK", b"NO why",
        b"LATER why",
        b"OK LD_PRELOAD=/x GANDIVA_CHECKPOINT_DIR=/c/%u =", b"OK " + b"A=" * 2000,
    ),
    b"r": (b"OK GANDIVA_JOB=7\n", b"LATER no plan yet\n", b"NO why\n", b"READY\n", b"x" * 4095 + b"\n",
    b"OK"),
    b"e": (b"1", b"0,1,2", b"gandiva", b"2(x3)", b"none", b"9" * 600, b"/usr/lib/gandiva/client/hook:/a",
    b":" * 32768),
}  # fmt: skip
PARTITIONS = ("gandiva", "gandiva", "gandiva", "cpu", "gandiva,cpu", "", "x")
#: Text fields of a job that its user fills in, and numbers; Slurm's numbers are unsigned, of 32 bits.
FIELDS = (
    "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket", "admin_comment", "reservation",
    "features",
    "req_nodes", "exc_nodes", "partition", "prefer",
)  # fmt: skip
FIELD_TEXTS = (
    "gres:gpu:v100:2", "gres:gpu:2", "gres/gpu:k80:1", "gpu:2", "gres:gpu:v100:99999999999", "gres:gpu:v100",
    "gres:",
    "gres:gpu:1,gres:mps:2", 'gandiva:{"v":1}', "", "%s%d", "n[1-2]", "a b", 'x gandiva:{"user_hold":true}',
)  # fmt: skip
NUMBERS = (
    "num_tasks", "min_nodes", "max_nodes", "ntasks_per_node", "ntasks_per_tres", "sockets_per_node",
    "shared", "nice",
    "priority", "het_job_offset", "time_limit", "begin_time",
)  # fmt: skip
NUMBER_VALUES = (0, 1, 2, 3, 4, 7, 255, 65534, 65535, 1 << 31, 4294967293, 4294967294, 4294967295)
UIDS = (0, 64, 77, 2001)
#: Cases of one run of the programs.
BATCH = 5_000


def c_case(chance: random.Random) -> bytes:
    """A case of flags.c: most are options."""
    kind = chance.choice((b"o", b"o", b"o", b"o", b"d", *TEXTS))
    if kind in TEXTS:
        return kind + (mutated(chance.choice(TEXTS[kind]), chance)[:60_000].replace(b"\0", b"") or b"x")
    number, value = option(chance)
    return kind + bytes([number]) + value


def option(chance: random.Random) -> tuple[int, bytes]:
    """The number of an option, and a value that nearly fits it, or any other."""
    name, value = chance.choice((*GOOD, *BAD))
    text = value.encode()
    text = mutated(text, chance) if chance.random() < 0.8 else text
    if chance.random() < 0.2:
        name = chance.choice(NAMES)
    return NAMES.index(name), text[:60_000].replace(b"\0", b"")


def lua_case(case: bytes, chance: random.Random) -> bytes:
    """The same option in a job that lacks nothing, or, of other kinds, a job with hostile fields."""
    if case[:1] == b"o":
        desc: dict[str, Any] = {"partition": "gandiva", "tres_per_node": "gres:gpu:v100:2"}
        return _lua(desc, [(NAMES[case[1]], case[2:])], "submit", {}, 2001)
    desc = {"partition": chance.choice(PARTITIONS), "tres_per_node": "gres:gpu:v100:2"}
    for _ in range(chance.choice((1, 2, 4))):
        if chance.random() < 0.5:
            desc[chance.choice(FIELDS)] = _text(chance)
        else:
            desc[chance.choice(NUMBERS)] = chance.choice(NUMBER_VALUES)
    options = [
        (NAMES[number], value)
        for number, value in (option(chance) for _ in range(chance.choice((0, 0, 1, 3))))
    ]
    rec = {"job_id": 7, "job_state": chance.choice((0, 1, 256)), "admin_comment": _text(chance)}
    return _lua(desc, options, chance.choice(("submit", "submit", "modify")), rec, chance.choice(UIDS))


def _text(chance: random.Random) -> bytes:
    text = chance.choice(FIELD_TEXTS).encode()
    return mutated(text, chance)[:5_000].replace(b"\0", b"") if chance.random() < 0.6 else text


def _lua(
    desc: dict[str, Any], options: Sequence[tuple[str, bytes]], call: str, rec: dict[str, Any], uid: int
) -> bytes:
    spank = [f"{OPTION}_{name.replace('-', '_')}=".encode() + value for name, value in options]
    spank += [f"{OPTION}=1".encode()] if options else []
    parts = {"call": call, "desc": desc, "rec": rec, "spank": spank, "uid": uid}
    return ("{" + ", ".join(f"{key} = {_source(value)}" for key, value in parts.items()) + "}").encode()


def _source(value: Any) -> str:
    """As `lua`, which writes text alone; here values are bytes."""
    if isinstance(value, bytes):
        return '"' + "".join(f"\\{byte:03d}" for byte in value) + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{lua(key)}] = {_source(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(_source, value)) + "}"
    return lua(value)


def build(into: Path) -> Path:
    """Build flags.c with the plugin's sources under the sanitizers."""
    program = into / "flags"
    words = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", *SANITIZE, f"-I{SPANK}"]
    files = [str(HERE / "flags.c"), *(str(SPANK / name) for name in SOURCES)]
    subprocess.run(["cc", *words, "-o", str(program), *files], check=True, timeout=300 * patience.slowness())
    return program


def run(
    program: Sequence[str], cases: Sequence[bytes], into: Path, timeout_s: float
) -> tuple[list[str], str]:
    """Give a program its cases; return its lines, and what it died of ("": it did not)."""
    file = into / "cases"
    file.write_bytes(b"".join(struct.pack("<I", len(case)) + case for case in cases))
    options = "quarantine_size_mb=8:detect_stack_use_after_return=1"
    environ = {"ASAN_OPTIONS": options, "UBSAN_OPTIONS": "print_stacktrace=1", "PATH": os.environ["PATH"]}
    with open(file, "rb") as stream:
        try:
            done = subprocess.run(program, stdin=stream, capture_output=True, env=environ, timeout=timeout_s)
        except subprocess.TimeoutExpired as err:
            return (err.stdout or b"").decode(
                errors="replace"
            ).splitlines(), f"not over within {timeout_s:g} s"
    lines = done.stdout.decode(errors="replace").splitlines()
    return lines, "" if done.returncode == 0 else f"ended with {done.returncode}: {_why(done.stderr)}"


def _why(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").splitlines()
    return next((line.strip() for line in lines if "ERROR" in line or "error" in line), "".join(lines[-1:]))[
        :200
    ]


def try_all(cases: Sequence[bytes], jobs: Sequence[bytes], program: Path, tally: Tally) -> None:
    """Give both programs their halves of the cases and compare."""
    into = program.parent
    verdicts, died = run([str(program)], cases, into, 120)
    if died:
        tally.note(f"flags.c {died}", cases[min(len(verdicts), len(cases) - 1)])
    if verdicts and verdicts[-1].startswith("slowest"):
        slowest_s = int(verdicts.pop().split()[1]) / 1e6
        tally.slowest_s = max(tally.slowest_s, slowest_s)
        if slowest_s > SLOW_S:
            tally.note("flags.c took more than a second", b"")
    told, died = run([str(LUA), str(HERE / "flags.lua"), str(MODULE)], jobs, into, 120)
    if died:
        tally.note(f"flags.lua {died}", jobs[min(len(told), len(jobs) - 1)])
    for case, job, verdict, line in zip(cases, jobs, verdicts, told, strict=False):
        tally.cases += 1
        tally.refused += verdict == "1"
        compare(case, job, verdict, line, tally)


def compare(case: bytes, job: bytes, verdict: str, line: str, tally: Tally) -> None:
    """One case: the script made no mistake, and both say the same of an option."""
    code, _, text = line.partition(" ")
    if text.startswith("fault") or code not in ("0", "-1", "2002"):
        tally.note(f"flags.lua: {line[:80]}", job)
    if case[:1] == b"o":
        is_refused = text.startswith(f'told gandiva: --gandiva-{NAMES[case[1]]}: got "')
        if is_refused != (verdict == "1"):
            tally.note(f"--gandiva-{NAMES[case[1]]}: C says {verdict}, Lua says {line[:60]}", case)


@contextlib.contextmanager
def built() -> Iterator[Path]:
    """Yield the program, built for this run."""
    with tempfile.TemporaryDirectory(prefix="gandiva-flags-") as directory:
        yield build(Path(directory))


def fuzz_flags(chance: random.Random, budget: Budget) -> Tally:
    """As `kit.fuzz`, in batches: the programs are others."""
    tally, began_s = Tally("flags"), time.monotonic()
    with built() as program:
        numbers = budget.numbers()
        more = True
        while more:
            batch = [
                case
                for case, _ in zip(iter(lambda: c_case(chance), b""), _upto(numbers, BATCH), strict=False)
            ]
            more = len(batch) == BATCH
            if batch:
                try_all(batch, [lua_case(case, chance) for case in batch], program, tally)
    tally.took_s = time.monotonic() - began_s
    return tally


def _upto(numbers: Iterator[int], most: int) -> Iterator[int]:
    for _, number in zip(range(most), numbers, strict=False):
        yield number


#: Why this part cannot run here; "": it can.
CANNOT = MISSING or ("" if LUA and shutil.which("cc") else "no lua5.1 (make setup installs it)")
