"""The metrics that a Prometheus reads: names with units, bounded labels, and where each is from.

docs/metrics.md and slurm_conf/monitoring are checked against this table. No label names a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Figures = Mapping[str, Any]
Sample = tuple[tuple[str, ...], float]

#: States of nodes, as `gandiva nodes` shows them.
NODE_STATES = ("up", "silent", "down", "drain")


class Family(NamedTuple):
    """One metric: `samples` gives its labels' values and its value for each of its series."""

    name: str
    text: str
    labels: tuple[str, ...]
    samples: Callable[[Figures], Iterable[Sample]]
    is_counter: bool = False


def _one(key: str) -> Callable[[Figures], Iterable[Sample]]:
    return lambda told: [((), float(told[key]))]


def _by(key: str) -> Callable[[Figures], Iterable[Sample]]:
    return lambda told: [((name,), float(count)) for name, count in sorted(told[key].items())]


def _of_nodes(key: str) -> Callable[[Figures], Iterable[Sample]]:
    return lambda told: [
        ((row["node"], row["type"]), float(row[key])) for row in told["nodes"] if row[key] is not None
    ]


def _node_states(told: Figures) -> Iterable[Sample]:
    for row in told["nodes"]:
        yield from (((row["node"], state), float(row["state"] == state)) for state in NODE_STATES)


def _of_users(key: str) -> Callable[[Figures], Iterable[Sample]]:
    return lambda told: [((row["user"],), float(row[key])) for row in told["users"]]


def _late(told: Figures) -> Iterable[Sample]:
    rounds = told["rounds"]
    return [
        ((quantile,), rounds[name] / 1000)
        for name, quantile in (("p50_ms", "0.5"), ("p99_ms", "0.99"))
        if name in rounds
    ]


_NODE = ("node", "type")
FAMILIES = (
    Family("gandiva_jobs", "Jobs that have not ended, by state.", ("state",), _by("jobs")),
    Family("gandiva_jobs_waiting", "Held jobs, by the reason why they wait.", ("reason",), _by("waiting")),
    Family("gandiva_jobs_idle", "Jobs whose GPUs are idle, by what came of it.", ("kind",), _by("idle")),
    Family("gandiva_jobs_set_aside", "Jobs that by themselves cause an error.", (), _one("set_aside")),
    Family("gandiva_jobs_unread", "Jobs of Slurm's that cannot be read.", (), _one("unread")),
    Family("gandiva_gpus_wanted", "GPUs of all jobs that have not ended.", (), _one("wanted_gpus")),
    Family("gandiva_packs", "Pairs of jobs on one GPU at the same time.", ("kind",), _by("packs")),
    Family("gandiva_node_gpus", "GPUs of a node.", _NODE, _of_nodes("gpus")),
    Family("gandiva_node_gpus_held", "Of these, GPUs that a job holds now.", _NODE, _of_nodes("held_gpus")),
    Family("gandiva_node_jobs", "Jobs that live on a node, running and parked.", _NODE, _of_nodes("jobs")),
    Family(
        "gandiva_node_busy_ratio",
        "How busy running jobs keep their GPUs by NVML, a mean over jobs; none where NVML sees nothing.",
        _NODE,
        _of_nodes("busy"),
    ),
    Family(
        "gandiva_node_suspends", "Parks so far of the jobs that live there.", _NODE, _of_nodes("suspends")
    ),
    Family("gandiva_node_strangers", "Processes on GPUs not given to them.", _NODE, _of_nodes("strangers")),
    Family(
        "gandiva_node_report_age_seconds", "Since its gandivad answered.", _NODE, _of_nodes("report_age_s")
    ),
    Family("gandiva_node_state", "1 for the state that a node is in.", ("node", "state"), _node_states),
    Family("gandiva_user_jobs", "Jobs of a user that have not ended.", ("user",), _of_users("jobs")),
    Family("gandiva_user_gpus_wanted", "GPUs of these.", ("user",), _of_users("wanted_gpus")),
    Family(
        "gandiva_user_gpus_held",
        "GPUs that a user's jobs hold now; half of one that two share.",
        ("user",),
        _of_users("held_gpus"),
    ),
    Family(
        "gandiva_user_share_ratio",
        "A user's part of the cluster by Slurm's shares alone.",
        ("user",),
        _of_users("norm_share"),
    ),
    Family("gandiva_cycles", "Cycles since gandivactld started.", (), _one("cycles"), True),
    Family("gandiva_errors", "Errors in gandivactld since it started.", (), _one("errors"), True),
    Family("gandiva_start_time_seconds", "When gandivactld started, unix time.", (), _one("started_s")),
    Family("gandiva_slurm_age_seconds", "Since Slurm was read last.", (), _one("stale_s")),
    Family("gandiva_slurm_up", "1 while gandivactld can read Slurm.", (), _one("is_slurm_read")),
    Family("gandiva_state_up", "1 while its journal and ledger are written.", (), _one("is_state_written")),
    Family("gandiva_policy_troubles", "What is wrong with the plans now.", (), _one("policy_troubles")),
    Family(
        "gandiva_turn_lateness_seconds",
        "How long after a turn was due its nodes had heard of it, of the latest ones.",
        ("quantile",),
        _late,
    ),
)
#: What is told of the asking itself, also while gandivactld does not answer.
OWN = {
    "gandiva_up": "1 when gandivactld answered the last question in time.",
    "gandiva_answer_seconds": "How long its last answer took.",
    "gandiva_asked_time_seconds": "When it was asked last, unix time.",
}


def names() -> dict[str, tuple[str, ...]]:
    """Return each metric by the name that queries use, with its labels."""
    told = {family.name + "_total" * family.is_counter: family.labels for family in FAMILIES}
    return told | dict.fromkeys(OWN, ())


def metric(name: str, text: str, samples: Iterable[Sample], labels: tuple[str, ...] = ()) -> Metric:
    """Make a gauge with these samples."""
    made = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        made.add_metric(values, value)
    return made


def _of_family(family: Family, told: Figures) -> Metric:
    samples = family.samples(told)
    if not family.is_counter:
        return metric(family.name, family.text, samples, family.labels)
    made = CounterMetricFamily(family.name, family.text, labels=family.labels)
    for values, value in samples:
        made.add_metric(values, value)
    return made


class _Once(Collector):
    """Gives what it was made with."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def page(told: Figures | None, own: Mapping[str, float]) -> bytes:
    """Write what Prometheus reads; `told` is None while gandivactld does not answer: nothing old is shown."""
    metrics = [metric(name, text, [((), own[name])]) for name, text in OWN.items()]
    if told is not None:
        metrics += [_of_family(family, told) for family in FAMILIES]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(metrics))
    return bytes(generate_latest(registry))
