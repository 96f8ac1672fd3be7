"""Which job holds each GPU now, in the files that DCGM's exporter and jobstats read (ADR 0056).

- DCGM's exporter (`--hpc-job-mapping-dir`): a file for each GPU, named by its number, with a job's id a line;
  it gives the GPU's figures to each of these jobs.
- jobstats (`/run/gpustat`): a file for each GPU, with the job's id and its user's number; one job alone. Of
  two that share a GPU it is the one that was submitted first.

A GPU that nobody holds has no file. Each file is replaced as a whole; what cannot be written is removed, for
no name is better than a wrong one. All this is done beside the change of hands, which waits for none of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gandiva_slurm.logs import Trouble
from gandiva_slurm.node.context import Node

#: What we have written, or begun to write, in such a directory.
_OURS = re.compile(r"\d{1,5}|\.\d{1,5}\.new")
#: When what could not be done is tried again.
AGAIN_S = 10.0

log = logging.getLogger(__name__)

#: Jobs that hold a GPU, each with its user's number, in the order of their submission.
Jobs = tuple[tuple[int, int], ...]
#: What is in a file for these.
Form = Callable[[Jobs], str]


def of_dcgm(jobs: Jobs) -> str:
    """Return a line for each job."""
    return "".join(f"{job_id}\n" for job_id, _ in jobs)


def of_jobstats(jobs: Jobs) -> str:
    """Return the first job's id and its user's number."""
    return "{} {}\n".format(*jobs[0])


class Files:
    """One such directory. It has to be this user's, and nobody else may write it."""

    def __init__(self, path: Path, form: Form) -> None:
        self.path = path
        self._form = form
        #: what the files have, by GPU; None: not known, all is written anew
        self._told: dict[int, str] | None = None
        self._trouble = Trouble(log, f"{path}: not written", f"{path}: written again")

    def tell(self, holders: Mapping[int, Jobs]) -> bool:
        """Make the files say so; False where that cannot be done."""
        try:
            directory = self._open()
        except OSError as err:
            self._trouble.begins(err.strerror or err)
            self._told = None
            return False
        try:
            self._tell(directory, {gpu: self._form(jobs) for gpu, jobs in holders.items()})
        except OSError as err:
            self._trouble.begins(err.strerror)
            self._told = None
            return False
        finally:
            os.close(directory)
        self._trouble.ends()
        return True

    def _open(self) -> int:
        """Open the directory, and make it where it is missing; OSError: it is not one to be written."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o755)
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(directory)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            os.close(directory)
            raise OSError("others own it, or may write it; chown root and chmod 755 it")
        return directory

    def _tell(self, directory: int, wanted: dict[int, str]) -> None:
        told = self._told
        if told is None:
            left = [name for name in os.listdir(directory) if _OURS.fullmatch(name)]
            for name in left:
                if name.startswith(".") or int(name) not in wanted:
                    _remove(directory, name)
            told = {}
        self._told = None
        for gpu in told.keys() - wanted.keys():
            _remove(directory, str(gpu))
        failure: OSError | None = None
        for gpu, text in wanted.items():
            if told.get(gpu) == text:
                continue
            try:
                _replace(directory, str(gpu), text)
            except OSError as err:
                failure = err
                _remove(directory, str(gpu))
        if failure is not None:
            raise failure
        self._told = wanted


def _replace(directory: int, name: str, text: str) -> None:
    """Write a file as a whole, whatever stands there."""
    fresh = f".{name}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    _remove(directory, fresh)
    try:
        with open(os.open(fresh, flags, 0o644, dir_fd=directory), "w", encoding="ascii") as stream:
            os.fchmod(stream.fileno(), 0o644)
            stream.write(text)
        os.replace(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        _remove(directory, fresh)
        raise


def _remove(directory: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


class Attribution:
    """Keeps the files of a node true for as long as it runs."""

    def __init__(self, node: Node) -> None:
        self._node = node
        settings = node.settings
        kinds = ((settings.dcgm_mapping_dir, of_dcgm), (settings.gpustat_dir, of_jobstats))
        self._files = [Files(path, form) for path, form in kinds if path is not None]
        self._changed = asyncio.Event()
        #: after how long it is tried again though nothing has changed; None: it is not
        self._again_s: float | None = None
        if self._files:
            node.ledger.on_change = self._changed.set
        self._changed.set()

    async def run(self) -> None:
        """Write after each change, for ever; what could not be written again after a while."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._again_s):
                    await self._changed.wait()
            self._changed.clear()
            holders = self.holders()
            done = [await asyncio.to_thread(files.tell, holders) for files in self._files]
            self._again_s = None if all(done) else AGAIN_S

    def holders(self) -> dict[int, Jobs]:
        """Return who holds what by the books, by the numbers of GPUs."""
        found: dict[int, list[tuple[int, int]]] = {}
        for key, hold in self._node.ledger.open.items():
            resident = self._node.residents.get(key)
            if resident is not None:
                for gpu in hold.gpus:
                    found.setdefault(gpu, []).append((key.job_id, resident.processes.uid))
        return {gpu: tuple(sorted(jobs)) for gpu, jobs in found.items()}
