"""`gandiva forecast`: a process of its own that runs gandivactld's engine forward from what it wrote down.

It reads gandivactld's files and writes one of its own; gandivactld is asked nothing, and asks here of jobs
that are not submitted yet (`forecast_door`). Each forecast is made by a child with a bound on its memory and
its time, at the lowest priority unless somebody asked for it: whatever becomes of it, the answer before it
stays, with its age.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import resource
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from gandiva_slurm import logs
from gandiva_slurm.cli import forecast_memory
from gandiva_slurm.cli.forecast_door import Door
from gandiva_slurm.config import Config, load_config
from gandiva_slurm.controller import foretold
from gandiva_slurm.controller.present import read_present
from gandiva_slurm.controller.settings import leader, leader_of
from gandiva_slurm.controller.what_if import NEW
from gandiva_slurm.engine.apply.decider import Leader, ask
from gandiva_slurm.model.errors import ConfigError, GandivaError
from gandiva_slurm.model.wish import NEW_ID, Wish, parse_wish
from gandiva_slurm.sim.forecast.lengths import Lengths, Past
from gandiva_slurm.sim.forecast.memory import Memory
from gandiva_slurm.sim.forecast.ranges import Forecast, Present
from gandiva_slurm.sim.forecast.ranges import forecast as make_forecast

#: From the beginning of one forecast to that of the next, and what one may take of a processor and in all.
#: `WAIT_S`: what its runs may take on a busy machine.
EVERY_S, WORK_S, WAIT_S, DEADLINE_S = 30.0, 20.0, 30.0, 45.0
#: What each of the two forecasts of a `when --if` may take.
WISH_S = 2.5
#: The same of one of a job that is not submitted yet, the reading included: somebody waits at sbatch. Of a
#: processor, in all, and the part that one run may take: one that ends too soon is of no use.
NEW_S, NEW_WAIT_S, NEW_RUN = 0.3, 0.5, 0.5
#: What it may have of memory.
MEMORY_BYTES = 4 << 30
NICE = 19

log = logging.getLogger(__name__)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--once", is_flag=True, help="Make one and exit.")
@click.option("--if", "wish", nargs=2, metavar="JOBID WISH", help="Print as JSON what would be, and exit.")
@click.pass_obj
def forecast(config: str | None, once: bool, wish: tuple[str, str] | None) -> int:
    """Make the forecast that `gandiva when` and `gandiva queue` show, each half minute.

    Runs on the host of gandivactld, as the same user.
    """
    settings = load_config(config)
    _refuse_wrong_user(settings)
    logs.set_up()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    if wish is not None:
        _step_back()
        click.echo(json.dumps(_what_if(settings, *wish)))
        return 0
    if once:
        return int(not _make_apart(settings, is_asked_for=True))
    door = _door(settings)
    while True:
        begun_s = time.monotonic()
        _make_apart(settings, door)
        _wait(door, max(1.0, EVERY_S - (time.monotonic() - begun_s)))


def _refuse_wrong_user(config: Config) -> None:
    """Its file must be one that gandivactld can read and replace."""
    if os.geteuid() != config.slurm_uid():
        name = config.controller.slurm_user
        raise ConfigError(
            f"run as {name} (controller.slurm_user), like gandivactld: setpriv, su or User={name}"
        )


def _step_back() -> None:
    """Leave processors to whatever else wants them."""
    with contextlib.suppress(PermissionError):  # a unit may forbid it: gandivactld's does
        os.nice(NICE)


def _door(config: Config) -> Door | None:
    """Where jobs are asked about that are not submitted yet; None: it cannot be had, and that is logged."""
    try:
        leader(config)  # what it is made of is loaded once, and not by each child
        return Door(Path(config.controller.state_dir), partial(_what_if, config, NEW))
    except GandivaError as err:
        log.warning("sbatch --test-only is answered later: %s", err)
        return None


def _wait(door: Door | None, seconds: float, until: int | None = None) -> bool:
    """Wait for so long, or until this descriptor is ready: True. What is asked meanwhile is answered."""
    if door is not None:
        return door.answer_for(seconds, until)
    return bool(select.select([] if until is None else [until], [], [], seconds)[0])


def _make_apart(config: Config, door: Door | None = None, *, is_asked_for: bool = False) -> bool:
    """Make a forecast in a child; one that is not done in time is ended. True: it is made.

    One that is asked for keeps its priority: at the lowest it would get next to nothing of a busy machine.
    """
    child = os.fork()
    if child == 0:
        if door is not None:
            door.close()
        if not is_asked_for:
            _step_back()
        _end_with(_attempt(config))
    try:
        ready = _wait(door, DEADLINE_S, pid := os.pidfd_open(child))
        os.close(pid)
        if not ready:
            log.warning("no forecast within %g s: the one before stays", DEADLINE_S)
    finally:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and ready:
        log.warning("the forecast was ended by signal %d: the one before stays", os.WTERMSIG(status))
    return status == 0


def _end_with(is_made: bool) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(not is_made))


def _attempt(config: Config) -> bool:
    """Make a forecast within its bounds; what goes wrong is logged."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _bound()
    try:
        make(config)
        return True
    except (GandivaError, OSError, sqlite3.Error) as err:
        log.warning("no forecast, the one before stays: %s", err)
    except MemoryError:
        log.warning("no forecast within %d MiB of memory: the one before stays", MEMORY_BYTES >> 20)
    except Exception:  # the border: whatever it is, the process goes on
        log.exception("no forecast, the one before stays")
    return False


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (round(DEADLINE_S), round(DEADLINE_S)))


def _time_left(work_s: float, wait_s: float) -> Callable[[], float]:
    """From now on, the part that is left of so much of a processor, or of so long, whichever is less."""
    work0_s, began_s = time.process_time(), time.monotonic()

    def left() -> float:
        used = (time.process_time() - work0_s) / work_s, (time.monotonic() - began_s) / wait_s
        return 1 - max(used)

    return left


def _present(config: Config, memory: Memory) -> Present:
    """Read what gandivactld wrote last, and learn from what has ended."""
    read = read_present(config)
    memory.heard({job.job_id: float(job.end_s) for job in read.past})
    lengths = Lengths.of(memory.with_limit(job.job_id, Past(*job[2:])) for job in read.past)
    return Present(read.engine_of, read.now_ns, lengths, read.load_ns, partial(_coarser, read.leader))


def make(config: Config) -> None:
    """Read the present, run forward, write what came out."""
    begun_s, folder = time.monotonic(), Path(config.controller.state_dir)
    memory = forecast_memory.load(folder)
    present = _present(config, memory)
    told = make_forecast(present, present.now_ns, time_left=_time_left(WORK_S, WAIT_S))
    told = memory.corrected(told, present.engine_of())
    took_s = time.monotonic() - begun_s
    meta = _meta(told, present.lengths.past, took_s) | {"errors": len(memory.errors)}
    foretold.write(folder, meta, (job.to_json() for job in told.jobs))
    forecast_memory.save(folder, memory)
    log.info("%d jobs foretold by %d runs in %.1f s", len(told.jobs), told.draws, took_s)


def _what_if(config: Config, job: str, text: str) -> dict[str, object]:
    """What is foretold of a job as it is, and as it is wished, by the same draws; or an error."""
    try:
        _bound()
        if job == NEW:
            return _newcomer(config, text)
        job_id = int(job)
        present = _present(config, forecast_memory.load(Path(config.controller.state_dir)))
        rows: dict[str, object] = {}
        for name, wish in (("now", None), ("then", parse_wish(job_id, text))):
            told = make_forecast(
                replace(present, wish=wish),
                present.now_ns,
                time_left=_time_left(WISH_S, WISH_S),
            )
            row = next((row for row in told.jobs if row.job_id == job_id), None)
            if row is None:
                return {"error": f"Gandiva has no job {job_id} that waits or runs"}
            rows |= {name: row.to_json(), "forecast": {"of_s": told.of_s, "reached_s": told.reached_s,
                                                       "runs": told.draws}}  # fmt: skip
        return rows | {"wish": text}
    except (GandivaError, MemoryError, OSError, ValueError, sqlite3.Error) as err:
        return {"error": str(err) or type(err).__name__}


def _newcomer(config: Config, text: str) -> dict[str, object]:
    """What is foretold of a job that is not submitted yet, as `WhatIf` tells it."""
    left = _time_left(NEW_S, NEW_WAIT_S)
    present = _present(config, forecast_memory.load(Path(config.controller.state_dir)))
    told = json.loads(text)
    with contextlib.suppress(KeyError):  # one that has no name here has no job, nor shares of its own
        told["user"] = pwd.getpwuid(told["uid"]).pw_name
    wish = Wish(NEW_ID, "new", json.dumps({"user": "", **told}))
    made = make_forecast(replace(present, wish=wish), present.now_ns, time_left=left, most=NEW_RUN)
    row = next(row for row in made.jobs if row.job_id == NEW_ID)
    meta = {"of_s": made.of_s, "reached_s": made.reached_s, "runs": made.draws}
    return {"new": row.to_json(), "forecast": meta}


def _coarser(leader: Leader, quantum_ns: int) -> Leader:
    """The policy that decides, with longer quanta."""
    return replace(leader_of(dict(leader.told or {}) | {"quantum_ns": quantum_ns}), ask=ask)


def _meta(told: Forecast, past: int, took_s: float) -> dict[str, object]:
    """What is told of the forecast as a whole."""
    return {
        "of_s": told.of_s,
        "reached_s": told.reached_s,
        "runs": told.draws,
        "cycles": told.cycles,
        "past_jobs": past,
        "took_s": round(took_s, 3),
    }
