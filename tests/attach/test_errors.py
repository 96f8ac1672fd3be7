"""What an attached script is told when its checkpoint is not one for it, or cannot be written."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import gandiva_slurm as gandiva
from gandiva_slurm.client import checkpoint, run, vault
from tests.attach.conftest import finish_writing


def attach(width=4, make=torch.optim.SGD, **more):
    model = nn.Linear(width, 2)
    optimizer = make(model.parameters(), lr=0.1)
    return gandiva.attach(model=model, optimizer=optimizer, **more), model


def save(batches=2, **options):
    """Save after so many mini-batches; return the directory."""
    run, _ = attach(**options)
    for _ in run.steps(range(batches)):
        run.save()
    finish_writing()
    return newest()


def newest():
    return sorted(Path(gandiva.checkpoint_dir).glob("*-*"))[-1]


@pytest.fixture
def saved(fresh):
    """A checkpoint, whose data nobody may touch."""
    fresh()
    path = save()
    fresh()
    data = {file: file.read_bytes() for file in path.glob("*.data")}
    yield path
    assert data and {file: file.read_bytes() for file in path.glob("*.data")} == data


def test_changed_model_stops_the_script_and_nothing_is_touched(saved):
    with pytest.raises(gandiva.BadCheckpoint) as info:
        attach(width=5)
    assert str(info.value) == (
        "the model has changed since it was saved: weight was torch.float32 [2, 4] "
        "and is torch.float32 [2, 5] (GANDIVA_ON_BAD_CHECKPOINT=restart starts anew)"
    )


def test_changed_optimizer_is_told(saved):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1)
    with pytest.raises(
        gandiva.BadCheckpoint, match=r"the optimizer has changed .* group 0 was 2 parameters and is 1"
    ):
        gandiva.attach(model=model, optimizer=optimizer)


def test_optimizer_of_another_kind_is_told(saved):
    with pytest.raises(gandiva.BadCheckpoint, match=r"the optimizer has changed .* was a SGD and is a Adam"):
        attach(make=torch.optim.Adam)


class Measured:
    """Something a script saves, whose class may be gone when it is loaded."""


def test_what_cannot_be_unpickled_is_told(saved, fresh, monkeypatch):
    monkeypatch.setattr(run, "_on_save", [Measured])
    save(batches=3)
    fresh()
    monkeypatch.delitem(globals(), "Measured")
    with pytest.raises(gandiva.BadCheckpoint, match=r"cannot be loaded: AttributeError: .*Measured"):
        attach()


@pytest.mark.parametrize("wish", ["", "restart"])
def test_what_one_rank_cannot_take_no_rank_takes(wish, saved, monkeypatch, capsys):
    """As of stages of a pipeline, one of which has changed: each is of its own rank."""
    monkeypatch.setenv("GANDIVA_ON_BAD_CHECKPOINT", wish)
    other = "the model has changed since it was saved: stage 1 has grown"

    def exchange(mine):
        return [mine, other if mine == "" else mine]

    monkeypatch.setattr(vault, "_exchange", lambda world: exchange)
    if not wish:
        with pytest.raises(gandiva.BadCheckpoint, match=other):
            attach()
        return
    attach()
    said = capsys.readouterr().err
    assert f"{other}; it starts anew, as GANDIVA_ON_BAD_CHECKPOINT says" in said
    assert "goes on from" not in said


def test_new_and_missing_parts_are_told(saved, fresh):
    with pytest.raises(gandiva.BadCheckpoint, match=r"attach\(\) gets the scaler only now"):
        attach(scaler=torch.amp.GradScaler("cpu"))
    fresh()
    with pytest.raises(gandiva.BadCheckpoint, match=r"attach\(\) gets the optimizer no longer"):
        gandiva.attach(model=nn.Linear(4, 2))


def test_starting_anew_is_asked_for_and_counts_on_above(saved, fresh, monkeypatch, capsys):
    monkeypatch.setenv("GANDIVA_ON_BAD_CHECKPOINT", "restart")
    run, model = attach(width=5)
    before = model.weight.clone()
    for _ in run.steps("a"):
        run.save()
    finish_writing()
    assert torch.equal(before, model.weight)
    assert "starts anew, as GANDIVA_ON_BAD_CHECKPOINT says" in capsys.readouterr().err
    assert checkpoint.place(str(newest()))[0] == checkpoint.place(str(saved))[0] + 1
    monkeypatch.delenv("GANDIVA_ON_BAD_CHECKPOINT")
    fresh()
    assert attach(width=5)[0].steps("a") is not None, "the newest is the new one's"


def test_other_version_and_other_world_stop_the_script(saved, fresh, monkeypatch):
    marker = saved / "rank-0-of-1.json"
    content = json.loads(marker.read_text())
    marker.write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(
        gandiva.BadCheckpoint, match=f"{saved} has version 99, not 1: it wants the gandiva-slurm"
    ):
        attach()
    marker.write_text(json.dumps(content))
    fresh()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = {path: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(gandiva.BadCheckpoint, match=f"{saved} has 1 ranks, and this job has 2: only a"):
        attach()
    assert {path: path.read_bytes() for path in saved.iterdir()} == before
    assert sorted(path.name for path in saved.parent.glob("*-*"))[-1] == saved.name, "nothing else is there"


def test_damaged_one_is_skipped_for_the_one_before(fresh, capsys):
    fresh()
    save(batches=3)
    first, second = sorted(Path(gandiva.checkpoint_dir).glob("*-*"))
    os.truncate(second / "rank-0-of-1.data", 100)
    fresh()
    attach()
    err = capsys.readouterr().err
    assert (
        f"the checkpoint {second} is damaged and skipped: the data of rank 0 is not what was written" in err
    )
    assert f"goes on from {first}: epoch 0, mini-batches done: 2" in err


def test_half_one_is_left_out_and_told(saved, capsys):
    half = saved.with_name(f"{saved.name.split('-')[0]}-{checkpoint.place(str(saved))[0] + 5:09d}-0.0")
    half.mkdir()
    (half / "rank-0-of-1.data").write_bytes(b"begun")
    attach()
    err = capsys.readouterr().err
    assert f"what was saved last in {saved.parent} is not whole, and is left out" in err
    assert f"goes on from {saved}: " in err


def test_one_that_this_rank_does_not_see_yet_is_looked_for(saved, fresh, monkeypatch, capsys):
    """Another rank, on the node that wrote it, does."""
    save(batches=3)
    fresh()
    newer, real = newest(), checkpoint._entries
    monkeypatch.setattr(
        checkpoint, "_entries", lambda path: [name for name in real(path) if name != newer.name]
    )

    def exchange(mine):
        return [mine, [str(newer), str(saved)] if isinstance(mine, list) else mine]

    monkeypatch.setattr(vault, "_exchange", lambda world: exchange)
    assert checkpoint.complete(attach()[0]._vault.store)[0].path == str(saved)
    assert f"goes on from {newer}: " in capsys.readouterr().err


def test_continuation_that_cannot_be_the_same_is_told(saved, capsys):
    torch.set_num_threads(2)
    attach()
    err = capsys.readouterr().err
    assert "need not go on to the last bit as it would have: threads 1 then, 2 now" in err


def test_failed_save_is_told_and_training_goes_on(fresh, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GANDIVA_CHECKPOINT_DIR", str(tmp_path / "file" / "below"))
    fresh()
    run, _ = attach()
    for _ in run.steps("abc"):
        run.save()
    finish_writing()
    assert run.batch == 3
    assert f"not saved, training goes on: no checkpoint in {tmp_path}/file/below: Not a directory" in (
        capsys.readouterr().err
    )


def test_failed_on_save_is_told_and_training_goes_on(fresh, capsys):
    fresh()

    @gandiva.on_save
    def broken():
        raise ValueError("no accuracy yet")

    run, _ = attach()
    for _ in run.steps("abc"):
        run.save()
    finish_writing()
    assert run.batch == 3
    assert "not saved, training goes on: no accuracy yet" in capsys.readouterr().err
    assert list(Path(gandiva.checkpoint_dir).glob("*-*")) == []


def test_what_cannot_be_pickled_is_told(fresh, capsys):
    fresh()
    gandiva.on_save(lambda: lambda: "a function")
    run, _ = attach()
    for _ in run.steps("abc"):
        run.save()
    assert "not saved, training goes on: " in capsys.readouterr().err
    assert list(Path(gandiva.checkpoint_dir).glob("*-*")) == []


def test_restart_that_finds_nothing_says_so(fresh, monkeypatch, capsys):
    fresh()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    attach()
    assert f"started again, and begins anew: no checkpoint of it in {gandiva.checkpoint_dir}" in (
        capsys.readouterr().err
    )


def test_sharded_model_is_not_saved(fresh, capsys):
    class ZeroRedundancyOptimizer(torch.optim.SGD):
        """Looks like torch's, which shards its state over ranks."""

    fresh()
    attach(make=ZeroRedundancyOptimizer)
    assert (
        "cannot be moved: its shards are ZeRO's or the first FSDP's; next: torch" in capsys.readouterr().err
    )


def test_second_training_of_a_script_has_its_own(fresh):
    fresh()
    save()
    save(width=5)
    names = {path.name.rpartition("-0.")[0].rpartition("-")[0] for path in newest().parent.glob("*-*")}
    assert len(names) == 2
    fresh()
    assert attach()[1].weight.shape != attach(width=5)[1].weight.shape
