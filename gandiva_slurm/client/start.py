"""Which start of which job this is, and where its checkpoints are."""

from __future__ import annotations

import os
import re
import sys
from typing import Optional

from gandiva_slurm.client.identity import number


def job_id() -> str:
    """Return the job's number as Slurm gives it; "0" outside."""
    return str(number("GANDIVA_JOB", number("SLURM_JOB_ID")))


def restart_count() -> int:
    """Return how often Slurm has started this job again: the token of its incarnation."""
    return number("GANDIVA_RESTART", number("SLURM_RESTART_COUNT"))


def checkpoint_dir() -> Optional[str]:
    """Return the directory of this job's checkpoints, which need not exist yet; None where nobody keeps any.

    GANDIVA_CHECKPOINT_DIR (in it %j is the job's number), else .gandiva/<job> where the job was submitted.
    """
    named = os.environ.get("GANDIVA_CHECKPOINT_DIR")
    if named:
        return os.path.abspath(os.path.expanduser(named.replace("%j", job_id())))
    if not os.environ.get("GANDIVA_SOCKET"):
        return None
    base = os.environ.get("SLURM_SUBMIT_DIR") or os.getcwd()
    return os.path.join(os.path.abspath(base), ".gandiva", job_id())


def script_name() -> str:
    """Return the script's name without its ending: scripts of one job keep their checkpoints apart."""
    stem = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0]
    return re.sub(r"[^A-Za-z0-9_.]", "_", stem).strip("_.") or "script"
