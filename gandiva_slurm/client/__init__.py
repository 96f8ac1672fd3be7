"""What runs inside the user's training process, on Python 3.8 and newer.

It needs the standard library and `gandiva_slurm.wire.page` only, never raises an error of its own into the
script (but BadCheckpoint, in `attach`), starts no thread, and goes on without Gandiva whenever in doubt.
"""
