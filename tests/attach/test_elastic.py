"""Trainings that go on with another number of ranks: samples, global batches and losses as with one rank."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, DistributedSampler

import gandiva_slurm as gandiva
from gandiva_slurm.client.elastic import Deal
from gandiva_slurm.client.rank import this_rank
from gandiva_slurm.wire.page import TIER_REQUEUE, W_ELASTIC, W_SEQ, W_TIER_USED, W_USER_STEPS
from tests import elastic_train, patience
from tests.attach.conftest import finish_writing
from tests.attach.test_requeue import Room
from tests.slow import slow

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120


def start(path, life, world, *options):
    """Run the ranks of one life of the job to their end; return what each noted, by kind."""
    argv = [sys.executable, str(ROOT / "tests/elastic_train.py"), ",".join(elastic_train.KINDS)]
    argv += [str(path / f"life{life}"), *options, "--store", str(path / f"store{life}")]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SLURM_RESTART_COUNT": str(life)}
    env |= {"GANDIVA_CHECKPOINT_DIR": str(path / "checkpoints"), "SLURM_JOB_ID": "5"}
    gangs = [{"RANK": str(rank), "WORLD_SIZE": str(world)} for rank in range(world)] if world > 1 else [{}]
    ranks = [subprocess.Popen(argv, env=env | gang, stderr=subprocess.PIPE, text=True) for gang in gangs]
    try:
        said = [rank.communicate(timeout=DEADLINE_S * patience.slowness())[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world, "\n".join(said)
    return noted([(path / f"life{life}.{rank}").read_text() for rank in range(world)]), said[0]


def noted(ranks):
    """Join what ranks noted: by kind, of each global batch its epoch, its loss and its samples."""
    batches = {kind: [] for kind in elastic_train.KINDS}
    is_open = dict.fromkeys(batches, False)
    for lines in zip(*[text.splitlines() for text in ranks], strict=True):
        for line in lines:
            kind, epoch, _, loss, is_last, seen = line.split()
            if not is_open[kind]:
                batches[kind].append([int(epoch), 0.0, []])
                is_open[kind] = True
            batch = batches[kind][-1]
            batch[1] += float.fromhex(loss) / len(ranks)
            batch[2] += [int(index) for index in seen.split(",") if index != "-"]
        is_open[kind] = is_last == "0"
    return batches


@pytest.fixture
def room(tmp_path):
    """One job and its node."""
    room = Room(tmp_path)
    yield room
    room.close()


@pytest.fixture
def alone(fresh, monkeypatch):
    """Each training by one rank, undisturbed."""
    monkeypatch.delenv("GANDIVA_CHECKPOINT_DIR")
    fresh()
    torch.set_default_dtype(torch.float64)
    lines = []
    for kind in elastic_train.KINDS:
        elastic_train.train(kind, lines.append, most=elastic_train.GLOBAL_BATCH)
    torch.set_default_dtype(torch.float32)
    return noted(["\n".join(lines)])


@slow("24 s; the gang below goes from two ranks to one, the deals' arithmetic for 1 to 8 ranks follows")
def test_two_ranks_then_one_then_two(tmp_path, alone):
    """Stopped twice within epochs; DistributedDataParallel and FSDP2, up to three samples at once."""
    lives = [(2, 3), (1, 2), (2, 0)]
    found = {kind: [] for kind in elastic_train.KINDS}
    for life, (world, stop) in enumerate(lives):
        batches, said = start(tmp_path, life, world, "--stop", str(stop))
        for kind, more in batches.items():
            found[kind] += more
        assert (f"goes on with {world} ranks, saved by" in said) == (life > 0)
    for kind, batches in found.items():
        check(batches, alone[kind])


@slow("13 s; cluster/test_resizing does it on Slurm")
def test_gang_told_to_leave_is_started_with_one_rank(room, alone):
    room.script = "tests/elastic_train.py"
    room.start("shards", "--step-ms", "200", world=2)
    views = room.leave()
    assert room.node.gang.phase == "parked", room.node.gang.last_error
    assert {(view[W_TIER_USED], view[W_ELASTIC]) for view in views} == {(TIER_REQUEUE, 1)}
    room.kill()
    before = [room.lines("moved", rank) for rank in range(2)]
    room.start("shards", restart=1)
    room.finish()
    after = room.lines("moved")[len(before[0]) :]
    assert len(after) > 1
    lives = (["\n".join(lines) for lines in life] for life in (before, [after]))
    check([batch for life in lives for batch in noted(life)["shards"]], alone["shards"])


def check(batches, alone):
    """The same samples in the same global batches; losses that differ by the order of their sums, no more."""
    epochs, losses, samples = zip(*batches, strict=True)
    epochs_alone, losses_alone, samples_alone = zip(*alone, strict=True)
    assert (epochs, samples) == (epochs_alone, samples_alone)
    assert losses == pytest.approx(losses_alone, rel=1e-12)


@pytest.mark.parametrize("most", [1, 2, 9])
def test_gradient_is_the_global_batchs_for_any_number_of_ranks(most):
    """What ranks 1 to 8 sum up and average, of a batch of 9 and one of 5, is the mean's gradient."""
    data = torch.rand(14, 4, dtype=torch.float64)
    for world in range(1, 9):
        weights = torch.ones(4, dtype=torch.float64, requires_grad=True)
        for rank in range(world):
            for piece in Deal(9, most, world).pieces(rank, len(data)):
                part = data[piece.start : piece.stop]
                (mse_loss(part @ weights, part[:, 0]) * piece.share / world).backward()
        got, weights.grad = weights.grad, None
        for batch in data[:9], data[9:]:
            mse_loss(batch @ weights, batch[:, 0]).backward()
        assert torch.allclose(got, weights.grad, rtol=1e-13), world


def test_loss_curve_in_single_precision():
    """Two epochs with other numbers of ranks at each step, against one rank: other sums, the same curve."""
    torch.manual_seed(0)
    data = torch.rand(300, 8)
    curves = []
    for worlds in ([1], [2, 5, 1, 8, 3, 7, 4, 6]):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        curve = []
        for step in range(2 * 19):
            done, world, loss = step % 19 * 16, worlds[step % len(worlds)], 0.0
            optimizer.zero_grad()
            for rank in range(world):
                for piece in Deal(16, 3, world).pieces(rank, len(data[: done + 16]), done):
                    x = data[piece.start : piece.stop]
                    part = mse_loss(model(x)[:, 0], x.sum(1)) * piece.share / world
                    part.backward()
                    loss += part.item()
            optimizer.step()
            curve.append(loss)
        curves.append(curve)
    assert curves[0] != curves[1]
    assert curves[0][-1] < curves[0][0] / 2
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)


def test_order_is_distributed_samplers():
    data = range(50)
    for epoch in (0, 3):
        ours = gandiva.ElasticSampler(data, 8, seed=5)
        theirs = DistributedSampler(data, 1, 0, seed=5)
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        assert [index for indexes in ours for index in indexes] == list(theirs)
        assert len(ours) == len(list(ours)) == 7


def test_sampler_that_can_give_nothing_is_refused():
    with pytest.raises(ValueError, match="global_batch and max_per_rank are 1 or more"):
        gandiva.ElasticSampler(range(8), 4, max_per_rank=0)


class Read(torch.utils.data.Dataset):
    """Numbers, and which of them were read in this process."""

    def __init__(self, samples):
        self.samples, self.read = samples, []

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        self.read.append(index)
        return index


class Late(DataLoader):
    """A loader that asks its sampler when its first batch is wanted, as accelerate's."""

    def __iter__(self):
        yield from super().__iter__()


@pytest.fixture
def trained(fresh):
    """Train one epoch, up to so many samples seen, saved at each boundary; return them, and what was read."""

    def _trained(stop=None, most=3, epochs=1, make=DataLoader, samples=20, seed=0):
        fresh()
        data = Read(samples)
        sampler = gandiva.ElasticSampler(data, 8, most, seed=seed)
        loader = make(data, batch_sampler=sampler)
        run = gandiva.attach(model=torch.nn.Linear(1, 1), loader=loader)
        seen = []
        for _ in run.epochs(epochs):
            for number, indexes in enumerate(run.steps(loader), run.batch):
                assert number == run.batch < len(loader)
                if len(seen) == stop:
                    finish_writing()
                    return seen, data.read
                seen += indexes.tolist()
                run.save()
        finish_writing()
        return seen, data.read

    return _trained


@pytest.mark.parametrize("make", [DataLoader, partial(DataLoader, num_workers=2), Late])
def test_what_is_done_is_left_out_or_replayed(trained, make):
    """Stopped in the second global batch of three, and at its end; with other pieces, then with the same."""
    is_here = isinstance(make, type)
    want = [index for indexes in gandiva.ElasticSampler(range(20), 8) for index in indexes]
    assert trained(stop=10, make=make)[0] == want[:10], "one piece into the second"
    seen, read = trained(stop=8, most=4, make=make)
    assert seen == want[8:16]
    assert read == want[8:20] * is_here, "read is only what is left, and one piece ahead"
    seen, read = trained(most=4, epochs=2, make=make)
    assert seen == want[16:] + want, "the next epoch is a whole one"
    assert read == (want + want) * is_here, "the same pieces are replayed: what they drew is drawn again"


def test_epoch_that_was_done_to_its_end_gives_nothing(trained):
    want, _ = trained()
    assert trained(most=4, epochs=2)[0] == want, "the second's"


@pytest.mark.parametrize(
    ("change", "words"),
    [({"samples": 21}, "samples was 20 and is 21"), ({"seed": 1}, "seed was 0 and is 1")],
)
def test_changed_order_is_told_before_anything_is_trained(trained, change, words):
    trained(stop=8)
    with pytest.raises(gandiva.BadCheckpoint, match=f"ElasticSampler has changed since .*: {words}"):
        trained(**change)


def test_loader_that_lost_its_sampler_is_told(trained, fresh):
    trained(stop=8)
    fresh()
    run = gandiva.attach(model=torch.nn.Linear(1, 1))
    with pytest.raises(gandiva.BadCheckpoint, match="this loader had an ElasticSampler"):
        for _ in run.epochs(1):
            list(run.steps(range(9)))


def test_page_says_pass_by_pass_whether_it_is_elastic(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("GANDIVA_SOCKET", str(tmp_path / "nobody"))
    fresh()
    data = Read(20)
    run = gandiva.attach(model=torch.nn.Linear(1, 1))
    words = this_rank().words
    said = []
    for loader in DataLoader(data, batch_sampler=gandiva.ElasticSampler(data, 8)), DataLoader(data, 8):
        said.append([(words[W_ELASTIC], run.share, run.is_last) for _ in run.steps(loader)])
    assert said == [[(1, 1.0, True)] * 3, [(0, 1.0, True)] * 3]
    assert words[W_USER_STEPS] == 6


def test_boundaries_are_global_batches(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("GANDIVA_SOCKET", str(tmp_path / "nobody"))
    fresh()
    data = Read(20)
    run = gandiva.attach(model=torch.nn.Linear(1, 1))
    loader = DataLoader(data, batch_sampler=gandiva.ElasticSampler(data, 8, max_per_rank=3))
    shares = [run.share for _ in run.steps(loader)]
    words = this_rank().words
    assert (len(shares), run.batch, words[W_SEQ], words[W_USER_STEPS]) == (8, 8, 3, 3)
    assert sum(shares) == pytest.approx(3), "each global batch's pieces weigh one"
