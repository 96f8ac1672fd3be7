"""The state of the engine as gandivactld wrote it down last, read beside it by another process."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gandiva_slurm.accounting.database import open_reader
from gandiva_slurm.accounting.past import Ended, ended_jobs, load_ns
from gandiva_slurm.config import Config
from gandiva_slurm.controller.books import JOURNAL_NAME, LEDGER_NAME
from gandiva_slurm.controller.settings import engine_settings, leader, leader_of
from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.apply.decider import ask as ask_for_long
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.replay import decided_by
from gandiva_slurm.engine.state.codec import read_events
from gandiva_slurm.engine.state.settings import EngineSettings
from gandiva_slurm.model.bounds import Bounds
from gandiva_slurm.model.errors import GandivaError, UsageError
from gandiva_slurm.model.event import BoundsSeen

#: Bounds are read each ten seconds; in these many cycles before now they are looked for.
MOST_CYCLES = 300


@dataclass(frozen=True)
class Present:
    """What is known at one moment."""

    #: makes the engine anew; it may be used up
    engine_of: Callable[[], Engine]
    now_ns: int
    past: list[Ended]
    #: how long a start takes until its first mini-batch
    load_ns: int
    #: by what it decides
    leader: Leader


def read_present(config: Config) -> Present:
    """Read what gandivactld wrote last. GandivaError says what cannot be read.

    It decides by what it has taken over of gandiva.yaml, which is in its recording; where it records nothing,
    `config` stands for that.
    """
    folder = Path(config.controller.state_dir)
    try:
        with closing(open_reader(folder / JOURNAL_NAME)) as db:
            row = db.execute("SELECT written_ns, engine FROM state").fetchone()
            bounds = _bounds(db) if row is not None else None
            settings, led_by = _decided_by(db) or (engine_settings(config), leader(config))
        with closing(open_reader(folder / LEDGER_NAME)) as db:
            past, took_ns = ended_jobs(db), load_ns(db)
    except sqlite3.Error as err:
        hint = "is gandivactld of this host, and has it run? its user alone may read its files"
        raise GandivaError(f"controller.state_dir: {folder}: {err}; {hint}") from err
    if row is None:
        raise GandivaError(f"{folder / JOURNAL_NAME} has no state yet: gandivactld has not looked at Slurm")
    written_ns, text = row
    led_by = replace(led_by, ask=ask_for_long)

    def engine_of() -> Engine:
        try:
            engine = Engine.from_json(settings, json.loads(text), led_by)
        except (KeyError, TypeError, ValueError) as err:
            raise GandivaError(f"the state in {folder / JOURNAL_NAME} cannot be used: {err!r}") from err
        engine.decider.is_same_life = engine.state.has_read_slurm = True
        engine.state.bounds = bounds
        return engine

    return Present(engine_of, written_ns, past, took_ns, led_by)


def _decided_by(db: sqlite3.Connection) -> tuple[EngineSettings, Leader] | None:
    """What gandivactld decides by now, where it is recorded and this release can read it."""
    row = db.execute("SELECT settings FROM frames ORDER BY frame DESC LIMIT 1").fetchone()
    try:
        return decided_by(row[0], leader_of) if row is not None else None
    except (KeyError, TypeError, ValueError, UsageError):
        return None


def _bounds(db: sqlite3.Connection) -> Bounds | None:
    """What gandivactld heard last of partitions' and reservations' times, where that is recorded."""
    query = "SELECT body FROM cycles ORDER BY cycle DESC LIMIT ?"
    for (body,) in db.execute(query, (MOST_CYCLES,)):
        text = zlib.decompress(body)
        if b'"BoundsSeen"' in text:
            told: list[Any] = json.loads(text)[1][1]
            seen = read_events(event for event in told if event[0] == "BoundsSeen")
            return next((one.bounds for one in seen if isinstance(one, BoundsSeen)), None)
    return None
