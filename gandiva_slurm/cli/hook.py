"""`gandiva hook install`: the hook as one file in a Python's own packages, where PYTHONPATH does not reach.

Python runs a .pth file's line at start, also with -I and where a script sets PYTHONPATH anew.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import click

import gandiva_slurm
from gandiva_slurm.model.errors import GandivaError

FILE = "gandiva-hook.pth"
#: A Python on a slow file system starts within this.
ANSWER_S = 30.0
_HOOK = Path(gandiva_slurm.__file__).parent / "client" / "hook" / "sitecustomize.py"
#: Under another name the hook hands over to nobody. A file that is gone meanwhile is nothing to complain of.
_LINE = (
    "import os; p = {path!r}; {{'GANDIVA_SOCKET', 'GANDIVA_TRIAL'}} & set(os.environ) and os.path.exists(p) "
    "and exec(compile(open(p).read(), p, 'exec'), {{'__name__': 'gandiva_pth', '__file__': p}})\n"
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("what", type=click.Choice(["install", "remove"]))
@click.argument("python", default="python3")
def hook(what: str, python: str) -> None:
    """Let PYTHON (the one on PATH) find mini-batch boundaries in every job of Gandiva, or no longer.

    Needed only where the hook that comes by PYTHONPATH is lost: `python -I`, or a script that sets it anew.
    """
    path = _packages_of(python) / FILE
    try:
        if what == "install":
            path.write_text(_LINE.format(path=str(_HOOK)))
        else:
            path.unlink(missing_ok=True)
    except OSError as err:
        raise GandivaError(f"cannot {what} {path}: {err.strerror}; next: name a venv's Python") from err
    click.echo(f"{path} {'written' if what == 'install' else 'removed'}")


def _packages_of(python: str) -> Path:
    """Ask a Python where its own packages are."""
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    try:
        told = subprocess.run(
            ask, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=ANSWER_S
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as err:
        raise GandivaError(f"{python!r} does not run as Python: {err}; next: name another") from err
    if not Path(told).is_absolute():
        raise GandivaError(f"{python!r} does not run as Python: it answers {told!r}; next: name another")
    return Path(told)
