"""A bench whose node has parts of spans, with a controller's pen: orders, ranks and their answers."""

import asyncio
import itertools
from dataclasses import replace

from gandiva_slurm.model import span as words
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.part import phase_of
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.span import Spans
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.messages import NodePlan, PlannedJob, decode_plan, encode
from gandiva_slurm.wire.span import SpanOrder, decode_answer, decode_order
from tests.node_bench import QUANTUM_NS, TICKET, Bench

S = 1_000_000_000
SPAN = 50
NODES = (("n1", (0, 1)), ("n2", (0, 1)))


class Floor(Bench):
    """A bench with two GPUs, a span planned on both, and a controller's pen."""

    def __init__(self, directory, gpus=2, client_wait_ns=0):
        super().__init__(directory, gpus, client_wait_ns)
        self.spans = Spans(self.node, self.slicer)
        self.seq = itertools.count(1)
        self.pages = []
        self.plans = itertools.count(1)
        self.planned = {SPAN: self.a_part(SPAN)}
        self.plan()

    def a_part(self, job_id, gpus=(0, 1), restart=0, nodes=NODES):
        return PlannedJob(job_id, restart, "span", 0, gpus, 100 * TICKET, job_id, span=nodes)

    def plan(self, **more):
        jobs = tuple(self.planned.values())
        plan = NodePlan("n1", 1, next(self.plans), QUANTUM_NS, self.node.gpus, jobs, (), "", 0)
        self.planning.take(decode_plan(encode(replace(plan, **more))))
        self.settle()

    def order(self, what, job_id=SPAN, **more):
        """Give an order that is not waited for; what moves afterwards arrives."""
        number = {"epoch_ns": 1, "seq": next(self.seq)} | more
        restart = number.pop("restart", 0)
        order = SpanOrder("n1", what=what, job_id=job_id, restart=restart, **number)
        answer = asyncio.run(self.spans.take(decode_order(encode(order))))
        self.settle()
        return decode_answer(encode(answer))

    def round(self, *told, lease_ms=0):
        spans = tuple((job_id, 0, where) for job_id, where in told)
        return self.order(words.ROUND, 0, spans=spans, lease_ms=lease_ms)

    def resident(self, job_id=SPAN):
        return self.node.residents[JobKey(job_id, 0)]

    def phase(self, job_id=SPAN):
        return phase_of(self.resident(job_id))

    def come_in(self, job_id=SPAN):
        self.round((job_id, words.IN))
        self.order(words.RESERVE, job_id)
        answer = self.order(words.GO, job_id)
        assert answer.ok, answer
        assert self.phase(job_id) == words.ON

    def begin(self, *numbers, world=4, job_id=SPAN, master="h:1"):
        """Ranks with these numbers of a world on several nodes say hello here and pass some boundaries."""
        resident = self.resident(job_id)
        resident.part.has_begun = resident.part.has_processes = True
        for number in numbers:
            page = Page.make(resident.key, number, world, 0)
            page.write([(wire.W_SEQ, 100)])
            proc = ProcId(1000 + len(self.pages), 1)
            resident.join(Rank(proc, number, page, None), world, master)
            self.pages.append(page)

    def say(self, state, seq=None, which=None):
        """Let the ranks answer the order on their pages with this state, at `seq` or where they were told."""
        for page in self.pages if which is None else [self.pages[which]]:
            view = page.read()
            told = view[wire.W_AT] if view[wire.W_AT] < 1 << 60 else view[wire.W_SEQ]
            at = told if seq is None else seq
            gen = wire.generation_of(view[wire.W_WORD])
            page.write([(wire.W_SEQ, at), (wire.W_STATE_SEQ, at), (wire.W_STATE_GEN, gen)])
            page.write([(wire.W_STATE, state)])
        self.settle()

    def commands(self):
        return [wire.command_of(page.read()[wire.W_WORD]) for page in self.pages]

    def park(self, until=words.OFF):
        """Park the span by orders up to a phase."""
        self.order(words.AIM, at=110)
        if until == words.AIMING:
            return
        self.say(wire.HOLD)
        if until == words.HOLDING:
            return
        self.order(words.COMMIT)
        if until == words.RELEASING:
            return
        self.say(wire.PARKED)
        if until == words.RELEASED:
            return
        self.order(words.FREE)

    def wait(self, ns):
        """Let time pass, bounds being looked at."""
        self.clock.now_ns += ns
        self.spans.look()
        self.settle()

    def holds(self, job_id=SPAN):
        """True while the part is in the hold ledger: exactly while it is on .. until FREE."""
        return JobKey(job_id, 0) in self.node.ledger.open


def running(floor, *numbers):
    node = floor(client_wait_ns=1000 * S)
    node.come_in()
    node.begin(*(numbers or (0, 1)))
    node.settle()
    return node
