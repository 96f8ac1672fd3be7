"""What long commands share: results to a file or the screen, a bar where somebody looks."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from gandiva_slurm.model.errors import UsageError


def require_folder(path: str | Path | None) -> None:
    """Say before a long run that its result could not be written. UsageError: what is missing."""
    if not path or str(path) == "-":
        return
    file = Path(path).absolute()
    if not file.parent.is_dir():
        raise UsageError(f"{path}: No such file or directory; make {file.parent} first")
    if file.is_dir():
        raise UsageError(f"{path}: Is a directory; name a file in it")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{path}: Permission denied; name a file that you may write")


def opened(path: Path) -> Any:
    """Open a file to write; UsageError: it cannot be."""
    try:
        return path.open("w", encoding="utf-8")
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror}") from err


@contextlib.contextmanager
def progress(what: str, whole: int) -> Iterator[Callable[..., None] | None]:
    """Show how much is done, where somebody looks: call it with that, and with the whole if it changes."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task(what, total=whole)
        yield lambda done, of=None: bar.update(shown, completed=done, total=of)


def write_result(json_: str | None, result: dict[str, Any], sentence: str) -> None:
    """Write JSON to a file or, for -, alone to the screen; else say the sentence."""
    text = json.dumps(result, indent=1) + "\n"
    if json_ == "-":
        click.echo(text, nl=False)
        return
    if json_:
        with opened(Path(json_)) as file:
            file.write(text)
    click.echo(sentence)
