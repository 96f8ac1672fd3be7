"""How a script would move, read from its text: the lines that say so, and what to add where none does.

What `--gandiva-checkpoint` becomes is settled here as gandiva_request.lua does it at submission; a test holds
the two together.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.model.snapshot import DIRECTORY, OWN_FILES, JobOptions, OwnSignal

#: Signals that jobs catch.
SIGNALS = ("HUP", "INT", "USR1", "USR2", "TERM")
TAKES = "auto, signal[:NAME[@SECONDS[:DIR]]], submitit, self[:DIR] or none"
_ASKED = re.compile(
    rf"auto|signal|submitit|self|none|signal:({'|'.join(SIGNALS)})(@(\d{{1,4}})(:{DIRECTORY})?)?"
    rf"|{OWN_FILES.pattern}",
    re.ASCII,
)
_SIGNAL = re.compile(r"(?:([A-Z]*):)?([A-Za-z0-9]+)@?(\d*)", re.ASCII)
#: The options of sbatch that matter here and take a value, by their letters; `--requeue` and its opposite.
_VALUED, _LETTERS = ("signal", "ntasks", "ntasks-per-node", "nodes"), {"n": "ntasks", "N": "nodes"}
_REQUEUES = ("requeue", "no-requeue")
_GANDIVA = "gandiva-"
#: A script is not read further.
_MOST_BYTES = 4 * 2**20
#: Slurm's own default (sbatch's --signal), and submitit's.
_SIGNAL_S, _SUBMITIT = 60, OwnSignal("USR2", False, 90)


class Line(NamedTuple):
    """A line of a script: its file's name, its number, and its text; the signal that it is about."""

    file: str
    number: int
    text: str
    caught: str = ""

    def __str__(self) -> str:
        """As shown to the user."""
        return f"{self.file}:{self.number}: {self.text.strip()[:100]}"


class Checkpoint(click.ParamType[str]):
    """What --gandiva-checkpoint takes."""

    name = "HOW"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Take it as it is; BadParameter says what it takes."""
        match = _ASKED.fullmatch(value)
        if match is None or not 1 <= int(match[3] or 1) <= 3600:
            self.fail(f"got {value!r}, takes {TAKES}", param, ctx)
        return value


#: What is looked for in a script's text, by what it says: in Python's, or in the batch script's.
_PYTHON, _BATCH = "python", "batch"
_MARKS = {
    "attach": (_PYTHON, re.compile(r"\bgandiva\w*\.attach\(|\bGandivaCallback\(|\bimport attach\b")),
    "trainer": (_PYTHON, re.compile(r"\b\w*Trainer\(")),
    "catches": (_PYTHON, re.compile(rf"\bsignal\(\s*(?:\w+\.)*SIG({'|'.join(SIGNALS)})\b")),
    "checkpoint()": (_PYTHON, re.compile(r"\bdef checkpoint\(")),
    "loads": (
        _PYTHON,
        re.compile(r"\btorch\.load\(|\bload_(?:state|checkpoint)\(|\b(?:resume_from_checkpoint|ckpt_path)="),
    ),
    "traps": (_BATCH, re.compile(rf"^\s*trap\s.*\b(?:SIG)?({'|'.join(SIGNALS)})\b")),
    "requeues": (_BATCH, re.compile(r"scontrol\s+requeue", re.ASCII)),
    "srun": (_BATCH, re.compile(r"^[^#]*\bsrun\b")),
    "submitit": (_BATCH, re.compile(r"SUBMITIT_EXECUTOR=slurm")),
}


@dataclass
class Script:
    """A script as it is tried: how it is run, and what its text says."""

    command: list[str]
    #: whether it is a batch script
    is_batch: bool = False
    #: the first line of each kind in `_MARKS`; of #SBATCH: --requeue, --no-requeue, and nodes, if several
    marks: dict[str, Line] = field(default_factory=dict)
    #: the #SBATCH line that names the signal, which it has caught, and those of --gandiva-NAME
    signal: Line | None = None
    flags: dict[str, tuple[str, Line]] = field(default_factory=dict)
    tasks: int = 1

    @property
    def name(self) -> str:
        """What the user calls it."""
        return " ".join(self.command)


def read(words: Sequence[str]) -> Script:
    """Read the script that a command runs: a command, or a script of its own as sbatch takes it."""
    script = Script(_command(words))
    files = [Path(word) for word in script.command if _is_script(Path(word))]
    batch = next((file for file in files if not _is_python(file) or "#SBATCH" in _text(file)), None)
    if batch is not None:
        _read_batch(script, batch)
        named = re.findall(r"[^\s\"']+\.py\b", _text(batch))
        files += [Path(name) for name in dict.fromkeys(named) if _is_script(Path(name))]
    for file in files:
        if _is_python(file):
            _mark(script, file, _PYTHON)
    return script


def settle(script: Script, asked: str | None = None) -> JobOptions:
    """Return how the job saves itself, as it was asked (None: in its script), or by what that says (auto)."""
    if asked is None:
        asked = script.flags["checkpoint"][0] if "checkpoint" in script.flags else "auto"
    own, is_submitit = own_signal(script), "submitit" in script.marks
    if asked == "auto":
        requeues = "--requeue" in script.marks or "requeues" in script.marks
        if is_submitit or not own or not requeues:
            return JobOptions()
        asked = "signal"
    if asked == "submitit":
        return _by_signal("submitit", (own or _SUBMITIT)._replace(to_batch=False))
    if not asked.startswith("signal"):
        return JobOptions(checkpoint=asked)
    name, _, rest = asked.partition(":")[2].partition("@")
    seconds, _, files = rest.partition(":")
    if not name and own is None:
        raise UsageError(
            "--checkpoint=signal: its script has no #SBATCH --signal; next: name the signal, as in "
            "signal:USR1@60"
        )
    default = own or OwnSignal(name, False, _SIGNAL_S)
    own = OwnSignal(name or default.name, default.to_batch, int(seconds or default.grace_s))
    return _by_signal("signal", own, files)


def own_signal(script: Script) -> OwnSignal | None:
    """Return the signal that the batch script asks Slurm for; None where it is none, or unknown here."""
    match = _SIGNAL.fullmatch(script.signal.caught) if script.signal else None
    if match is None:
        return None
    name = match[2].upper().removeprefix("SIG")
    seconds = int(match[3] or _SIGNAL_S)
    is_known = name in SIGNALS
    grace_s = seconds if 1 <= seconds <= 3600 else 3600
    return OwnSignal(name, "B" in (match[1] or ""), grace_s) if is_known else None


def why_never(script: Script) -> str:
    """Say which line keeps the job from being moved at all, "" where none does."""
    fixed = script.flags.get("migrate")
    if fixed and fixed[0] == "never":
        return f"it asks not to be ({fixed[1]})"
    line = script.marks.get("--no-requeue")
    return f"Slurm may not start it again ({line})" if line else ""


def why_not_tried(script: Script) -> str:
    """Say why a move by its own checkpoint is not tried here, "" where it is."""
    line = script.marks.get("nodes")
    return f"of several nodes it is not tried here ({line})" if line else ""


def _command(words: Sequence[str]) -> list[str]:
    """Return the command that is run; a script that is no program runs as by sbatch, by its first line."""
    first = Path(words[0])
    if not first.is_file() or shutil.which(words[0]):
        return list(words)
    head = _head(first)
    if head.startswith("#!"):
        return [*head[2:].split(), *words]
    if first.suffix == ".py":
        return [shutil.which("python") or "python3", *words]
    raise UsageError(f"{first} is no script: its first line begins with no #!, its name does not end in .py")


def _is_script(path: Path) -> bool:
    """True for a file that is a script, and no program of the PATH's (pyenv's python is one of a shell)."""
    if not path.is_file() or shutil.which(path.name) == str(path):
        return False
    return path.suffix == ".py" or _head(path).startswith("#!")


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" or "python" in _head(path)


def _head(path: Path) -> str:
    return _text(path, 256).split("\n", 1)[0].rstrip()


def _text(path: Path, most_bytes: int = _MOST_BYTES) -> str:
    """Return what a file says, "" where it may not be read: a command may name any."""
    try:
        with path.open("rb") as file:
            return file.read(most_bytes).decode(errors="replace")
    except OSError:
        return ""


def _lines(path: Path) -> Iterator[Line]:
    for number, text in enumerate(_text(path).split("\n"), 1):
        yield Line(path.name, number, text.rstrip())


def _mark(script: Script, path: Path, kind: str) -> None:
    """Note the first line that says something, of each kind; a comment of Python's says nothing."""
    for line in _lines(path):
        if kind == _PYTHON and line.text.lstrip().startswith("#"):
            continue
        for name, (of, mark) in _MARKS.items():
            found = mark.search(line.text) if of == kind else None
            if found is not None:
                caught = found[1] if mark.groups else ""
                script.marks.setdefault(name, line._replace(caught=caught))


def _read_batch(script: Script, path: Path) -> None:
    script.is_batch = True
    _mark(script, path, _BATCH)
    for line, name, value in _options(path):
        if name == "signal":
            script.signal = line._replace(caught=value)
        elif name == "nodes":
            script.marks.pop(name, None)
            script.marks |= {name: line} if value != "1" else {}
        elif name in _REQUEUES:
            for either in _REQUEUES:
                script.marks.pop(f"--{either}", None)
            script.marks[f"--{name}"] = line
        elif name.startswith(_GANDIVA):
            script.flags[name.removeprefix(_GANDIVA)] = (value, line)
        elif value.isdecimal() and len(value) <= 3:
            script.tasks = max(1, int(value))


def _options(path: Path) -> Iterator[tuple[Line, str, str]]:
    """Yield the options of its #SBATCH lines that matter, as sbatch reads them: line, name, value.

    Several are on a line, a comment may stand behind them; the last one of a name counts. No line behind the
    first command is read. The same as signal_line of gandiva_request.lua.
    """
    for line in _lines(path):
        if not re.match(r"#SBATCH\s", line.text):
            if re.match(r"\s*[^\s#]", line.text):
                return
            continue
        words = re.sub(r"[\"']", "", line.text).split()[1:]
        comment = next((at for at, word in enumerate(words) if word.startswith("#")), len(words))
        awaited = ""
        for word in words[:comment]:
            if awaited:
                yield line, awaited, word
            name, is_there, value = _option(word)
            takes = name in _VALUED or name.startswith(_GANDIVA)
            if (takes and is_there) or name in _REQUEUES:
                yield line, name, value
            awaited = name if takes and not is_there else ""


def _option(word: str) -> tuple[str, bool, str]:
    """Take a word apart: the option's name, "" for none, whether a value is in the same word, and it."""
    if word.startswith("--"):
        name, is_there, value = word[2:].partition("=")
        return name, bool(is_there), value
    name = _LETTERS.get(word[1:2], "") if word.startswith("-") else ""
    return name, bool(name and word[2:]), word[2:] if name else ""


def _by_signal(how: str, own: OwnSignal, files: str = "") -> JobOptions:
    to, where = "B:" if own.to_batch else "", f":{files}" if files else ""
    return JobOptions(checkpoint=f"{how}:{to}{own.name}@{own.grace_s}{where}")
