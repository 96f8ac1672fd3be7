"""Runs a program again and again, as a script with several trainings does. Usage: again.py PROGRAM..."""

import subprocess
import sys

while True:
    subprocess.run([sys.executable, *sys.argv[1:]], check=False)
