"""From a workload's file to jobs that this cluster can run, in order of arrival, the first at 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.job import RATE, Spec
from gandiva_slurm.sim.truth import Homogeneous, Oracle, Truth, read_oracle
from gandiva_slurm.sim.workloads import elasticflow, gandiva, gavel, muri, sacct
from gandiva_slurm.sim.workloads.rows import Row

Reader = Callable[[Path], Iterator[tuple[Row, Spec]]]
FORMATS: Mapping[str, Reader] = {
    "gavel": gavel.read,
    "elasticflow": elasticflow.read,
    "muri": muri.read,
    "sacct": sacct.read,
    "gandiva": gandiva.read,
}
#: Whoever runs for longer, or arrives later, was read in a wrong unit: ten years, and the year 2100.
_LONGEST_NS, _LATEST_NS = 10 * 365 * 86_400 * 10**9, 130 * 365 * 86_400 * 10**9
#: Whose jobs they are where nobody says.
NOBODY = "all"


@dataclass(frozen=True, slots=True)
class Source:
    """A workload as the command line names it."""

    path: Path
    format: str
    throughputs: Path | None = None
    #: deal the rows out to so many users
    users: int | None = None
    #: or take them from a column; where there is no header, columns are counted from 1
    users_column: str | None = None
    #: only the first so many to arrive
    limit: int | None = None


def load(source: Source, cluster: Cluster) -> tuple[list[Spec], Truth]:
    """Read a workload and what is true of it. UsageError: file, row, what is wrong, what to do."""
    truth = _truth(source, cluster)
    specs = []
    for index, (row, spec) in enumerate(FORMATS[source.format](source.path)):
        _check_length(row, spec, truth)
        specs.append(_fitting(row, _whose(source, index, row, spec), cluster, truth))
    if not specs:
        raise UsageError(f"{source.path}: no jobs in it")
    specs.sort(key=lambda spec: (spec.submit_ns, spec.job_id))
    first_ns = specs[0].submit_ns
    return [replace(spec, submit_ns=spec.submit_ns - first_ns) for spec in specs[: source.limit]], truth


def _truth(source: Source, cluster: Cluster) -> Truth:
    """Run times are true as they are; mini-batches need a table of rates."""
    if source.throughputs is None:
        return Homogeneous()
    oracle = read_oracle(source.throughputs)
    _know_types(source, oracle, cluster)
    return oracle


def _check_length(row: Row, spec: Spec, truth: Truth) -> None:
    if isinstance(truth, Oracle) and spec.length_ns:
        raise row.error("the job has a run time, so --throughputs has no part in it: leave that out")
    if not isinstance(truth, Oracle) and not spec.length_ns:
        raise row.error("the job has mini-batches and no run time: give --throughputs FILE")


def _know_types(source: Source, oracle: Oracle, cluster: Cluster) -> None:
    strange = [name for name in cluster.counts if name not in oracle.gpu_types]
    if strange:
        types = ", ".join(oracle.gpu_types)
        raise UsageError(f"--cluster: {source.throughputs} has no GPU type {strange[0]!r}; it has {types}")


def _whose(source: Source, index: int, row: Row, spec: Spec) -> Spec:
    """Say whose a job is: dealt out, by a column, as its format says, or nobody's."""
    if source.users is not None:
        return replace(spec, user=f"user{index % source.users}")
    if source.users_column is None:
        return spec if spec.user else replace(spec, user=NOBODY)
    column = source.users_column
    names = [*row.fields]
    if column.isdigit() and 1 <= int(column) <= len(names):
        column = names[int(column) - 1]
    if column not in row.fields:
        raise row.error(f"--users-column: there is no column {column!r}; there are {' '.join(names)}")
    return replace(spec, user=row.text(column, NOBODY))


def _fitting(row: Row, spec: Spec, cluster: Cluster, truth: Truth) -> Spec:
    """Narrow a job to the types on which it can run; say so where there are none."""
    strange = [name for name in spec.gpu_types if name not in cluster.counts]
    if strange:
        have = ", ".join(cluster.counts)
        raise row.error(f"asks for GPU type {strange[0]!r}, --cluster has {have}; name that type there")
    accepted = spec.gpu_types or tuple(cluster.counts)
    if spec.size > max(cluster.counts[name] for name in accepted):
        most = max(cluster.counts[name] for name in accepted)
        raise row.error(
            f"asks for {spec.size} GPUs, --cluster has {most} of a type: enlarge it or drop the row"
        )
    if isinstance(truth, Oracle) and spec.model not in truth.models:
        raise row.error(f"the throughputs have no model {spec.model!r}; add it there or drop the row")
    able = tuple(name for name in accepted if _is_able(spec, name, truth))
    wide = tuple(name for name in able if cluster.counts[name] >= spec.size)
    if wide and spec.cell:
        wide = tuple(name for name in wide if cluster.widest(name, spec.cell) >= spec.size)
        if not wide:
            raise row.error(f"asks for {spec.size} GPUs of one {spec.cell}: --cluster has none so large")
    if not wide:
        raise row.error(f"{spec.model} runs on {spec.size} GPUs of no type of --cluster; drop the row")
    slowest = min(truth.alone(spec, spec.size, name, True) for name in wide)
    if truth.work(spec) > _LONGEST_NS * RATE * slowest or spec.submit_ns > _LATEST_NS:
        raise row.error("runs for more than ten years, or comes after 2100: is the format the right one?")
    return spec if wide == tuple(cluster.counts) else replace(spec, gpu_types=wide)


def _is_able(spec: Spec, gpu_type: str, truth: Truth) -> bool:
    return truth.alone(spec, spec.size, gpu_type, True) > 0
