"""Submission on a real Slurm: every flag good and bad, its other forms, what an owner may change after."""

from collections.abc import Iterator

import pytest

from tests.cluster.held import HeldCluster, held_cluster
from tests.unit.option_cases import TAKES
from tests.unit.spank_runner import FakeGandivad, answer

#: One good and one bad value of every option; the whole table is in tests/unit.
VALUES = {
    "tickets": ("7", "0"), "priority": ("90", "101"), "class": ("opportunistic", "best"),
    "cell": ("node", "rack"), "gpu-types": ("v100,k80", "v100,"),
    "elastic": ("1-4", "4-1"), "pack": ("never", "yes"),
    "migrate": ("never", "no"), "hook": ("none", "never"),
}
OWNER_HOLD = "2100-01-01T00:00:00"
GPUS = ("-p", "gandiva", "--gres=gpu:2")


@pytest.fixture(scope="module")
def slurm(slurm_here: None) -> Iterator[HeldCluster]:
    with held_cluster("flags") as cluster:
        yield cluster


def assert_refused(slurm: HeldCluster, sentence: str, *words: str, script: str = "true",
                   **environ: str) -> None:
    """Our sentence comes first, and nothing is submitted."""
    before = slurm.jobs()
    done = slurm.sbatch(*words, script=script, **environ)
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith(f"sbatch: error: gandiva: {sentence}")
    assert done.stdout == ""
    assert slurm.jobs() == before


@pytest.mark.parametrize("command", ["sbatch", "salloc", "srun"])
def test_help_lists_the_flags(slurm: HeldCluster, command: str) -> None:
    told = slurm.user(command, "--help").stdout
    assert told.count("[gandiva]") == len(TAKES) + 1
    for name in TAKES:
        assert f"--gandiva-{name}=" in told


def test_all_flags_together(slurm: HeldCluster) -> None:
    flags = [f"--gandiva-{name}={good}" for name, (good, _) in VALUES.items()]
    job_id = slurm.submit(*GPUS, "--gandiva", *flags)
    options = slurm.options(job_id)
    assert options is not None
    assert (options.tickets, options.priority, options.job_class) == (7, 90, "opportunistic")
    assert (options.types, options.cell, options.elastic) == (("v100", "k80"), "node", "1-4")
    assert (options.pack, options.migrate, options.hook) == ("never", "never", "none")
    assert (options.gpus, options.gpu_type, options.user_hold) == (2, "", False)
    shown = slurm.show(job_id)
    assert (shown["JobState"], shown["Priority"], shown["NumNodes"]) == ("PENDING", "0", "1-1")


@pytest.mark.parametrize("name", VALUES)
def test_a_bad_value_as_flag_directive_and_default(slurm: HeldCluster, name: str) -> None:
    bad = VALUES[name][1]
    says = f'got "{bad}", takes {TAKES[name]}'
    variable = "SBATCH_GANDIVA_" + name.upper().replace("-", "_")
    assert_refused(slurm, f"--gandiva-{name}: {says}", *GPUS, f"--gandiva-{name}={bad}")
    assert_refused(slurm, f"--gandiva-{name}: {says}", *GPUS, script=f"#SBATCH --gandiva-{name}={bad}")
    assert_refused(slurm, f"{variable}: {says}", *GPUS, **{variable: bad})


@pytest.mark.parametrize(("words", "sentence"), [
    (["--gres=gpu:9"], "--gres: 9 GPUs asked, the largest node of this partition has 4; next: "),
    (["--gpus=9"], "--gpus: 9 GPUs asked"),
    (["--gpus-per-node=9"], "--gres: 9 GPUs asked"),
    (["-n3", "--gpus-per-task=2"], "--gpus-per-task: 6 GPUs asked"),
    (["--gres=gpu:k80:3"], "--gres: 3 GPUs asked, the largest node of this partition with k80 has 2"),
    (["--gres=gpu:h100:1"], '--gres: no node has GPUs of type "h100"; next: ask for one of k80, v100'),
    (["--gres=gpu:1", "--gandiva-vc=team"], '--gandiva-vc: no virtual cluster "team"; '),
    (["--gres=gpu:1", "--gandiva-gpu-types=h100"], '--gandiva-gpu-types: no node has GPUs of type "h100"'),
    ([], "--gres: no GPU asked; next: "),
    (["-N2", "--gpus=2"], "--gpus: Slurm may split 2 GPUs unevenly over 2 nodes; next: write --gpus-per"),
    (["-N1-2", "--gres=gpu:1"], "--nodes: 1-2 asked, a Gandiva job has a fixed number; next: "),
    (["-N3", "--gres=gpu:1"], "--nodes: 3 nodes asked, the partition has 2; next: ask for at most 2"),
    (["-N2", "--gres=gpu:1", "--gandiva-cell=node"], "--gandiva-cell: node asked for a job of 2 nodes; next"),
    (["-w", "n1", "--gres=gpu:1"], "--nodelist, --exclude: Gandiva chooses the node"),
    (["--exclusive", "--gres=gpu:1"], "--exclusive: a Gandiva job shares its node"),
    (["-p", "plain", "--gandiva"], "--gandiva: partition plain is not Gandiva's; next: ask for --partition="),
    (["-p", "plain,gandiva", "--gres=gpu:1"], "--partition: plain,gandiva is Gandiva's only in part"),
])
def test_what_cannot_be_met_is_refused_at_once(slurm: HeldCluster, words: list[str], sentence: str) -> None:
    assert_refused(slurm, sentence, "-p", "gandiva", *words)


def test_a_heterogeneous_job_is_refused(slurm: HeldCluster) -> None:
    before = slurm.jobs()
    done = slurm.user("sbatch", *GPUS, "--wrap", "true", ":", *GPUS)
    assert done.returncode != 0
    assert "gandiva: heterogeneous jobs are not taken; next: " in done.stderr.splitlines()[0]
    assert slurm.jobs() == before


def test_directives_and_defaults_and_who_wins(slurm: HeldCluster) -> None:
    lines = ["-p gandiva", "--gres=gpu:1", "--gandiva-tickets=3", "--gandiva-cell=node"]
    script = "\n".join(f"#SBATCH {line}" for line in lines)
    environ = {"SBATCH_GANDIVA_TICKETS": "5", "SBATCH_GANDIVA_CELL": "gpu", "SBATCH_GANDIVA_PACK": "never"}
    options = slurm.options(slurm.submit("--gandiva-cell=socket", script=script, **environ))
    assert options is not None
    assert (options.tickets, options.cell, options.pack) == (3, "socket", "never")


@pytest.mark.parametrize(("words", "environ", "settled"), [
    (["--signal=B:USR1@90"], {}, "signal:B:USR1@90"),
    (["--signal", "TERM@30", "--comment=x"], {"SBATCH_SIGNAL": "B:USR1@90"}, "signal:TERM@30"),
    ([], {"SBATCH_SIGNAL": "B:USR2@45"}, "signal:B:USR2@45"),
])
def test_the_signal_of_the_command_line_says_how_a_job_saves_itself(
    slurm: HeldCluster, words: list[str], environ: dict[str, str], settled: str
) -> None:
    """Slurm 22.05 shows the filter none; what stands behind the script is the script's."""
    script = "#SBATCH --signal=USR1@10\ntrue --signal=HUP@5"
    options = slurm.options(slurm.submit(*GPUS, "--requeue", *words, script=script, **environ))
    assert options is not None and options.checkpoint == settled


@pytest.mark.parametrize("name", ["salloc", "srun"])
def test_defaults_come_with_salloc_and_srun_too(slurm: HeldCluster, name: str) -> None:
    words = ["env", "SBATCH_GANDIVA_TICKETS=5", name, *GPUS, "-J", name, "true"]
    waiting = slurm.cluster.popen(words, user="user1")
    try:
        job_id = slurm.wait_queued(name)
        options = slurm.options(job_id)
        assert options is not None and options.tickets == 5
        slurm.root("scancel", str(job_id))
    finally:
        waiting.kill()
        waiting.wait(20)


def test_a_default_does_not_disturb_ordinary_jobs(slurm: HeldCluster) -> None:
    job_id = slurm.submit("-p", "plain", SBATCH_GANDIVA_TICKETS="5", SBATCH_GANDIVA_HOOK="none")
    slurm.wait_state(job_id, "COMPLETED")
    assert slurm.options(job_id) is None


def test_arrays_and_jobs_that_may_not_be_requeued_are_taken(slurm: HeldCluster) -> None:
    array = slurm.submit(*GPUS, "--array=1-3", "--no-requeue", "--begin=now+1hour")
    shown = slurm.show(array)
    assert (shown["Priority"], shown["Requeue"]) == ("0", "0")
    assert slurm.options(array) is not None


def test_an_owner_may_not_change_what_gandiva_decides(slurm: HeldCluster) -> None:
    job_id = slurm.submit(*GPUS)
    before = slurm.show(job_id)
    changes = ["Gres=gpu:4", "TresPerNode=gpu:4", "ReqNodeList=n1", "ExcNodeList=n2", "Partition=plain",
               "Priority=100", "Nice=5", "Features=a", "NumNodes=2", "NumTasks=4", "AdminComment=x"]
    attempts = [["release", str(job_id)], *(["update", f"JobId={job_id}", change] for change in changes)]
    for words in attempts:
        done = slurm.user("scontrol", *words)
        assert done.returncode != 0, words
        assert "Access/permission denied" in done.stderr, words
    assert slurm.show(job_id) == before
    assert slurm.user("scontrol", "update", f"JobId={job_id}", "Comment=mine", "Name=run7").returncode == 0
    assert slurm.user("scontrol", "update", f"JobId={job_id}", "TimeLimit=5").returncode == 0
    after = slurm.show(job_id)
    assert (after["Comment"], after["JobName"], after["TimeLimit"]) == ("mine", "run7", "00:05:00")
    slurm.root("scontrol", "update", f"JobId={job_id}", "ReqNodeList=n1")


def test_an_owner_s_hold_shows_in_the_begin_time(slurm: HeldCluster) -> None:
    job_id = slurm.submit(*GPUS)
    assert slurm.user("scontrol", "hold", str(job_id)).returncode == 0
    assert slurm.show(job_id)["EligibleTime"] == OWNER_HOLD
    assert slurm.user("scontrol", "release", str(job_id)).returncode != 0
    assert slurm.user("scontrol", "update", f"JobId={job_id}", "StartTime=now").returncode == 0
    after = slurm.show(job_id)
    assert after["EligibleTime"] != OWNER_HOLD and after["Priority"] == "0"


def test_sbatch_hold_is_lifted_by_its_owner_and_the_job_stays_ours(slurm: HeldCluster) -> None:
    job_id = slurm.submit(*GPUS, "--hold")
    options = slurm.options(job_id)
    assert options is not None and options.user_hold
    assert slurm.show(job_id)["EligibleTime"] == OWNER_HOLD
    assert slurm.user("scontrol", "release", str(job_id)).returncode == 0
    after = slurm.show(job_id)
    assert after["EligibleTime"] != OWNER_HOLD
    assert (after["Priority"], after["JobState"]) == ("0", "PENDING")


def test_a_requeued_job_s_children_start_at_restart_zero(slurm: HeldCluster) -> None:
    job_id = slurm.submit(*GPUS, script="echo restart=$SLURM_RESTART_COUNT", SLURM_RESTART_COUNT="4")
    path = slurm.cluster.path("/run/gandiva/n1.sock")
    daemon = FakeGandivad(path, answer(f"OK GANDIVA_JOB={job_id}\n"))
    try:
        assert slurm.run(job_id) == "restart=0\n"
    finally:
        daemon.close()
        daemon.unlink()
