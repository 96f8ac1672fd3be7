"""How far a training is, from its process by its node into the accounts: what moves take and lose."""

from __future__ import annotations

import itertools
import types
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gandiva_slurm.accounting import losses
from gandiva_slurm.accounting.database import open_database, open_reader
from gandiva_slurm.accounting.ledger import MIGRATIONS, Ledger
from gandiva_slurm.accounting.parts import Window
from gandiva_slurm.accounting.queries import Filter, job_usage
from gandiva_slurm.client import notice, vault
from gandiva_slurm.client.keeper import Keeper
from gandiva_slurm.client.optimizers import StepWatch, steps_before
from gandiva_slurm.client.rank import Rank as ClientRank
from gandiva_slurm.client.run import Run
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import JobOptions, SlurmJob
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import UNKNOWN, Rank
from gandiva_slurm.node.report import make_report
from gandiva_slurm.node.saved import read_job, state_of
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.messages import NodeReport, Resident, decode_report, encode
from tests.node_bench import Bench

S = 10**9
#: The schema of the release before.
BEFORE = 7


# what a process knows


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ClientRank:
    """A rank that never finds its node."""
    monkeypatch.setattr(notice, "_said", set())
    monkeypatch.delenv("GANDIVA_RESTART", raising=False)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    return ClientRank("/nobody")


def begun(client: ClientRank) -> int:
    """What its page says the training had done before; -1: not known."""
    return client.words[wire.W_BEGUN] - 1


def train(make: object, steps: int, state: object = None) -> torch.optim.Optimizer:
    """An optimizer of a small model, that has loaded a state and done some steps."""
    weight = torch.zeros(3, requires_grad=True)
    optimizer = make([weight])  # type: ignore[operator]
    if state is not None:
        optimizer.load_state_dict(state)
    for _ in range(steps):
        weight.grad = torch.ones(3)
        optimizer.step()
    return optimizer  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", (torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop))
def test_an_optimizer_counts_on_from_what_it_has_loaded(
    make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    saved = train(make, 7).state_dict()
    assert steps_before(train(make, 1, saved)) == 7


def test_one_that_counts_nothing_or_from_0_again_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANDIVA_RESTART", raising=False)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert steps_before(train(torch.optim.AdamW, 1)) == 0, "a job's first start begins there"
    assert steps_before(train(torch.optim.SGD, 3)) is None
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert steps_before(train(torch.optim.AdamW, 1)) is None, "anew, or without its optimizer"
    on_device = types.SimpleNamespace(state={0: {"step": torch.ones(1, device="meta")}})
    odd = types.SimpleNamespace(state={0: {"step": "seven"}}), types.SimpleNamespace()
    assert [steps_before(each) for each in (on_device, *odd)] == [None] * 3


def test_its_page_says_where_the_first_optimizer_began(client: ClientRank) -> None:
    watch = StepWatch(client, None)

    def step(optimizer: torch.optim.Optimizer) -> None:
        watch.before(optimizer, (), {})
        optimizer.step()
        watch.after(optimizer, (), {})

    saved = train(torch.optim.AdamW, 7).state_dict()
    first, second = train(torch.optim.AdamW, 0, saved), train(torch.optim.AdamW, 3)
    for optimizer in (first, second, first):
        optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
        step(optimizer)
    assert (begun(client), client.user_steps) == (7, 2)
    del first, optimizer
    step(second)
    assert begun(client) == -1, "another training, whose steps are another's"


def test_an_attached_training_knows_it_from_its_checkpoint(
    client: ClientRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANDIVA_CHECKPOINT_DIR", str(tmp_path))
    seen = []
    for life in range(3):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(life))
        monkeypatch.setattr(vault, "_opened", 0)
        rank, run, kept = ClientRank("/nobody"), Run([], []), vault.open_vault([], lockstep=True)
        assert kept is not None
        run.go_under(rank, kept)
        batches = itertools.count()
        for _ in run.epochs(9):
            for _ in run.steps(range(4)):
                if next(batches) == 5:
                    run.save()
                if rank.user_steps == 7:
                    break
            if rank.user_steps >= 7:
                break
        seen.append((begun(rank), rank.user_steps))
        kept.settle()
    assert seen == [(0, 7), (6, 7), (12, 7)]


def test_a_framework_s_training_knows_it_from_the_framework(
    client: ClientRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANDIVA_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setattr(vault, "_opened", 0)
    monkeypatch.setattr("gandiva_slurm.client.keeper.this_rank", lambda: client)
    keeper = Keeper("transformers", lambda path: None)
    keeper.go_on()
    for total in (40, 41, 42):
        keeper.boundary(total)
    assert (begun(client), client.user_steps) == (40, 2)
    keeper.stop()
    assert begun(client) == -1, "what is trained behind it is another training"


def test_what_was_counted_before_is_no_part_of_it(client: ClientRank) -> None:
    client.boundary()
    client.begin_at(5)
    assert begun(client) == -1


# what its node tells


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A node without processes."""
    return Bench(tmp_path, 2)


def a_rank(number: int, begun: int, steps: int) -> Rank:
    """A rank whose page says how far it is."""
    page = Page.make(JobKey(1, 0), number, 2, 0)
    page.write([(wire.W_SEQ, steps), (wire.W_USER_STEPS, steps), (wire.W_BEGUN, begun + 1)])
    return Rank(ProcId(1000 + number, 1), number, page, None)


@pytest.mark.parametrize(
    ("told", "want"),
    [
        ([(7, 30), (7, 31)], (7, 38)),
        ([(0, 3), (0, 3)], (0, 3)),
        ([(7, 30), (8, 30)], UNKNOWN),
        ([(7, 30), (-1, 30)], UNKNOWN),
        ([(1 << 63, 1), (1 << 63, 1)], UNKNOWN),
    ],
)
def test_its_ranks_have_to_agree(bench: Bench, told: list[tuple[int, int]], want: tuple[int, int]) -> None:
    job = bench.add(1, "user1", (0,))
    for number, (begun, steps) in enumerate(told):
        job.join(a_rank(number, begun, steps), 2, "h:1")
    assert job.stand() == want


def test_of_several_trainings_none_is_the_job_s(bench: Bench) -> None:
    job = bench.add(1, "user1", (0,))
    first = a_rank(0, 7, 30)
    job.join(first, 1, "")
    first.is_alive = False
    job.forget_dead()
    assert job.stand() == (7, 37), "its ranks may end before it does"
    again, _ = read_job(state_of(bench.node)["jobs"][0], "n1")
    assert again.stand() == (7, 37)
    silent = a_rank(1, -1, 0)
    job.join(silent, 1, "")
    silent.is_alive = False
    job.forget_dead()
    assert job.stand() == (7, 37), "it never came to a mini-batch"
    job.join(a_rank(2, 0, 3), 1, "")
    assert job.stand() == UNKNOWN


def test_how_far_it_was_at_its_end_is_told_until_that_is_heard(bench: Bench) -> None:
    job = bench.add(1, "user1", (0,))
    job.join(a_rank(0, 7, 30), 1, "")
    (told,) = make_report(bench.node).residents
    assert told.begun == 7
    bench.clock.now_ns += 5 * S
    bench.watcher.dismiss(job)
    report = decode_report(encode(make_report(bench.node)))
    assert report.finals == ((1, 0, 7, 37, bench.clock.real()),)
    assert state_of(bench.node)["finals"] == [["1.0", 7, 37, bench.clock.real()]]


# what the accounts say


class Book:
    """A ledger, in which job 7 is moved."""

    def __init__(self, path: Path) -> None:
        self.path, self.ledger, self.restart = path, Ledger(path), -1
        self.job = SlurmJob(7, "user1", 1, "lab", "gandiva", "RUNNING", options=JobOptions(gpus=1))

    def run(self, begun: int = -1, steps: int = 50, node: str = "n1", **more: int) -> None:
        """The next run of it begins, and its node tells of it."""
        self.restart += 1
        at_s = 100 * (self.restart + 1)
        times = {"submit_s": at_s - 1, "start_s": at_s, "restart": self.restart}
        self.ledger.record_jobs([replace(self.job, nodes=(node,), **times)], {})
        counts = (at_s * S, 0, 1, 1, steps, 1.0, 0, 0, 0, 0)
        item = Resident(7, self.restart, "RUNNING", (0,), *counts, "", "", begun=begun, **more)
        self.ledger.record_report(NodeReport(node, "b", 0, 0, 0, 1, (item,), (), ()))

    def left(self, by: str, begun: int, reached: int, gone_s: float = 150, node: str = "n1") -> None:
        """That run leaves, and its node tells how far it was, and when all of it had ended."""
        key = JobKey(7, self.restart)
        self.ledger.record_move(key, 1, by)
        final = (*key, begun, reached, round(gone_s * S))
        self.ledger.record_report(NodeReport(node, "b", 0, 0, 0, 1, (), (), (tuple(key),), finals=(final,)))

    def told(self) -> tuple[object, ...]:
        """What acct would say of its moves."""
        with closing(open_reader(self.path)) as db:
            (row,) = job_usage(db, Window(0, 10**6 * S, 10**6 * S), Filter(), ())
        keys = ("migrations", "lost_steps", "ckpt_s", "lost_steps_why", "ckpt_why")
        return tuple(row[key] for key in keys)


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """An empty one."""
    return Book(tmp_path / "ledger.sqlite")


def test_moves_of_each_way_are_summed(book: Book) -> None:
    assert book.run(begun=0) is None and book.told() == (0, 0, 0.0, "", "")
    book.left("self", 0, 130)
    assert book.told() == (0, 0, 0.0, "", ""), "it has not gone on yet"
    book.run(begun=100, save_ns=2 * S)
    assert book.told() == (1, 30, 0.0, "", "")
    book.left("attached", 100, 150)
    book.run(begun=150)
    assert book.told() == (2, 30, 2.0, "", "")
    book.ledger.record_signal(JobKey(7, 2), 300 * S)
    book.ledger.record_signal(JobKey(7, 2), 360 * S)  # it stayed, the first time
    book.left("signal", 150, 400, gone_s=361.25)
    book.run(begun=398)
    assert book.told() == (3, 32, 3.25, "", "")
    book.ledger.close()


@pytest.mark.parametrize(
    ("left", "on", "lost", "why"),
    [
        ((0, 130), {"begun": -1}, None, losses.NO_COUNT),
        ((-1, -1), {"begun": 100}, None, losses.NO_COUNT),
        ((0, -1), {"begun": 100}, None, losses.NO_COUNT),
        ((0, 130), {"begun": -1, "steps": 0}, None, losses.NOT_ON),
        ((0, 130), {"begun": 131}, None, losses.NOT_FITTING),
        ((0, 130), {"begun": 0}, 130, ""),
    ],
)
def test_what_cannot_be_known_is_not_guessed(
    book: Book, left: tuple[int, int], on: dict[str, int], lost: int | None, why: str
) -> None:
    book.run(begun=left[0])
    book.left("self", *left)
    book.run(**on)
    assert book.told() == (1, lost, 0.0, why, "")
    book.left("self", on["begun"], 210)
    book.run(begun=205)
    want = None if lost is None else lost + 5
    assert book.told()[:2] == (2, want), "one that is not known spoils the sum"
    book.ledger.close()


def test_an_end_that_its_node_never_told_is_not_known(book: Book) -> None:
    """Its gandivad was dead then."""
    book.run(begun=0)
    book.ledger.record_move(JobKey(7, 0), 1, "self")
    book.run(begun=40)
    assert book.told() == (1, None, 0.0, losses.NO_END, "")
    book.ledger.close()


def test_a_run_that_was_lost_with_its_node_was_as_far_as_that_had_told(book: Book) -> None:
    """The next one goes on from an image that was kept; when the node comes back it may know better."""
    book.run(begun=20, steps=130)
    book.run(begun=110, node="n2", is_restored=True)
    assert book.told() == (1, 40, 0.0, "", "")
    final = (7, 0, 20, 155, 150 * S)
    book.ledger.record_report(NodeReport("n1", "b", 0, 0, 0, 1, (), (), ((7, 0),), finals=(final,)))
    assert book.told() == (1, 45, 0.0, "", "")
    book.left("image", 110, 200, node="n2")
    book.run(begun=200, is_restored=True, save_ns=0)
    assert book.told()[:2] == (2, 45), "one that left by an image has lost nothing"
    book.ledger.close()


def test_what_was_restored_counts_on_from_where_its_image_was(bench: Bench) -> None:
    job = bench.add(1, "user1", (0,))
    job.join(a_rank(0, 7, 30), 1, "")
    job.image.is_restored, job.image.from_steps, job.image.spent_ns = True, job.steps(), 40 * S
    assert (job.stand(), job.steps()) == ((37, 37), 0)
    again, _ = read_job(state_of(bench.node)["jobs"][0], "n1")
    assert (again.image.is_restored, again.image.from_steps) == (True, 30)
    told = make_report(bench.node).residents[0]
    assert (told.is_restored, told.spent_ns, again.image.spent_ns) == (True, 40 * S, 40 * S)


@pytest.mark.parametrize("by", ("attached", "signal", ""))
def test_a_save_whose_begin_or_end_nobody_saw_has_no_time(book: Book, by: str) -> None:
    book.run(begun=0)
    book.left(by, 0, 10)
    book.run(begun=10)
    assert book.told() == (1, 0, None, "", losses.NO_TIME)
    book.ledger.close()


def test_a_run_that_was_written_while_it_was_parked_and_lost_is_no_move(book: Book) -> None:
    """What it lost is by its node's last word: nobody there told of its end."""
    book.run(begun=0, steps=130, written_ns=2 * S)
    assert book.told() == (0, 0, 2.0, "", "")
    book.run(begun=100, steps=0)
    assert book.told() == (0, 30, 2.0, "", "")
    book.run(begun=150)
    assert book.told() == (0, 30, 2.0, "", ""), "of one that was not written nothing is told, as ever"
    book.left("attached", 150, 200)
    book.run(begun=200, written_ns=S)
    assert book.told()[:2] == (1, 30)
    book.run(begun=-1, steps=0)
    assert book.told() == (1, None, None, losses.NOT_ON, losses.NO_TIME)
    book.ledger.close()


def test_parts_of_a_gang_are_one_run(book: Book) -> None:
    book.run(begun=0, save_ns=2 * S)
    counts = (100 * S, 0, 1, 1, 50, 1.0, 0, 0, 0, 0)
    for begun, save_ns in ((-1, 0), (0, 3 * S)):
        part = Resident(7, 0, "RUNNING", (0,), *counts, "", "", begun=begun, save_ns=save_ns)
        book.ledger.record_report(NodeReport("n2", "b", 0, 0, 0, 1, (part,), (), ()))
    book.left("attached", 0, 130)
    book.left("attached", -1, -1, node="n2")
    book.run(begun=130)
    assert book.told() == (1, 0, 3.0, "", "")
    book.ledger.close()


def test_moves_of_the_release_before_have_happened_and_no_more_is_known(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(open_database(path, MIGRATIONS[:BEFORE])) as db:
        job = (1, 7, 90, 190, 1, None, None, "train", "user1", "lab", "gandiva", "RUNNING", 1, "v100", "n1")
        db.execute(f"INSERT INTO jobs VALUES ({', '.join('?' * 18)})", (*job, 200, 0, "0:0"))
        insert = "INSERT INTO runs (ref, restart, start_s, steps, moved_ns) VALUES (1, ?, ?, 50, ?)"
        db.executemany(insert, [(0, 100, 150 * S), (1, 200, 0)])
    book = Book(path)
    assert book.told() == (1, None, None, losses.NO_END, losses.NO_TIME)
    book.restart = 1
    book.left("self", 50, 80)
    book.run(begun=75)
    assert book.told()[:3] == (2, None, None), "what a new run measures does not make it known"
    book.ledger.close()


def test_an_end_that_is_told_again_writes_nothing(book: Book) -> None:
    book.run(begun=0)
    book.left("self", 0, 10, gone_s=150)
    with closing(open_reader(book.path)) as db:
        (version,) = db.execute("PRAGMA data_version").fetchone()
        book.left("self", 0, 10, gone_s=150)
        assert db.execute("PRAGMA data_version").fetchone()[0] == version
    book.ledger.close()
