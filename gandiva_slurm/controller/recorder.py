"""Records what the engine hears and answers, so that `gandiva replay` can ask it again.

Between a key frame (the whole engine) and the next lies a segment: every cycle with its time. A cycle in
which only the clock ticked and nothing was decided is its time alone, and waits for the next that is more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gandiva_slurm.config import NS_PER_S, Config
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.replay import ANEW, GAP, NEXT, START, Heard, frame_of, settings_of, state_is_empty
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.event import CycleTick, Event, PolicyLate

#: A segment is no longer than this, in time and in events: segments are deleted whole.
LONGEST_NS, MOST_EVENTS = 3600 * NS_PER_S, 500_000
#: So many ticks are kept in memory at most before they are written by themselves.
MOST_TICKS = 600

#: What became of a batch.
LOST, WAITS, WRITTEN = "lost", "waits", "written"


@dataclass(frozen=True)
class Frame:
    """The engine before a cycle, as JSON text, and why it was taken down."""

    at_ns: int
    why: str
    engine: str
    settings: str


@dataclass
class Batch:
    """What is to be written of the cycles since the last write."""

    keep_ns: int
    keep_bytes: int
    #: begins a new segment, of which `cycle` is the first
    frame: Frame | None = None
    #: ticks without anything else, before frame and cycle
    ticks: list[int] = field(default_factory=list)
    cycle: Heard | None = None
    #: LOST until the journal has taken it
    fate: str = LOST

    @property
    def is_due(self) -> bool:
        """True when it is not to wait for the next one."""
        return self.frame is not None or self.cycle is not None or len(self.ticks) >= MOST_TICKS


class Recorder:
    """Stands between the loop and the engine. `batch` is None while nothing is to be recorded."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self.batch: Batch | None = None
        self._config = config
        self._engine: Engine | None = None
        self._settings = ""
        self._decider: object = None
        self._since_ns = self._events = 0

    def handle(self, engine: Engine, events: Sequence[Event], now_ns: int) -> list[Action]:
        """Let the engine handle these events; `batch` has then what is to be written of it."""
        part = self._config().controller
        if not part.replay_hours:
            self.batch, self._engine = None, None
            return engine.handle(events, now_ns)
        last, self.batch = self.batch, None
        frame = self._frame(engine, now_ns, last)
        self._engine = None  # until it has answered: one that fails is begun anew
        batch = Batch(round(part.replay_hours * 3600 * NS_PER_S), part.replay_mib << 20, frame)
        if last is not None and last.fate == WAITS and (frame is None or frame.why == NEXT):
            batch.ticks = last.ticks
        actions = engine.handle(events, now_ns)
        self.batch, self._engine = batch, engine
        if engine.decider.was_late:
            events = (PolicyLate(), *events)
        self._events += len(events)
        if frame or actions or any(not isinstance(event, CycleTick) for event in events):
            batch.cycle = Heard(now_ns, tuple(events), tuple(actions))
        elif events:
            batch.ticks.append(now_ns)
        return actions

    def _frame(self, engine: Engine, now_ns: int, last: Batch | None) -> Frame | None:
        settings = settings_of(engine)
        why = self._why_frame(engine, settings, now_ns, last)
        if not why:
            return None
        self._settings, self._since_ns, self._events = settings, now_ns, 0
        self._decider = engine.decider
        return Frame(now_ns, why, frame_of(engine), settings)

    def _why_frame(self, engine: Engine, settings: str, now_ns: int, last: Batch | None) -> str:
        if last is None or engine is not self._engine:
            return ANEW if state_is_empty(engine.state) else START
        if last.fate == LOST:
            return GAP
        if engine.decider is not self._decider:  # what the other policy knew is gone
            return GAP
        is_long = now_ns - self._since_ns >= LONGEST_NS or self._events >= MOST_EVENTS
        return NEXT if is_long or settings != self._settings else ""
