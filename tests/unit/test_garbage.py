"""A daemon with much in its memory: Python looks at all of it rarely, and frees what it has to."""

from __future__ import annotations

import subprocess
import sys

#: Makes as many objects as a queue of some thousand rows, and some that only a look can free.
CODE = """
import gc, weakref
from gandiva_slurm.garbage import look_rarely
class Ring: pass
kept = [{"a": [n]} for n in range(100_000)]
looked = []
gc.callbacks.append(lambda phase, info: looked.append(info["generation"]))
if "{rarely}":
    look_rarely()
    assert gc.get_freeze_count() > 200_000
looked.clear()
rows = [[{"places": [n]} for n in range(20_000)] for _ in range(10)]
print(looked.count(2) // 2, len(looked) // 2)
ring = Ring()
ring.own, known = ring, weakref.ref(ring)
del ring
for _ in range(10):
    more = [{"a": [n]} for n in range(50_000)]
assert known() is None, "a ring stays"
"""


def looks(rarely: str) -> list[int]:
    """Looks at all that there is, and looks in all."""
    words = [sys.executable, "-c", CODE.replace("{rarely}", rarely)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_an_answer_of_many_rows_brings_no_look_at_all_of_it() -> None:
    often, rarely = looks(""), looks("yes")
    assert often[0] >= 1 and rarely[0] == 0
    assert rarely[1] * 20 < often[1], (rarely, often)
