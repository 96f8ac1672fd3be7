"""The control page: the words a node daemon and one rank exchange through 4096 bytes of shared memory.

The page is a memfd made and sealed by gandivad; the rank maps it, gandivad uses only pread and pwrite.
Words are native unsigned 64-bit; every 64-byte line has one writer. ADR 0006 gives the reasons.

This module is imported inside the user's Python, 3.8 and newer: standard library only.
"""

from __future__ import annotations

MAGIC = 0x47414E4449564121  # "GANDIVA!"
VERSION = 1
PAGE_BYTES = 4096
WORD_BYTES = 8
#: AT of a page nobody is asked to park on: no counter ever reaches it.
NEVER = (1 << 64) - 1

# line 0: node, written once but for SPILL
W_MAGIC, W_VERSION, W_INCARNATION, W_RANK, W_WORLD = 0, 1, 2, 3, 4
#: line 0, too, with MEM_CAP: bytes of host memory that it may spill into while it shares its GPU
W_SPILL = 5
# line 1: node. A command is written WORD's twin first: AT2, WORD, AT (the hot path reads AT and THROTTLE).
# THROTTLE: 0 while it has its GPU alone, else its duty in percent; MEM_CAP, in bytes, holds then (0: none).
W_AT, W_WORD, W_AT2, W_WAKE_BY, W_TIER, W_BEAT, W_THROTTLE, W_MEM_CAP = 8, 9, 10, 11, 12, 13, 14, 15
# line 2: rank, every boundary
W_SEQ, W_LAST_NS = 16, 17
# line 3: rank, on a change of state
W_STATE, W_STATE_GEN, W_STATE_SEQ, W_MISSED_GEN = 24, 25, 26, 27
W_RELEASED, W_HELD, W_TIER_USED, W_ERROR = 28, 29, 30, 31
# line 4: rank, once
W_PID, W_START, W_KIND, W_FIRST_NS = 32, 33, 34, 35
#: line 4, too: mini-batches that its training had done before this process, and one; 0 where it cannot know
W_BEGUN = 36
#: line 4, too: by which framework it is saved, a number of FRAMEWORKS; 0: by the script's own word
W_FRAMEWORK = 37
#: line 4, too, but told again and again: when the newest whole file of its own checkpoints was written, in
#: unix seconds, where the job named their directory; NO_FILE: there is none; 0: not known
W_FILE_S, NO_FILE = 38, 1
# line 5: rank. LIVE, PEAK: bytes of its tensors on its devices; PEAK: 0 before it was told, 1 for none. OOMS:
# how often memory ran out.
W_LIVE, W_PEAK, W_USER_STEPS, W_OOMS = 40, 41, 42, 43
#: line 5, too: the most bytes of its tensors that were in host memory, for its GPU was full
W_SPILLED = 39
#: line 5, too: 1 while another number of ranks could go on from what this one would save
W_ELASTIC = 44
#: line 5, too: ms, the smallest time-out of its process groups when it joined; 0 where none is known
W_GROUP_MS = 45
#: line 5, too: 1 while it writes itself to disk, parked; the newest boundary of which that is whole
W_SAVING, W_SAVED = 46, 47
#: lines 6-7: rank's error text, UTF-8, zero-padded.
ERROR_OFFSET, ERROR_BYTES = 48 * WORD_BYTES, 128
#: lines 8-9: why the training cannot be moved, by its rank's word; "" where it can, or it tells nothing.
UNMOVED_OFFSET, UNMOVED_BYTES = 64 * WORD_BYTES, 128
#: words 80 to 207: rank; when its newest boundaries were, by its even clock: boundary N's in N % STAMPS.
W_STAMPS, STAMPS = 80, 128
# commands: WORD = generation << 8 | command
CMD_RUN, CMD_AIM, CMD_COMMIT = 0, 1, 2
# states of a rank
RUN, HOLD, RELEASING, PARKED, RESTORING, LEFT, FAILED, DONE = 0, 1, 2, 3, 4, 5, 6, 7
STATE_NAMES = ("RUN", "HOLD", "RELEASING", "PARKED", "RESTORING", "LEFT", "FAILED", "DONE")
# KIND: what marks this rank's boundaries
KIND_HOOK, KIND_STEPS, KIND_STEP = 1, 2, 3
#: `attach`: every boundary is a state boundary too, where the rank can save itself and go on elsewhere
KIND_RUN = 4
#: Frameworks that save their trainings at a boundary of KIND_RUN, by W_FRAMEWORK.
FRAMEWORKS = ("", "transformers", "lightning", "pytorch_lightning")
# TIER_USED
TIER_HOLD, TIER_TORCH, TIER_VMM, TIER_DRIVER, TIER_FREEZE, TIER_REQUEUE = 0, 1, 2, 3, 4, 5
#: W_TIER alone: park as ever, and write yourself to disk while you are parked (ADR 0059)
TIER_BEHIND = 6
TIER_NAMES = ("hold", "torch", "vmm", "driver", "freeze", "requeue")
#: How the error text of a rank begins that is parked and could not move its memory.
HELD_BECAUSE = "its memory stays on the GPU while it is parked: "


def word(generation: int, command: int) -> int:
    """Pack a command word; `generation` is one larger than any seen in the gang's pages."""
    return generation << 8 | command


def generation_of(value: int) -> int:
    """Return the generation of a command word."""
    return value >> 8


def command_of(value: int) -> int:
    """Return the command of a command word."""
    return value & 0xFF
