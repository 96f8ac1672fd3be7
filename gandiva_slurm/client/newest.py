"""How old the newest file of the job's own checkpoints is: looked at by the training process, as its user.

`--gandiva-checkpoint=self:DIR`, or `signal:NAME@SECONDS:DIR`, names the directory; the SPANK plugin hands it
on. The gang's first rank looks there now and then, in a thread of its own, so that a file system that hangs
keeps no mini-batch waiting, and shows on its page when the newest file was written that is whole. Nothing of
root's follows the path.
"""

from __future__ import annotations

import os
import threading
import time
from typing import List, Optional, Tuple

from gandiva_slurm.client.start import job_id
from gandiva_slurm.wire.page import NO_FILE, W_FILE_S

#: Between two looks, in seconds.
LOOK_S = 10.0
#: A file that was written to in the last of these seconds may not be whole.
WHOLE_S = 10.0
#: How deep, and at how many entries in all, it is looked; what lies beyond is not seen.
MOST_DEEP, MOST_ENTRIES = 4, 10_000
#: How the name of a file begins or ends that is being written, or is none of the training's.
_BEGINS, _ENDS = (".",), (".tmp", ".new", ".part", ".partial", ".lock", "~")


def directory() -> Optional[str]:
    """Return the directory that the job named, None where it named none; one without / is below its own."""
    named = os.environ.get("GANDIVA_CHECKPOINT_FILES")
    if not named:
        return None
    base = os.environ.get("SLURM_SUBMIT_DIR") or os.getcwd()
    return os.path.join(base, named.replace("%j", job_id()))


def newest(path: str, now_s: float) -> float:
    """Return when the newest whole file below a directory was written, in unix seconds; 0.0: there is none.

    Links are not followed; a directory that cannot be read has no files.
    """
    best_s, left = 0.0, MOST_ENTRIES
    todo: List[Tuple[str, int]] = [(path, 0)]
    while todo and left > 0:
        here, depth = todo.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    if entry.name.startswith(_BEGINS) or entry.name.endswith(_ENDS):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        todo += [(entry.path, depth + 1)] if depth < MOST_DEEP else []
                    elif entry.is_file(follow_symlinks=False):
                        best_s = max(best_s, _written_s(entry, now_s))
        except OSError:
            continue
    return best_s


def watch(words: memoryview, path: str) -> None:
    """Show on a page, for as long as the process lives, when the newest file was written."""

    def look() -> None:
        while True:
            words[W_FILE_S] = int(newest(path, time.time())) or NO_FILE
            time.sleep(LOOK_S)

    threading.Thread(target=look, name="gandiva-newest", daemon=True).start()


def _written_s(entry: "os.DirEntry[str]", now_s: float) -> float:
    try:
        told = entry.stat(follow_symlinks=False)
    except OSError:  # it is gone
        return 0.0
    return told.st_mtime if told.st_size and told.st_mtime <= now_s - WHOLE_S else 0.0
