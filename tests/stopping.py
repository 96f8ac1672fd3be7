"""How trainings that run for as long as a test wants are told to end: by a file, all ranks at one place."""

import atexit
import os
import sys
import threading

_left: list[bool] = []


def is_told_to_stop(path: str) -> bool:
    """True on all ranks when one of them has seen the file; they are to ask at the same place."""
    import torch

    seen = torch.tensor(float(os.path.exists(path)))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(seen, torch.distributed.ReduceOp.MAX)
    return bool(seen)


def leave_group() -> None:
    """The last call of a gang over gloo: its process ends here, with 0.

    A thread of PyTorch's drops the last collective's tensors a little later, and needs the interpreter
    for it. An interpreter that is being torn down by then aborts the process (PyTorch 2.13: 19 of 80, with a
    barrier before it 4 of 160). And where its caller returned, its model's end would wait for that thread
    with the interpreter held (5 of 63 hung for ever): nothing of the caller's is dropped any more. What an
    interpreter waits for at its end is waited for here, too: a checkpoint is being written by such a thread.
    """
    import torch

    torch.distributed.destroy_process_group()
    _left.append(True)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()


def _end_at_once() -> None:
    if _left:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


# Before all others that ask for it, and so behind them: their last words are said.
atexit.register(_end_at_once)


class Killed(BaseException):
    """The process ends here, as far as a training within a test can tell."""
