"""Every order of events around a node that may be cut off, over the real `slicing.lease`.

Job J runs on node A as J.0; Slurm may give A up and gandivactld start J.1 on node B. Time goes by in ticks.
In each tick any exchange of two may succeed, or not: so anything gets lost for any time, one way of three
stays open while two are shut, and slurmctld may be deaf to a node that hears it. Plans may be under way as
long as they like. Forced is only what a daemon does by itself: it looks at each job's time in every tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gandiva_slurm.slicing import lease
from tests.walk import walk

#: What J.0 does, and what Slurm shows of J.
WORKS, HALTED, ENDED = "works", "halted", "ended"
ON_A, KEPT_BACK, ON_B = "J.0 on A", "J.1 kept back", "J.1 on B"
#: A's clock now, in ticks; all that is kept is how old it is.
_NOW = 1000


class Scenario(NamedTuple):
    """What may happen, and which rule is spoiled. Times are ticks.

    `ways`: whom A exchanges messages with. `gives_up`: Slurm gives up a node that it has not heard for so
    long; `hears`: it says that it hears one that it heard so lately; `keeps`: it keeps a requeued job back so
    long; `silence` and `word` are A's bounds. `dies`: gandivactld and slurmctld do, and come back, and so
    often as `kills` says gandivad of A. `are_all`: A and B are all there are. `can_ask`: A can run scontrol.
    `blind`: gandivactld may not be able to look at Slurm.
    """

    ways: frozenset[str] = frozenset({"slurmctld", "controller", "other"})
    silence: int = 3
    word: int = 2
    gives_up: int = 3
    hears: int = 1
    keeps: int = 2
    dies: bool = False
    kills: int = 0
    are_all: bool = True
    blind: bool = False
    can_ask: bool = True
    has_guard: bool = False
    spoiled: str = ""


class Plan(NamedTuple):
    """A plan under way to A; `echo` is the age of A's report that it rests on."""

    echo: int
    names_it: bool
    is_heard: bool
    fences: bool
    #: the age of A's report when this was sent, where gandivactld cannot look at Slurm; None: it can
    contact: int | None = None


class Picture(NamedTuple):
    """What gandivactld saw in Slurm, and the age of the report of A that it had before; None: nothing."""

    shows: str
    is_heard: bool
    mark: int


class World(NamedTuple):
    """One state of everything; ages count up to a bound."""

    job: str = WORKS
    heard: int = 0
    together: int = 99
    shown: int = 99
    voice: int = 0
    kills: int = 0
    #: gandivad of A is dead
    is_dead: bool = False
    #: B: the newest incarnation it knows, for how long it begins no newer one, when it heard of Slurm last
    newest: int = 0
    promise: int = 0
    voice_b: int = 0
    has_begun: bool = False
    #: Slurm: whether slurmctld lives, when it heard A last, what it shows of J, and since when
    is_up: bool = True
    deaf: int = 0
    shows: str = ON_A
    since: int = 0
    #: gandivactld
    is_led: bool = True
    picture: Picture | None = None
    report: int = 0
    is_placed: bool = False
    blind: int = 0
    plan: Plan | None = None

    @property
    def is_unsafe(self) -> bool:
        """Two incarnations work."""
        return self.job == WORKS and self.has_begun


@dataclass
class Findings:
    """The states seen, those where two work, and those from which J.0 never leaves its halt."""

    states: int = 0
    unsafe: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)


class Explorer:
    """Walks all states of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.bounds = lease.Bounds(scenario.silence, scenario.word)
        self._old = max(scenario.silence, scenario.gives_up, scenario.keeps) + 1

    def run(self) -> Findings:
        """Explore until there is nothing new, or two work at once."""
        first = self._canonical(World())
        seen = walk(first, self._steps, stops_at_unsafe=True)
        print(f"{len(seen.states)} states")
        unsafe = [f"{before}\n -> {after}" for before, after in seen.unsafe]
        stuck = [] if unsafe else [str(world) for world in seen.cut_off_from(_has_left_its_halt)]
        return Findings(len(seen.states), unsafe, stuck)

    def _steps(self, world: World) -> Iterator[tuple[World, bool]]:
        for after in self._events(world):
            yield self._canonical(after), not after.is_unsafe

    def _events(self, world: World) -> Iterator[World]:
        yield from self._time(world)
        yield from self._slurm(world)
        yield from self._controller(world)
        yield from self._node_b(world)
        if not world.is_dead and world.job != ENDED:
            yield from self._node_a(world)
        yield from self._deaths(world)

    # time

    def _time(self, world: World) -> Iterator[World]:
        if world.is_dead and not self.scenario.has_guard:
            return  # another gandivad is there before the next tick
        plan, picture = world.plan, world.picture
        older = world._replace(
            heard=world.heard + 1,
            together=world.together + 1,
            shown=world.shown + 1,
            voice=world.voice + 1,
            voice_b=world.voice_b + 1,
            promise=max(0, world.promise - 1),
            deaf=world.deaf + world.is_up,
            since=world.since + 1,
            report=world.report + 1,
            plan=None if plan is None else _older(plan),
            blind=max(0, world.blind - 1),
            picture=None if picture is None else picture._replace(mark=picture.mark + 1),
        )
        yield older if world.is_dead else self._watch(older)

    def _watch(self, world: World) -> World:
        if world.job == ENDED:
            return world
        if world.job == HALTED and self.scenario.spoiled == "what is shown is not looked at":
            return world
        told = lease.Told(_NOW - world.heard, _NOW - world.together, _NOW - world.shown)
        return world._replace(job=WORKS if lease.may_work(told, self.bounds, _NOW) else HALTED)

    # Slurm

    def _slurm(self, world: World) -> Iterator[World]:
        if not world.is_up:
            return
        yield world._replace(deaf=0)  # slurmd of A answers a ping
        if world.shows == ON_A and world.deaf >= self.scenario.gives_up:
            yield world._replace(shows=KEPT_BACK, since=0)
        if world.shows == ON_A and world.job == WORKS:  # its owner requeues it: J.0 is ended first
            yield world._replace(shows=KEPT_BACK, since=0, job=ENDED)
        if world.shows == KEPT_BACK and world.is_placed and world.since >= self.scenario.keeps:
            yield world._replace(shows=ON_B)

    # gandivactld

    def _controller(self, world: World) -> Iterator[World]:
        if not world.is_led:
            return
        if world.is_up:
            is_heard = world.deaf <= self.scenario.hears
            yield world._replace(picture=Picture(world.shows, is_heard, world.report))
        picture = world.picture
        if picture is None:
            return
        is_held = world.blind and self.scenario.spoiled != "blind plans hold nothing up"
        if picture.shows != ON_A and not world.is_placed and not is_held:
            yield world._replace(is_placed=True, newest=1, voice_b=0)  # B has taken its plan
        if "controller" in self.scenario.ways and world.plan is None:
            echo = 0 if self.scenario.spoiled == "plans are as old as their way" else picture.mark
            plan = Plan(echo, picture.shows == ON_A, picture.is_heard, world.is_placed)
            yield world._replace(plan=plan)
            if not world.is_placed and self.scenario.blind:
                yield world._replace(plan=plan._replace(contact=world.report), blind=self.scenario.word)

    # B

    def _node_b(self, world: World) -> Iterator[World]:
        if world.is_up:
            yield world._replace(voice_b=0)
        is_held = world.promise and self.scenario.spoiled != "nobody keeps its word"
        if world.shows == ON_B and not world.has_begun and not is_held:
            yield world._replace(has_begun=True, newest=1, voice_b=0)

    # A

    def _node_a(self, world: World) -> Iterator[World]:
        if world.plan is not None:
            yield world._replace(plan=None)  # it is lost
            taken = self._take_plan(world, world.plan)
            yield taken
            yield taken._replace(report=0)
        if "slurmctld" in self.scenario.ways:
            yield from self._ask_slurm(world)
        if "other" in self.scenario.ways:
            yield self._ask_other(world)
            if world.is_up:
                yield self._look(world._replace(voice_b=0))

    def _take_plan(self, world: World, plan: Plan) -> World:
        echo = 0 if self.scenario.spoiled == "plans are as old as their way" else plan.echo
        heard = min(world.heard, echo) if plan.is_heard and plan.names_it else world.heard
        shown = min(world.shown, echo) if plan.names_it else world.shown
        after = world._replace(plan=None, voice=0, heard=heard, shown=shown)
        if plan.contact is not None and plan.names_it and world.job == WORKS:
            after = after._replace(together=min(world.together, plan.contact))
        return after._replace(job=ENDED) if plan.fences else after

    def _ask_slurm(self, world: World) -> Iterator[World]:
        is_halted, spoiled = world.job == HALTED, self.scenario.spoiled
        if not self.scenario.can_ask:
            yield world if is_halted and spoiled != "who cannot ask goes on" else world._replace(heard=0)
        elif world.is_up:
            is_heard = world.deaf <= self.scenario.hears or spoiled == "an answer is enough"
            was_heard = lease.was_not_given_up(_NOW - world.heard, self.bounds, _NOW) and not is_halted
            after = world._replace(voice=0)
            if is_heard and (was_heard or spoiled == "heard again is enough"):
                yield after._replace(heard=0)
            else:
                yield self._look(after, is_heard)

    def _look(self, world: World, is_heard: bool = False) -> World:
        if self.scenario.spoiled == "what is shown is not looked at":
            return world
        if world.shows == ON_A:
            return world._replace(shown=0, heard=0 if is_heard else world.heard)
        return world._replace(job=ENDED)

    def _ask_other(self, world: World) -> World:
        if world.newest:
            return world._replace(job=ENDED)
        heard, last_heard = _NOW - world.heard, _NOW - min(world.voice, world.voice_b)
        after = world._replace(promise=self.scenario.word)
        if self.scenario.spoiled == "any answer counts":
            return after._replace(heard=0)
        is_extended = self.scenario.are_all and lease.is_nobodys(heard, self.bounds, last_heard)
        return after._replace(together=0) if is_extended and world.job == WORKS else after

    def _deaths(self, world: World) -> Iterator[World]:
        if self.scenario.dies:
            yield world._replace(is_up=not world.is_up, deaf=0)
            yield world._replace(is_led=not world.is_led, picture=None)
        if world.kills < self.scenario.kills and not world.is_dead:
            yield world._replace(is_dead=True, kills=world.kills + 1)
        if not world.is_dead:
            return
        heard = 0 if self.scenario.spoiled == "a new gandivad begins anew" else world.heard
        yield world._replace(is_dead=False, heard=heard, together=99, shown=99)
        if self.scenario.has_guard and world.job == HALTED:
            yield world._replace(job=WORKS)

    def _canonical(self, world: World) -> World:
        """Ages beyond which nothing changes are one; what is heard of counts by how it compares."""
        old = self._old
        more = max(0, world.heard - old)
        plan, picture = world.plan, world.picture
        return world._replace(
            heard=world.heard - more,
            voice=min(max(0, world.voice - more), old + 1),
            voice_b=min(max(0, world.voice_b - more), old + 1),
            together=min(world.together, self.scenario.word),
            shown=min(world.shown, self.scenario.word),
            deaf=min(world.deaf, self.scenario.gives_up),
            since=min(world.since, self.scenario.keeps) if world.shows == KEPT_BACK else 0,
            report=min(world.report, old),
            plan=None if plan is None else _capped(plan, old, self.scenario.word),
            picture=None if picture is None else picture._replace(mark=min(picture.mark, old)),
        )


def _has_left_its_halt(world: World) -> bool:
    return world.job != HALTED


def _older(plan: Plan) -> Plan:
    return plan._replace(echo=plan.echo + 1, contact=None if plan.contact is None else plan.contact + 1)


def _capped(plan: Plan, old: int, word: int) -> Plan:
    """What is older than it matters is one."""
    contact = None if plan.contact is None else min(plan.contact, word)
    return plan._replace(echo=min(plan.echo, old), contact=contact)
