"""What a policy knows from earlier questions, as bytes: for the journal, and for `gandiva replay`.

They are a pickle of the policy object in which the cluster, which is not the policy's own, is only named.
What is read back is built of plain values and of classes of the policy's own package alone: bytes that name
anything else, be it a function of the standard library, are refused before it is called.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from fractions import Fraction
from typing import Any, ClassVar

from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.policy.port import Cluster, Policy

#: Names of things that are not the policy's own, in its bytes.
_CLUSTER = "cluster"
#: Classes of others that policies keep things in.
_PLAIN: tuple[type, ...] = (Counter, Fraction, OrderedDict, defaultdict, deque, frozenset, set)
_BY_NAME = {(kind.__module__, kind.__qualname__): kind for kind in _PLAIN}
#: Besides its own package, a policy may keep what the port and the model are made of.
_OURS = ("gandiva_slurm.policy.", "gandiva_slurm.slicing.", "gandiva_slurm.model.")


class NoMemory(GandivaError):
    """A policy cannot be written down, or not be read back: it begins anew."""


def kept(policy: Policy) -> bytes:
    """Write down what a policy knows. NoMemory: it holds something that cannot be written."""
    out = io.BytesIO()
    try:
        _Writer(out, pickle.HIGHEST_PROTOCOL).dump(policy)
    except Exception as err:  # whatever a policy of others holds
        raise NoMemory(f"policy {policy.name} cannot be written down: {err}") from err
    return out.getvalue()


def recalled(memory: bytes, like: Policy, cluster: Cluster) -> Policy:
    """Return the policy that `kept` wrote down, about this cluster. NoMemory: it is none like that one."""
    try:
        policy = _Reader(io.BytesIO(memory), like, cluster).load()
    except Exception as err:  # whatever bytes of others do
        raise NoMemory(f"what policy {like.name} knew cannot be read: {err}") from err
    if type(policy) is not type(like) or getattr(policy, "name", None) != like.name:
        raise NoMemory(f"what policy {like.name} knew is that of a {type(policy).__name__}")
    return policy


class _Writer(pickle.Pickler):
    def persistent_id(self, obj: Any) -> str | None:
        return _CLUSTER if isinstance(obj, Cluster) else None


#: The reader in Python: the one in C sets attributes of classes, too, where bytes ask for that.
_InPython: Any = pickle._Unpickler


class _Reader(_InPython):  # type: ignore[misc]
    dispatch: ClassVar[dict[int, Any]] = dict(_InPython.dispatch)

    def load_build(self) -> None:
        """Give an object its state; a class keeps its own."""
        if isinstance(self.stack[-2], type):
            raise pickle.UnpicklingError(f"{self.stack[-2].__qualname__} is no object")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build

    def __init__(self, source: io.BytesIO, like: Policy, cluster: Cluster) -> None:
        super().__init__(source)
        self._cluster = cluster
        module = type(like).__module__
        package = module.rpartition(".")[0] or module
        self._packages = (*_OURS, f"{module}.", f"{package}.") if package != "gandiva_slurm" else _OURS

    def persistent_load(self, pid: Any) -> Cluster:
        if pid != _CLUSTER:
            raise pickle.UnpicklingError(f"{pid!r} is not known")
        return self._cluster

    def find_class(self, module: str, name: str) -> Any:
        plain = _BY_NAME.get((module, name))
        if plain is not None:
            return plain
        if f"{module}.".startswith(self._packages):
            found = super().find_class(module, name)
            if isinstance(found, type) and f"{found.__module__}.".startswith(self._packages):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a policy")
