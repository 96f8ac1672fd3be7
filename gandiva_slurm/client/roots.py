"""Finding the tensors of a training: in what was seen of it, in the script's variables, at last in the heap.

Only storages count; many tensors may share one. Nothing of the script's is called: objects are looked into by
the garbage collector's eyes, for lazy proxies act when they are asked anything.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Callable, Deque, Dict, FrozenSet, Iterable, List, Optional, Tuple

from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.errors import Refused

#: The heap is walked, once, when more than the larger of these is not accounted for: bytes, part of all.
HEAP_FLOOR, HEAP_PART = 64 << 20, 0.02
#: Bounds of what is looked at behind the script's variables: objects, links from one, steps away.
MOST_OBJECTS, MOST_LINKS, MOST_STEPS = 20_000, 4_096, 8
#: Modules are watched for the first forward passes, until so many boundaries have been passed.
WATCHED_BOUNDARIES = 3
#: Frames of these hold none of the script's variables.
_NOT_THE_SCRIPTS = ("gandiva_slurm.client", "torch.")
#: Set in the flags of functions' code; other frames' variables are a dictionary that is theirs.
_CO_OPTIMIZED = 1
#: Who calls one of these may keep the dictionary that Python before 3.13 shows a function's variables in.
_KEEPERS = frozenset(("locals", "vars", "dir", "eval", "exec"))
_PLAIN: Tuple[type, ...] = (type, ModuleType, CodeType, FrameType, str, bytes, int, float, type(None))
_PLAIN += (weakref.ReferenceType, weakref.ProxyType, weakref.CallableProxyType)

Seen = Dict[int, Callable[[], Any]]


class Roots:
    """Where the storages of one training are found."""

    def __init__(self, torch: Any, device: Any, seen: Seen) -> None:
        """`seen` are optimizers, modules and what attach() was given, by weak reference."""
        self._torch, self._device, self._seen = torch, device, seen
        #: What only the heap's walk has found.
        self._late: Seen = {}
        self._has_walked = False
        #: Modules and optimizers met last, by weak reference; True: an optimizer.
        self._owners: List[Tuple[Callable[[], Any], bool]] = []

    def find(self, live: int) -> List[Any]:
        """Return the storages that can be moved off the device; Refused when one that must be cannot.

        `live` is what they and all others were allocated for, in bytes.
        """
        again = self._find_again(live)
        if again is not None:
            return again
        haul = Haul(self._torch, self._device)
        haul.explore([known() for known in list(self._seen.values())])
        for storage in haul.fixed:
            raise Refused(_why_fixed(storage))
        haul.explore([known() for known in list(self._late.values())])
        if live - haul.size - haul.buckets > self._device.slack:
            haul.explore(script_variables())
        if live - haul.size - haul.buckets > max(HEAP_FLOOR, live * HEAP_PART) and not self._has_walked:
            self._walk_heap(haul)
        self._owners = self._owners_of(haul)
        return list(haul.storages.values())

    def _owners_of(self, haul: Haul) -> List[Tuple[Callable[[], Any], bool]]:
        """Return the modules and optimizers that were met, by weak reference, the latter marked.

        Tensors themselves are not kept so: torch refuses to swap one that a weak reference leads to.
        """
        nn, optim = self._torch.nn, self._torch.optim
        modules = [thing for thing in haul.known.values() if issubclass(type(thing), nn.Module)]
        optimizers = [thing for thing in haul.known.values() if issubclass(type(thing), optim.Optimizer)]
        found = [(weakref.ref(module), False) for module in modules]
        return found + [(weakref.ref(optimizer), True) for optimizer in optimizers]

    def _find_again(self, live: int) -> Optional[List[Any]]:
        """Return the storages of the modules and optimizers met last, where that is all there is.

        A training as a rule has the same of these at each park: to look for its tensors in all that hangs on
        them takes five times as long. None: something else is alive, or cannot be moved.
        """
        haul = Haul(self._torch, self._device)
        plain = (self._torch.Tensor, self._torch.nn.Parameter)
        try:
            for known, is_optimizer in self._owners:
                owner = known()
                if owner is not None and not haul.take_all(owner, is_optimizer, plain):
                    return None
        except RuntimeError as err:
            if is_from_signal_handler(err):
                raise
            return None  # a tensor of a device whose memory is not torch's
        left = live - haul.size - haul.buckets
        is_all = bool(self._owners) and not haul.fixed and left <= self._device.slack
        return list(haul.storages.values()) if is_all else None

    def _walk_heap(self, haul: Haul) -> None:
        self._has_walked = True
        tensor = self._torch.Tensor
        # isinstance would ask lazy proxies for their class, and wake them.
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), tensor)]
        late = [thing for thing in tensors if id(thing) not in haul.known]
        haul.explore(late)
        self._late = {id(thing): weakref.ref(thing) for thing in late}


class Haul:
    """The storages met on the way through objects, by their address."""

    def __init__(self, torch: Any, device: Any) -> None:
        """Nothing has been met yet."""
        self._torch, self._device = torch, device
        self.storages: Dict[int, Any] = {}
        #: Storages that may not be resized: shared with other processes, or memory that is not torch's.
        self.fixed: List[Any] = []
        self.size = 0
        #: Bytes of DistributedDataParallel's buckets. C++ alone has them: no look through objects finds them.
        self.buckets = 0
        #: Everything looked at; kept, so that no address is used anew meanwhile.
        self.known: Dict[int, Any] = {}
        self._shared = _shared_storages()
        #: What is still to be looked at, and how many steps away it is: the nearest first.
        self._queue: Deque[Tuple[Any, int]] = deque()
        self._left = MOST_OBJECTS

    def explore(self, things: Iterable[Any]) -> None:
        """Look into things, and what hangs on them."""
        self._left = MOST_OBJECTS
        self._push(things, 0)
        while self._queue:
            thing, steps = self._queue.popleft()
            if id(thing) not in self.known:
                self._look(thing, type(thing), steps)

    def _look(self, thing: Any, kind: type, steps: int) -> None:
        if issubclass(kind, _PLAIN):
            return
        nn, optim = self._torch.nn, self._torch.optim
        if issubclass(kind, self._torch.Tensor):
            self.known[id(thing)] = thing
            try:
                self._look_at_tensor(thing, kind)
            except (RuntimeError, AttributeError, TypeError) as err:
                if is_from_signal_handler(err):
                    raise  # else a kind of tensor without memory of its own: what it has is held
        elif issubclass(kind, (nn.Module, optim.Optimizer)):
            self.known[id(thing)] = thing
            self.buckets += _bucket_bytes(self._torch, thing)
            self._push(_insides(vars(thing)), 0)
        elif self._left > 0 and steps < MOST_STEPS and not kind.__module__.startswith("gandiva_slurm.client"):
            self._left -= 1
            self.known[id(thing)] = thing
            links = _closed_over(thing) if kind is FunctionType else gc.get_referents(thing)
            if len(links) <= MOST_LINKS:
                self._push(links, steps + 1)

    def _push(self, things: Iterable[Any], steps: int) -> None:
        self._queue.extend((thing, steps) for thing in things)

    def _look_at_tensor(self, tensor: Any, kind: type) -> None:
        if tensor.grad_fn is not None:
            self._look_at_graph(tensor.grad_fn)
        if tensor.is_leaf or tensor.retains_grad:
            self._push([tensor.grad], 0)
        if hasattr(kind, "__tensor_flatten__"):
            self._push([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]], 0)
        elif tensor.layout is self._torch.sparse_coo:
            self._push(_parts_of(tensor), 0)
        else:
            self.take_of(tensor)

    def take_all(self, owner: Any, is_optimizer: bool, plain: Tuple[type, ...]) -> bool:
        """Take what a module or an optimizer has by itself; False where a tensor is of another kind."""
        self.buckets += _bucket_bytes(self._torch, owner)
        states = owner.state.values() if is_optimizer else (owner._parameters, owner._buffers)
        things = [thing for state in list(states) if isinstance(state, dict) for thing in state.values()]
        tensors = [thing for thing in things if type(thing) in plain]
        if any(issubclass(type(thing), plain) and type(thing) not in plain for thing in things):
            return False
        strided, sparse = self._torch.strided, self._torch.sparse_coo
        for tensor in (*tensors, *(tensor.grad for tensor in tensors if tensor.is_leaf)):
            # A sparse gradient's two tensors are others after each backward.
            parts = () if tensor is None else _parts_of(tensor) if tensor.layout is sparse else (tensor,)
            for part in parts:
                if part.layout is strided:
                    self.take(part.untyped_storage())
        return True

    def take_of(self, tensor: Any) -> None:
        """Take the memory of a tensor, if it is on the device."""
        if tensor.layout is self._torch.strided and tensor.device.type == self._device.kind:
            self.take(tensor.untyped_storage())

    def take(self, storage: Any) -> None:
        """Take a storage, if it has memory of the device that can come back where it was."""
        key, device = storage._cdata, self._device
        if key in self.storages or storage.device.type != device.kind or not storage.nbytes():
            return
        if not device.is_movable(storage):
            return
        # torch calls every storage on CUDA shared; those that are, multiprocessing knows.
        is_shared = device.kind == "cpu" and storage.is_shared()
        if is_shared or key in self._shared or not storage.resizable():
            self.fixed.append(storage)
            return
        self.storages[key] = storage
        self.size += device.size(storage)

    def _look_at_graph(self, node: Any) -> None:
        """Look at what a graph saved for its backward: some of it no tensor in Python shows."""
        stack = [node]
        while stack:
            node = stack.pop()
            if node is None or id(node) in self.known:
                continue
            self.known[id(node)] = node
            stack.extend(following for following, _ in node.next_functions)
            self._push([getattr(node, "variable", None), *getattr(node, "__dict__", {}).values()], 0)
            for name in _saved_names(type(node)):
                self._push(_saved(node, name), 0)


def _insides(attributes: Dict[str, Any]) -> Iterable[Any]:
    """Return what hangs on a module or an optimizer, with no bound to how much of it are tensors."""
    for name, value in attributes.items():
        if name in ("_parameters", "_buffers", "_modules") and value:
            yield from value.values()
        elif name == "param_groups" and isinstance(value, list):
            yield from (value for group in value for value in group["params"])
        elif name == "state" and isinstance(value, dict):
            yield from (thing for kept in value.values() if type(kept) is dict for thing in kept.values())
            yield value
        else:
            yield value


def _bucket_bytes(torch: Any, owner: Any) -> int:
    """Return what a reducer of DistributedDataParallel keeps for gradients: as much as its parameters."""
    attributes = vars(owner)
    is_reduced = issubclass(type(owner), torch.nn.parallel.DistributedDataParallel)
    if not is_reduced or attributes.get("gradient_as_bucket_view", True):
        return 0  # gradients that are views of the buckets are found as gradients
    return sum(value.nbytes for value in attributes.get("_module_parameters", ()) if value.requires_grad)


def _parts_of(sparse: Any) -> Tuple[Any, Any]:
    """Return the two tensors that a sparse one has its memory in."""
    return sparse._indices(), sparse._values()


_saved_names_of: Dict[type, List[str]] = {}


def _saved_names(kind: type) -> List[str]:
    if kind not in _saved_names_of:
        _saved_names_of[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
    return _saved_names_of[kind]


def _saved(node: Any, name: str) -> List[Any]:
    """Return what a node saved under a name, as it is kept: hooks that would unpack it are not called."""
    try:
        kept = getattr(node, name)
        return [getattr(one, "data", None) for one in (kept if isinstance(kept, (tuple, list)) else [kept])]
    except RuntimeError:
        return []  # the backward has been, and what was saved is gone


def _closed_over(function: Any) -> List[Any]:
    """Return what a function keeps; the module around it is looked at where its frames are."""
    return [link for cell in function.__closure__ or () for link in gc.get_referents(cell)] + list(
        function.__defaults__ or ()
    )


def _shared_storages() -> FrozenSet[int]:
    """Return the addresses of storages that other processes have, too."""
    reductions = sys.modules.get("torch.multiprocessing.reductions")
    cache = getattr(reductions, "shared_cache", {})
    return frozenset(reference.cdata for reference in list(cache.values()) if not reference.expired())


def _why_fixed(storage: Any) -> str:
    size = f"{storage.nbytes() / 2**20:.1f} MiB of its parameters, buffers or optimizer's state"
    if not storage.resizable():
        return f"{size} are memory that is not torch's own (a numpy array, another library's)"
    return f"{size} are shared with other processes"


def script_variables() -> List[Any]:
    """Return what the variables of the functions and modules now running hold, this thread's."""
    found: List[Any] = []
    frame, is_traced = sys._getframe(), sys.gettrace() is not None
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(_NOT_THE_SCRIPTS):
            found.extend(frame.f_globals.values())
            found.extend(_local_variables(frame, is_traced))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _local_variables(frame: FrameType, is_traced: bool) -> List[Any]:
    is_function = frame.f_code.co_flags & _CO_OPTIMIZED
    if sys.version_info >= (3, 13) or not is_function:
        return list(frame.f_locals.values())
    if is_traced or not _KEEPERS.isdisjoint(frame.f_code.co_names):
        return []
    # Before 3.13 this fills a dictionary that outlives the variables: emptied, it keeps nothing alive.
    shown = frame.f_locals
    values = list(shown.values())
    shown.clear()
    return values


def watch_modules(rank: Any, torch: Any) -> None:
    """Note the modules that run forward until some boundaries have been passed.

    Not where anything was compiled: a compiled module would be compiled anew for the hook.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    register = getattr(torch.nn.modules.module, "register_module_forward_pre_hook", None)
    if register is None or (dynamo is not None and dynamo.counters.get("frames")):
        return
    last = rank.seq + WATCHED_BOUNDARIES

    def seen(module: Any, args: Any) -> None:
        rank.see(module)
        if rank.seq >= last:
            handle.remove()

    # torch.compile must call the hook, not trace into it.
    seen._torchdynamo_disable = True  # type: ignore[attr-defined]
    handle = register(seen)
