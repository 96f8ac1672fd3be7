"""A job without a client that starts COUNT processes and waits: family.py COUNT.

The file `family.JOB` is there when all are.
"""

import os
import signal
import sys

for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600"])
open(f"family.{os.environ['GANDIVA_JOB']}", "w").close()
signal.pause()
