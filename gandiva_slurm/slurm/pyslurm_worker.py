"""pyslurm, in a process of its own: the one file that imports it.

pyslurm keeps Python's lock through every call, so no thread of gandivactld could run while it waits for a
slurmctld that hangs; importing it without a readable slurm.conf ends the process; and where it was built for
other headers it crashes instead of raising. Here any of these costs one worker, which `pyslurm_link.py` ends
at the deadline and starts anew. Nothing else of this package is imported, so that a start takes a tenth
of a second.

Questions come on standard input, answers go to standard output, both as JSON behind four bytes of length:
`[NAME, [ARGUMENT, ...]]`, and `{"value": ...}`, `{"refused": SENTENCE}` or `{"fault": SENTENCE}`. The values
are pyslurm's own, unchanged: what they mean is `pyslurm_fields.py`'s business.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

#: What is read of a job and of a node: names of pyslurm's attributes.
JOB_ATTRIBUTES = (
    "id", "name", "user_id", "account", "partition", "state", "state_reason", "priority", "requeue_count",
    "allocated_nodes", "array_id", "array_task_id", "array_tasks_waiting", "array_tasks_parallel", "qos",
    "cpus", "time_limit", "submit_time", "eligible_time", "start_time", "end_time", "exit_code",
    "exit_code_signal", "is_batch_job", "is_requeueable", "admin_comment", "dependencies",
)  # fmt: skip
NODE_ATTRIBUTES = (
    "name", "state", "configured_gres", "allocated_tres", "total_cpus", "real_memory", "address",
    "partitions", "reason",
)  # fmt: skip
ASSOCIATION_ATTRIBUTES = ("cluster", "account", "user", "parent_account", "shares", "partition")
#: Priority of a released job: Slurm's INFINITE, from which slurmctld computes the real one.
RELEASED = 2**32 - 1
#: Users' names by number, as the name service told them.
USER_NAMES: dict[int, str] = {}


def answer(pyslurm: Any, name: str, arguments: list[Any]) -> dict[str, Any]:
    """Do one call and return what is to be sent back; a refusal is Slurm's own sentence."""
    try:
        return {"value": CALLS[name](pyslurm, *arguments)}
    except pyslurm.PyslurmError as err:
        return {"refused": str(err)}
    except Exception as err:  # the daemon must hear of it, whatever it is
        return {"fault": f"{name}: {type(err).__name__}: {err}"}


def versions(pyslurm: Any) -> list[str]:
    """Return the versions of pyslurm and of the slurmctld that answers."""
    return [pyslurm.__version__, str(pyslurm.slurmctld.Config.load().version)]


def picture(pyslurm: Any) -> dict[str, Any]:
    """Return every job and every node slurmctld knows."""
    return {
        "jobs": [_job(job) for job in pyslurm.Jobs.load().values()],
        "nodes": [_attributes(node, NODE_ATTRIBUTES) for node in pyslurm.Nodes.load().values()],
    }


def associations(pyslurm: Any) -> list[dict[str, Any]]:
    """Return every association slurmdbd knows, of all its clusters."""
    found = pyslurm.db.Associations.load().values()
    return [_attributes(association, ASSOCIATION_ATTRIBUTES) for association in found]


def start(pyslurm: Any, places: list[tuple[int, list[str]]]) -> list[str | None]:
    """Place and release each job with one request; return Slurm's sentence for each that was refused."""

    def one(job_id: int, nodes: list[str]) -> None:
        changes = pyslurm.JobSubmitDescription(required_nodes=nodes, begin_time="now", priority=RELEASED)
        pyslurm.Job(job_id).modify(changes)

    return [_refusal(pyslurm, functools.partial(one, *place)) for place in places]


def hold(pyslurm: Any, job_id: int) -> None:
    """Hold one job."""
    pyslurm.Job(job_id).hold()


#: What may be asked.
CALLS: Mapping[str, Callable[..., Any]] = {
    call.__name__: call for call in (versions, picture, associations, start, hold)
}


def _job(job: Any) -> dict[str, Any]:
    found = _attributes(job, JOB_ATTRIBUTES)
    tres = job.allocated_tres or job.requested_tres
    found["tres"] = {kind: tres and _count(getattr(tres, kind)) for kind in ("cpu", "mem", "node")}
    found["user_name"] = _user_name(job, found["user_id"])
    return found


def _attributes(record: Any, names: Iterable[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        try:
            found[name] = getattr(record, name)
        except UnicodeDecodeError as err:  # a job's name may be any bytes
            found[name] = err.object.decode("utf-8", "replace")
    return found


def _count(resource: Any) -> int | None:
    return getattr(resource, "count", None)


def _user_name(job: Any, uid: int) -> str:
    # pyslurm asks the name service for each job of each picture.
    name = USER_NAMES.get(uid) or job.user_name or ""
    if name and not name.isdecimal():  # a number is no name: ask again
        USER_NAMES[uid] = name
    return str(name)


def _refusal(pyslurm: Any, act: Callable[[], None]) -> str | None:
    try:
        act()
    except pyslurm.RPCError as err:
        return str(err)
    return None


def serve(pyslurm: Any, questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more questions."""
    while head := questions.read(4):
        name, arguments = json.loads(questions.read(int.from_bytes(head, "big")))
        body = json.dumps(answer(pyslurm, name, arguments), separators=(",", ":")).encode()
        answers.write(len(body).to_bytes(4, "big") + body)
        answers.flush()


def main() -> None:
    """Keep standard output for the answers (libslurm may print there), import pyslurm, serve."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    import pyslurm

    serve(pyslurm, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
