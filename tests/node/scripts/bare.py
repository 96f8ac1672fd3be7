"""Notes work as cheat.py does, and knows nothing of Gandiva. Usage: bare.py JOB OUT"""

import os
import struct
import sys
import time

notes = os.open(f"{sys.argv[2]}/work.{sys.argv[1]}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
while True:
    time.sleep(0.01)
    os.write(notes, struct.pack("=Q", time.monotonic_ns()))
