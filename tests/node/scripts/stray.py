"""Leaves a process behind that no parent or session ties to the job; its pid goes to $OUT/stray.JOB."""

import os
import time
from pathlib import Path

note = Path(os.environ["OUT"]) / f"stray.{os.environ['GANDIVA_JOB']}"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while os.getppid() != 1:
            time.sleep(0.01)
        note.with_suffix(".tmp").write_text(str(os.getpid()))
        note.with_suffix(".tmp").rename(note)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
