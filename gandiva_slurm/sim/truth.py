"""What is true in a simulated cluster: how fast each job runs, alone and beside another."""

from __future__ import annotations

import ast
import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.port import Rates
from gandiva_slurm.sim.job import RATE, UNIT, Spec

#: Ending of the oracle's tables for gangs that lie on several nodes.
APART = "_unconsolidated"


class Truth(Protocol):
    """The world's answers; policies do not see them unless their paper takes them as given."""

    #: mini-batches a second, for policies that may know
    rates: Rates

    def work(self, spec: Spec) -> int:
        """Return the units of work of a job."""

    def alone(self, spec: Spec, size: int, gpu_type: str, is_local: bool) -> float:
        """Return steps a second on so many GPUs; 0: it cannot run there."""

    def packed(self, spec: Spec, other: Spec, gpu_type: str) -> float:
        """Return steps a second of the first beside the other on one GPU of each; 0: they do not fit."""


class Homogeneous:
    """Every GPU is like every other, wherever it is: jobs of known run time, no packing."""

    def __init__(self) -> None:
        self.rates: Rates = self

    def work(self, spec: Spec) -> int:
        """One step is one second of work."""
        return spec.length_ns * RATE

    def alone(self, spec: Any, size: int, gpu_type: str, is_local: bool = True) -> float:
        """Return 1, or more or less for an elastic job that has more or fewer GPUs than it asked for."""
        return size / spec.size if isinstance(spec, Spec) else 1.0

    def packed(self, spec: Any, other: Any, gpu_type: str) -> Any:
        """Nobody measured two of these jobs on one GPU: it is refused."""
        return 0.0 if isinstance(spec, Spec) else (0.0, 0.0)


class Oracle:
    """Gavel's table of measured throughputs, or one of the same form: its own `Rates`, and the truth."""

    def __init__(self, tables: Mapping[str, Mapping[tuple[str, int], Mapping[Any, Any]]]) -> None:
        self.tables = tables
        self.rates: Rates = _Table(tables)

    def work(self, spec: Spec) -> int:
        """One step is one mini-batch."""
        return spec.steps * UNIT

    def alone(self, spec: Spec, size: int, gpu_type: str, is_local: bool) -> float:
        """Return mini-batches a second; between its neighbours at sizes not measured."""
        rate = self.rates.alone(spec.model, size, gpu_type, is_local) or 0.0
        if rate or size == spec.size:
            return rate
        table = self.tables.get(gpu_type if is_local or size == 1 else gpu_type + APART, {})
        known = {count: float(row[None]) for (model, count), row in table.items() if model == spec.model}
        return _between({count: there for count, there in known.items() if there}, size)

    def packed(self, spec: Spec, other: Spec, gpu_type: str) -> float:
        """Return mini-batches a second of the first; pairs of gangs were measured as not fitting."""
        pair = self.tables[gpu_type].get((spec.model, spec.size), {}).get((other.model, other.size))
        return float(pair[0]) if pair else 0.0

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """GPU types it has rates for."""
        return tuple(name for name in self.tables if not name.endswith(APART))

    @property
    def models(self) -> frozenset[str]:
        """Models it has rates for."""
        return frozenset(model for table in self.tables.values() for model, _ in table)


class _Table:
    """The oracle as policies read it."""

    def __init__(self, tables: Mapping[str, Mapping[tuple[str, int], Mapping[Any, Any]]]) -> None:
        self._tables = tables
        self._largest: dict[str, int] = {}
        for model, size in (key for table in tables.values() for key in table):
            self._largest[model] = max(size, self._largest.get(model, 0))

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        """Return mini-batches a second; 0 for what was not measured.

        A gang larger than any that was measured scales with its GPUs from the largest.
        """
        table = self._tables.get(gpu_type if is_local or size == 1 else gpu_type + APART, {})
        measured = min(size, self._largest.get(model, size))
        row = table.get((model, measured))
        return float(row[None]) * size / measured if row else 0.0

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        """Return both rates of two one-GPU jobs."""
        pair = self._tables.get(gpu_type, {}).get((model, 1), {}).get((other, 1))
        return (float(pair[0]), float(pair[1])) if pair else (0.0, 0.0)


def _between(known: Mapping[int, float], size: int) -> float:
    """The rate at a size not measured: on the line between the nearest that were, or in proportion."""
    below = max((count for count in known if count < size), default=0)
    above = min((count for count in known if count > size), default=0)
    low = known.get(below, 0.0)
    if not above:
        return low * size / below if below else 0.0
    return low + (known[above] - low) * (size - below) / (above - below)


def read_oracle(path: Path) -> Oracle:
    """Read simulation_throughputs.json, plain or .xz; keys are "('model', GPUs)" and "null"."""
    try:
        raw = path.read_bytes()
        data = json.loads(lzma.decompress(raw) if path.suffix == ".xz" else raw)
        tables = {
            name: {_key(row): _row(cells) for row, cells in table.items()} for name, table in data.items()
        }
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror}") from err
    except (ValueError, SyntaxError, AttributeError, TypeError, KeyError, lzma.LZMAError) as err:
        form = '{type: {"(\'model\', GPUs)": {"null": steps/s}}}'
        where = f" ({err})" if isinstance(err, json.JSONDecodeError) else ""
        raise UsageError(f"{path} is not a table of throughputs{where}; it takes JSON, {form}") from err
    return Oracle(tables)


def _key(text: str) -> tuple[str, int]:
    model, size = ast.literal_eval(text)
    return str(model), int(size)


def _row(cells: Mapping[str, Any]) -> dict[Any, Any]:
    row: dict[Any, Any] = {_key(text): pair for text, pair in cells.items() if text != "null"}
    row[None] = float(cells["null"])
    return row
