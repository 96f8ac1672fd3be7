"""Sends signals to all processes of this user that were started with a word, as one may from a login.

Usage: pester.py WORD SIGNAL...
"""

import os
import sys
import time
from pathlib import Path

word, numbers = sys.argv[1], [int(number) for number in sys.argv[2:]]


def words(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


while True:
    time.sleep(0.01)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if word in words(pid) and int(pid) != os.getpid():
            for number in numbers:
                try:
                    os.kill(int(pid), number)
                except OSError:
                    break
