"""Where the tensors of a training are looked for: what was seen, variables, graphs, at last the heap."""

import weakref

import pytest
import torch

from gandiva_slurm.client import roots
from gandiva_slurm.client.device import CpuGauge
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.rank import Rank
from tests import attach_recipes as recipes
from tests import offload_kit as kit

pytestmark = pytest.mark.usefixtures("few_objects")


class Hidden:
    """Keeps a tensor where only the heap's walk finds it."""

    __slots__ = ("tensor",)


def test_heap_is_walked_once_and_only_for_much(monkeypatch):
    model, hidden = recipes.net(), Hidden()
    hidden.tensor = torch.zeros(1000)
    hidden.tensor.fill_(3.0)
    device = CpuGauge(torch)
    walked = []
    monkeypatch.setattr(roots, "script_variables", lambda: [])
    monkeypatch.setattr(roots.gc, "get_objects", lambda: walked.append(1) or [hidden.tensor, model[0].weight])
    finder = roots.Roots(torch, device, {1: lambda: model})
    known = sum(value.nbytes for value in model.parameters())
    assert len(finder.find(known + 4000)) == 4 and not walked, "not for so little"
    monkeypatch.setattr(roots, "HEAP_FLOOR", 100)
    for live in (known + 4000, known + 9000):
        assert len(finder.find(live)) == 5 and walked == [1]
    hidden.tensor = None
    assert len(finder.find(known + 9000)) == 4 and walked == [1]


@pytest.fixture
def group(tmp_path):
    """A process group of one rank."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("has_views", [False, True])
def test_nothing_is_looked_for_in_the_place_of_a_reducers_buckets(monkeypatch, group, has_views):
    """At the first park, and at later ones; gradients that are views of them are seen as gradients."""
    looked = []
    monkeypatch.setattr(roots, "script_variables", lambda: looked.append("variables") or [])
    monkeypatch.setattr(roots.gc, "get_objects", lambda: looked.append("heap") or [])
    monkeypatch.setattr(roots, "HEAP_FLOOR", 0)
    model = torch.nn.parallel.DistributedDataParallel(recipes.net(), gradient_as_bucket_view=has_views)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(1, recipes.WIDTH)).sum().backward()
    optimizer.step()
    size = sum(value.nbytes for value in model.parameters())
    finder = roots.Roots(torch, CpuGauge(torch), {1: lambda: model, 2: lambda: optimizer})
    for _ in range(2):
        finder.find((2 if has_views else 3) * size)
        assert not looked
    finder.find(4 * size)
    assert looked == ["variables", "heap"]


def addresses():
    """What is found in the variables of those who call this."""
    haul = roots.Haul(torch, CpuGauge(torch))
    haul.explore(roots.script_variables())
    return set(haul.storages)


def hold_for_a_while():
    """Have tensors in variables; tell whether they were found, and what is left of a deleted one."""
    tensor, box = torch.zeros(3), {"deep": [(torch.ones(3),)]}
    keys = {thing.untyped_storage()._cdata for thing in (tensor, box["deep"][0][0])}
    is_found = keys <= addresses()
    left = weakref.ref(tensor)
    del tensor
    return is_found, left()


def test_variables_of_running_functions_are_found_and_kept_no_longer():
    # A function of its own: pytest's assertions call locals(), whose callers are left alone.
    assert hold_for_a_while() == (True, None)


def test_variables_that_a_script_shows_itself_are_left_alone():
    tensor, shown = torch.zeros(3), locals()
    addresses()
    assert shown.get("tensor", tensor) is tensor

    class Body:
        inside = torch.zeros(4)
        is_found = inside.untyped_storage()._cdata in addresses()

    assert Body.is_found and Body.inside.shape == (4,)


def test_modules_are_watched_for_the_first_steps_only():
    rank, model, late = Rank(""), recipes.net(), torch.nn.Linear(2, 2)
    roots.watch_modules(rank, torch)
    model(torch.zeros(1, recipes.WIDTH))
    rank.seq = roots.WATCHED_BOUNDARIES
    model(torch.zeros(1, recipes.WIDTH))
    late(torch.zeros(2))
    assert {id(module) for module in model.modules()} == set(rank.seen) and id(late) not in rank.seen
    del model
    assert rank.seen == {}


def test_what_only_a_graph_has_saved_is_found_by_it_alone(monkeypatch):
    """The gauge counts what Python cannot see; without the walk along graphs it would be held."""
    monkeypatch.setattr(roots.Haul, "_look_at_graph", lambda self, node: None)
    torch.manual_seed(1)
    with kit.AllStorages() as storages:
        parks = kit.Parks(kit.ExactGauge(storages), 1, 1)
        kit.train(kit.SOLO["kept_graph"], "cpu", 1, parks.between)
    assert parks.said[0][2] > 0


class Odd(torch.Tensor):
    """A tensor that does not tell what it stands on."""

    def untyped_storage(self):
        raise NotImplementedError("no storage here")


def test_tensor_of_an_unknown_kind_is_passed_by():
    haul, sound = roots.Haul(torch, CpuGauge(torch)), torch.ones(2)
    haul.explore([torch.zeros(3).as_subclass(Odd), sound])
    assert list(haul.storages) == [sound.untyped_storage()._cdata]


class Counted(roots.Haul):
    """Counts how often one goes through all that hangs on a training."""

    walks = 0

    def explore(self, things):
        Counted.walks += 1
        super().explore(things)


class Gauge(CpuGauge):
    """Like CUDA's: a little that nothing accounts for is left."""

    slack = 16


def a_training():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        owned = [*model.parameters(), *model.buffers(), *grads]
        states = [value for state in optimizer.state.values() for value in state.values()]
        return {tensor.untyped_storage()._cdata: tensor.nbytes for tensor in [*owned, *states]}

    return model, optimizer, step


def test_what_is_known_of_a_training_is_not_looked_for_again(monkeypatch):
    """Gradients are others at each park; what comes to it beside them is looked for."""
    monkeypatch.setattr(roots, "Haul", Counted)
    monkeypatch.setattr(roots, "script_variables", lambda: [])
    model, optimizer, step = a_training()
    finder = roots.Roots(torch, Gauge(torch), {1: lambda: model, 2: lambda: optimizer})
    walks = 0
    for _ in range(3):
        want = step()
        found = {storage._cdata for storage in finder.find(sum(want.values()))}
        assert found == want.keys()
        walks = walks or Counted.walks
        assert Counted.walks == walks > 0, "once"
    model.append(torch.nn.Linear(8, 8))
    want = step()
    assert {storage._cdata for storage in finder.find(sum(want.values()))} == want.keys()
    assert Counted.walks > walks
    del model[1]
    found = {storage._cdata for storage in finder.find(0)}
    assert len(found) < len(want), "what is gone is not taken"


def test_sparse_gradients_are_taken_at_each_park(monkeypatch):
    """Their indices and values are others after each backward, and they may be sparse from some step on."""
    monkeypatch.setattr(roots, "script_variables", lambda: [])
    monkeypatch.setattr(Gauge, "slack", 1 << 20)
    table = torch.nn.Embedding(8, 4)
    optimizer = torch.optim.SGD(table.parameters(), 0.1)
    finder = roots.Roots(torch, Gauge(torch), {1: lambda: table, 2: lambda: optimizer})
    for is_sparse in (False, True, True):
        table.sparse, table.weight.grad = is_sparse, None
        table(torch.arange(3)).sum().backward()
        optimizer.step()
        grad = table.weight.grad
        parts = [table.weight, *([grad._indices(), grad._values()] if is_sparse else [grad])]
        found = {storage._cdata for storage in finder.find(sum(part.nbytes for part in parts))}
        assert found == {part.untyped_storage()._cdata for part in parts}


def test_what_is_shared_with_other_processes_since_is_refused_all_the_same(monkeypatch):
    monkeypatch.setattr(roots, "script_variables", lambda: [])
    monkeypatch.setattr(Gauge, "slack", 1 << 20)  # it is less than what may be left
    model, optimizer, step = a_training()
    finder = roots.Roots(torch, Gauge(torch), {1: lambda: model, 2: lambda: optimizer})
    live = sum(step().values())
    finder.find(live)
    model[0].weight.share_memory_()
    with pytest.raises(Refused, match="shared with other processes"):
        finder.find(live)


def test_tensors_that_are_looked_for_may_be_swapped():
    """torch refuses that where a weak reference leads to one."""
    model, optimizer, step = a_training()
    step()
    roots.Roots(torch, Gauge(torch), {1: lambda: model, 2: lambda: optimizer}).find(0)
    torch.utils.swap_tensors(model[0].weight, torch.nn.Parameter(torch.zeros(8, 8)))
    assert not model[0].weight.any()
