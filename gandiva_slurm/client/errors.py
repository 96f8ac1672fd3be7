"""What can go wrong with checkpoints, for scripts to catch and for sentences to be read."""


class NotSaved(Exception):
    """A checkpoint could not be written; the text says why. Training goes on. Never leaves the client."""


class BadCheckpoint(RuntimeError):
    """This job has a checkpoint that the script cannot go on from; the text says why.

    GANDIVA_ON_BAD_CHECKPOINT=restart in the environment starts anew instead.
    """


class Refused(Exception):
    """Memory cannot be moved off the device; the text says why. Never leaves the client."""
