"""The world of a test: two nodes of four GPUs, and at its end the invariants; or the daemon as a process."""

import signal

import pytest

from gandiva_slurm.engine.invariants import no_job_is_lost, violations
from tests.controller.fakes import World
from tests.controller.process import ME, Daemon
from tests.munged import running_munged
from tests.ports import free_port
from tests.replaying import replay_journal


@pytest.fixture
def nodes() -> dict[str, int]:
    """The GPUs of each node."""
    return {"n1": 4, "n2": 4}


@pytest.fixture
async def world(tmp_path, nodes):
    made = World(tmp_path, nodes)
    yield made
    await made.kill()
    controller = getattr(made, "controller", None)
    if controller is not None:
        assert violations(controller.engine) == []
        live = {job_id: made.slurm.jobs[job_id].restart for job_id in made.live()}
        assert made.slurm.is_down or no_job_is_lost(controller.engine.state, live) == []
        assert controller.status.errors == made.want_errors, controller.status.last_error
        tally = replay_journal(made.state_dir / "journal.sqlite")
        assert tally.cycles and tally.first is None
    assert made.unplanned_starts == []


@pytest.fixture(scope="module")
def munged(tmp_path_factory):
    with running_munged(tmp_path_factory.mktemp("munge")) as path:
        yield path


@pytest.fixture
def conf(tmp_path):
    """Write gandiva.yaml; keyword arguments are lines of `controller:`."""
    port = free_port()

    def write(munge: str = "", user: str = ME, **controller: object) -> str:
        part = {"host": "127.0.0.1", "port": port, "state_dir": tmp_path / "state", "slurm_user": user}
        part.update(controller)
        lines = "".join(f"  {key}: {value}\n" for key, value in part.items())
        text = f"cluster: mini\npartitions: [gandiva]\nmunge_socket: '{munge}'\ncontroller:\n{lines}"
        (tmp_path / "gandiva.yaml").write_text(text)
        return str(tmp_path / "gandiva.yaml")

    return write


@pytest.fixture
def start(tmp_path):
    daemons = []
    (tmp_path / "bin").mkdir()
    for command in ("squeue", "sinfo", "scontrol", "sacctmgr"):
        script = tmp_path / "bin" / command
        script.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
        script.chmod(0o755)

    def _start(conf: str, files: str = "") -> Daemon:
        daemons.append(Daemon(conf, tmp_path / "log", files))
        return daemons[-1]

    yield _start
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.ended(signal.SIGKILL)
