"""A pyslurm that answers from a tape: what the real one returned once (see contract_world.RecordingWorker).

It stands where the worker imports pyslurm, with as much of pyslurm's interface as the worker uses: objects
whose attributes are the recorded values, and refusals as RPCError. The n-th call gets the n-th answer.
"""

import json
import os
from types import SimpleNamespace

from fake_slurm import claim

HOME = os.environ["FAKE_SLURM"]


class PyslurmError(Exception):
    """Root of pyslurm's errors."""


class RPCError(PyslurmError):
    """A refusal, with Slurm's sentence."""


def recorded(name, *arguments):
    """Return the next value recorded for this call, or raise what was raised."""
    with open(os.path.join(HOME, "tape.json"), encoding="utf-8") as file:
        entries = [entry for entry in json.load(file) if entry["who"] == "pyslurm"]
    argv = [name, *map(json.dumps, arguments)]
    found = [entry for entry in entries if entry["argv"] == argv]
    if not found:
        raise LookupError(f"not on the tape: pyslurm {argv}")
    entry = found[min(claim(HOME, ["pyslurm", *argv]), len(found) - 1)]
    out = entry["out"]
    if "out_file" in entry:
        with open(os.path.join(HOME, entry["out_file"]), encoding="utf-8") as file:
            out = file.read()
    answer = json.loads(out)
    if "refused" in answer:
        raise RPCError(answer["refused"])
    return answer["value"]


def collection(rows):
    """Return what pyslurm's collections are used as here."""
    return {number: SimpleNamespace(**row) for number, row in enumerate(rows)}


class Jobs:
    """All jobs of the next recorded picture; `Nodes` shows the nodes of the same one."""

    picture = None

    @classmethod
    def load(cls):
        """Return the jobs."""
        cls.picture = recorded("picture")
        for job in cls.picture["jobs"]:
            tres = {kind: count and SimpleNamespace(count=count) for kind, count in job["tres"].items()}
            job["allocated_tres"], job["requested_tres"] = None, SimpleNamespace(**tres)
        return collection(cls.picture["jobs"])


class Nodes:
    """All nodes of the picture."""

    @staticmethod
    def load():
        """Return the nodes."""
        return collection(Jobs.picture["nodes"])


class JobSubmitDescription:
    """Changes to a job."""

    def __init__(self, **changes):
        self.changes = changes


class Job:
    """One job to act on. The worker starts several jobs with one call; here it is one recorded answer."""

    pending = None

    def __init__(self, job_id):
        self.id = job_id

    def hold(self):
        """Hold it."""
        recorded("hold", self.id)

    def modify(self, description):
        """Place and release it."""
        assert description.changes["begin_time"] == "now" and description.changes["priority"] == 2**32 - 1
        place = [self.id, description.changes["required_nodes"]]
        if not Job.pending:
            Job.pending = self._orders(place)
        order, sentence = Job.pending.pop(0)
        assert order == place, f"another start than on the tape: {place}"
        if sentence:
            raise RPCError(sentence)

    @staticmethod
    def _orders(first):
        """Return (place, refusal) of each start of the recorded call that begins with this one."""
        with open(os.path.join(HOME, "tape.json"), encoding="utf-8") as file:
            entries = [entry for entry in json.load(file) if entry["argv"][0] == "start"]
        wanted = [json.loads(entry["argv"][1]) for entry in entries if entry["who"] == "pyslurm"]
        orders = next(orders for orders in wanted if orders[0] == first)
        return list(zip(orders, recorded("start", orders), strict=True))


def _associations():
    return collection(recorded("associations"))


def _config():
    pyslurm_version, slurm_version = recorded("versions")
    globals()["__version__"] = pyslurm_version
    return SimpleNamespace(version=slurm_version)


db = SimpleNamespace(Associations=SimpleNamespace(load=_associations))
slurmctld = SimpleNamespace(Config=SimpleNamespace(load=_config))
