"""Processes and signals: reused ids are never hit, whole sets are stopped, jobs are found by their stepd."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import members, procs
from gandiva_slurm.node.members import JobProcesses, membership
from gandiva_slurm.node.procs import ProcId
from tests import patience

#: As another run of these tests has it not: its processes are no members here.
NODE = f"n{os.getpid()}"
FORKING = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.fork()
        break
time.sleep(60)
"""
#: A user's number, of no account.
USER = 61001
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is, or starts, a slurmstepd")
#: Forks without end: each new process makes the next and stays.
RABBIT = """
import os, time
for _ in range(300):
    if os.fork():
        break
    time.sleep(0.001)
time.sleep(60)
"""


def wait(condition, deadline_s=10.0):
    end_s = patience.deadline(deadline_s)
    while not condition():
        assert time.monotonic() < end_s, "not in time"
        time.sleep(0.01)


@pytest.fixture
def spawn():
    started = []

    def start(code, title="", **options):
        # The interpreter itself: another user may not reach the virtual environment's link to it.
        python = os.path.realpath(sys.executable)
        argv = [title or python, "-c", code]
        process = subprocess.Popen(argv, executable=python, start_new_session=True, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        for proc in procs.descendants(procs.table(), [process.pid]):
            procs.send(proc.id, signal.SIGKILL)
        process.kill()
        process.wait()


def job_of(process, uid=None):
    uid = os.getuid() if uid is None else uid
    stepd = ProcId(process.pid, procs.read_proc(process.pid).start)
    return JobProcesses(JobKey(7, 0), uid, NODE, {stepd}, set())


def test_the_table_has_this_process_with_its_parent():
    me = procs.table()[os.getpid()]
    assert me.parent == os.getppid() and me.state == "R"
    assert procs.is_alive(me.id)
    assert [proc.pid for proc in procs.ancestors(me.pid)][:2] == [os.getpid(), os.getppid()]


def test_a_name_with_brackets_and_blanks_is_read(spawn):
    process = spawn("import ctypes; ctypes.CDLL(None).prctl(15, b'a) S (b'); input()", stdin=subprocess.PIPE)
    wait(lambda: b"a) S (b" in Path(f"/proc/{process.pid}/stat").read_bytes())
    assert procs.read_proc(process.pid).parent == os.getpid()


def test_a_reused_id_is_not_signalled(spawn):
    process = spawn("input()", stdin=subprocess.PIPE)
    real = procs.read_proc(process.pid).id
    assert not procs.send(ProcId(real.pid, real.start - 1), signal.SIGKILL)
    assert procs.open_pidfd(ProcId(real.pid, real.start - 1)) is None
    assert process.poll() is None
    assert procs.send(real, signal.SIGKILL)
    process.wait()
    assert not procs.is_alive(real)


@pytest.mark.parametrize("left", [0, 1])
def test_a_process_does_not_end_because_descriptors_run_out(left):
    me, before = procs.read_proc(os.getpid()).id, resource.getrlimit(resource.RLIMIT_NOFILE)
    first = os.dup(0)  # the lowest that is free
    os.close(first)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (first + left, before[1]))
        with pytest.raises(OSError, match="Too many open files"):
            procs.send(me, signal.SIGCONT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    again = os.dup(0)
    os.close(again)
    assert again == first, "nothing is left open"


def test_all_descendants_are_stopped_and_continued_but_not_who_was_stopped_before(spawn):
    process = spawn(FORKING)
    wait(lambda: len(procs.descendants(procs.table(), [process.pid])) == 6)
    family = procs.descendants(procs.table(), [process.pid])
    asleep = family[0].id
    procs.send(asleep, signal.SIGSTOP)
    wait(lambda: procs.read_proc(asleep.pid).state == "T")
    ours, before = job_of(process).stop()
    assert before == {asleep} and len(ours) == 5
    wait(lambda: all(procs.read_proc(proc.pid).state == "T" for proc in ours))
    assert procs.read_proc(process.pid).state != "T"


def test_a_job_that_forks_all_the_time_is_killed_to_the_last(spawn):
    process = spawn(RABBIT)
    wait(lambda: len(procs.descendants(procs.table(), [process.pid])) > 20)
    job = job_of(process)
    wait(lambda: job.kill() == 0)
    assert job.members() == []
    assert process.poll() is None


def test_processes_of_another_user_are_not_the_jobs(spawn):
    process = spawn(FORKING)
    wait(lambda: len(procs.descendants(procs.table(), [process.pid])) == 6)
    assert job_of(process, uid=61009).members() == []


def test_what_has_left_the_tree_is_known_by_its_environment(spawn):
    env = {"GANDIVA_JOB": "7", "GANDIVA_RESTART": "0", "GANDIVA_NODE": NODE}
    stray = spawn("import time; time.sleep(60)", env=env)
    spawn("import time; time.sleep(60)", env=env | {"GANDIVA_RESTART": "1"})
    stepd = spawn("import time; time.sleep(60)")
    wait(lambda: [proc.pid for proc in job_of(stepd).members()] == [stray.pid])


@needs_root
def test_a_process_is_of_the_job_in_its_slurmstepds_title(spawn):
    title = "slurmstepd: [42.batch]"
    stepd = spawn("import os, time; os.fork(); time.sleep(60)", title=title)
    wait(lambda: procs.descendants(procs.table(), [stepd.pid]))
    child = procs.descendants(procs.table(), [stepd.pid])[0]
    found = membership(child.pid)
    assert (found.job_id, found.step, found.stepd.pid) == (42, "batch", stepd.pid)
    assert membership(stepd.pid) is None


@needs_root
def test_a_users_process_with_that_title_proves_nothing(spawn):
    code = "import os, time; os.fork(); time.sleep(60)"
    forged = spawn(code, title="slurmstepd: [42.batch]", user=61001)
    wait(lambda: procs.descendants(procs.table(), [forged.pid]))
    assert membership(procs.descendants(procs.table(), [forged.pid])[0].pid) is None


@pytest.mark.parametrize(
    ("text", "job", "directories"),
    [
        ("0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n", 9, 1),
        ("5:devices:/slurm_n1/uid_61001/job_9/step_batch\n4:cpu,cpuacct:/\n", 9, 1),
        ("0::/user.slice/my_job_9x\n", None, 0),
        ("0::/user.slice/user-61001.slice/slurm/uid_61001/job_9/x\n", None, 0),
        ("5:devices:/a/job_9\n4:memory:/b/job_8\n", None, 0),
        ("", None, 0),
    ],
)
def test_the_job_in_a_cgroup_path(monkeypatch, text, job, directories):
    monkeypatch.setattr(procs, "read_text", lambda pid, name: text)
    found, paths = members._cgroup_job(1)
    assert found == job and len(paths) == directories
    assert all(path.startswith("/sys/fs/cgroup/") and path.endswith("/job_9") for path in paths)


def test_members_of_a_cgroup_are_the_jobs(spawn, tmp_path):
    process = spawn("import time; time.sleep(60)")
    (tmp_path / "job_7" / "step_0").mkdir(parents=True)
    (tmp_path / "job_7" / "step_0" / "cgroup.procs").write_text(f"{process.pid}\n")
    job = JobProcesses(JobKey(7, 0), os.getuid(), "n1", set(), {str(tmp_path / "job_7")})
    assert [proc.pid for proc in job.members()] == [process.pid]
    assert not job.has_stepd()


#: Becomes a user's once it has forked: a slurmstepd and its task.
STEP = f"import os, time; os.fork() or os.setuid({USER}); time.sleep(60)"


@needs_root
@pytest.mark.parametrize(("is_gone", "is_unreported"), [(False, False), (True, False), (False, True)])
def test_what_another_step_has_begun_does_not_end_with_one(spawn, tmp_path, is_gone, is_unreported):
    """Nor what has come by ssh. An incarnation that is over ends with both, but not with the next one."""
    forks, sleeps = STEP, "import time; time.sleep(60)"
    extern, ssh = spawn(sleeps, title="slurmstepd: [7.extern]"), spawn(sleeps, user=USER)
    own = spawn(forks, title="slurmstepd: [7.0]")
    began_s = time.monotonic()
    wait(lambda: time.monotonic() > began_s + 2 / os.sysconf("SC_CLK_TCK"))
    other = spawn(forks, title="slurmstepd: [7.1]")
    wait(lambda: all(procs.descendants(procs.table(), [stepd.pid]) for stepd in (own, other)))
    (mine,), (its,) = (procs.descendants(procs.table(), [stepd.pid]) for stepd in (own, other))
    (tmp_path / "step_extern").mkdir()
    (tmp_path / "step_extern" / "cgroup.procs").write_text(f"{ssh.pid}\n{extern.pid}\n")
    pids = (own.pid, mine.pid, other.pid, its.pid)
    (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    stepd = ProcId(own.pid, procs.read_proc(own.pid).start)
    job = JobProcesses(JobKey(7, 0), USER, NODE, {stepd}, {str(tmp_path)})
    if is_gone:
        own.kill()
        own.wait()
        job.stepds, job.newest = set(), stepd.start
    assert job.kill() == 1
    wait(lambda: not procs.is_alive(mine.id))
    assert procs.is_alive(its.id) and ssh.poll() is None and extern.poll() is None
    if is_unreported:
        job.kill_unreported()
    else:
        assert job.kill(is_over=True) == 1
    wait(lambda: ssh.poll() is not None)
    assert procs.is_alive(its.id) and not procs.read_proc(its.pid).is_stopped and extern.poll() is None
