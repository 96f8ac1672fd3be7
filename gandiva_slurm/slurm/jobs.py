"""From one record of `squeue --json`, of any release, to the job of the model."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from gandiva_slurm.model.errors import SlurmUnreachable
from gandiva_slurm.model.snapshot import SlurmJob
from gandiva_slurm.slurm import gres, states
from gandiva_slurm.slurm.fields import ADVICE, Fields
from gandiva_slurm.slurm.options import read_options

#: Slurm's number for a priority that is as high as can be; 0 would mean held.
TOP_PRIORITY = 2**32 - 1


def read_job(record: Fields) -> SlurmJob:
    """Return the job; SlurmUnreachable names a field that is missing or of another form."""
    job_id = record.number("job_id")
    state = states.job_state(record.words("job_state"))
    started = states.has_started(state)
    counts = _counts(record)
    nodes = node_names(record.text("nodes"))
    node_count = len(nodes) or counts.get("node", 1)
    return SlurmJob(
        job_id=job_id,
        user=record.text("user_name") or str(record.number("user_id")),
        uid=record.number("user_id"),
        account=record.text("account"),
        partition=record.text("partition"),
        state=state,
        reason=record.text("state_description") or record.text("state_reason"),
        name=record.text("name"),
        priority=record.number("priority", infinite=TOP_PRIORITY),
        restart=record.number("restart_cnt"),
        nodes=nodes,
        array_job_id=record.number("array_job_id"),
        array_task_id=record.number_or_none("array_task_id"),
        qos=record.text("qos"),
        node_count=node_count,
        cpus=counts.get("cpu", record.number("cpus")),
        memory_mib=-(-counts.get("mem", 0) // node_count),
        time_limit_s=60 * record.number("time_limit"),
        submit_s=record.number("submit_time"),
        eligible_s=record.number("eligible_time"),
        start_s=record.number("start_time") if started else 0,
        end_s=record.number("end_time") if states.is_finished(state) else 0,
        exit_code=_exit_code(record),
        batch=record.flag("batch_flag"),
        requeue=record.flag("requeue"),
        dependency=record.text("dependency"),
        options=read_options(record.text("admin_comment"), job_id),
    )


def _counts(record: Fields) -> Mapping[str, int]:
    """Return the job's TRES: what it has, else what it asks.

    `node_count`, `cpus` and `memory_per_*` are not taken: of a pending job the first is an estimate (-n3 -c2
    shows 2 nodes, 22.05.8), and memory by GPU or by whole node is only in the TRES.
    """
    allocated = gres.tres(record.text("tres_alloc_str"))
    return allocated or gres.tres(record.text("tres_req_str"))


def _exit_code(record: Fields) -> str:
    if not record.is_record("exit_code"):
        return exit_code(record.number("exit_code"))
    told = record.record("exit_code")
    return f"{told.number('return_code')}:{told.record('signal').number('id')}"


def exit_code(status: int) -> str:
    """Return a wait status as Slurm prints it: exit code, colon, signal."""
    return f"{status >> 8 & 0xFF}:{status & 0x7F}"


@functools.lru_cache(maxsize=4096)
def node_names(text: str) -> tuple[str, ...]:
    """Return the names in a node list such as n[1-3,7], in order; zero padding stays."""
    try:
        return tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as err:
        raise SlurmUnreachable(f"not a node list: {text[:60]!r} ({err}); {ADVICE}") from err


def fold_nodes(names: Iterable[str]) -> str:
    """Write node names as Slurm does: n[1-3,7]; none is empty."""
    listed = list(names)
    return str(NodeSet.fromlist(listed, resolver=RESOLVER_NOGROUP)) if len(listed) > 1 else "".join(listed)
