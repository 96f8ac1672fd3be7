"""Gandiva's job_submit module, under the Lua that Slurm embeds, with a stand-in for slurmctld."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.slurm.options import read_options
from tests.job_submit import LUA, Outcome, run_module
from tests.unit.option_cases import BAD, GOOD, TAKES

HERE = Path(__file__).parent
CONF = HERE.parents[1] / "slurm_conf"
OPTION = "_SLURM_SPANK_OPTION_gandiva_gandiva"
CONFIGURE: dict[str, Any] = {
    "partitions": ["gandiva"], "nodes_gpus": {"v100": 4, "k80": 2}, "slurm_uid": 64, "admin_uids": [77],
}
PARTS = {"gandiva": {"flag_default": 0, "total_nodes": 6}, "cpu": {"flag_default": 1, "total_nodes": 9}}
RELEASE, NO_VAL = 4294967295, 4294967294
OWNER_HOLD = 4102444800
ACCESS_DENIED = 2002
RECORD = 'gandiva:{"v":1,"gpus":1,"user_hold":false}'

pytestmark = pytest.mark.skipif(LUA is None, reason="no lua5.1 (make setup installs it)")


Host = Callable[..., Outcome]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """host(desc, **case): run one case; `module` names another copy of the module."""

    def run(desc: dict[str, Any], module: Path = CONF / "gandiva_job_submit.lua", **case: Any) -> Outcome:
        case = {"configure": CONFIGURE, "call": "submit", "parts": PARTS, "uid": 2001, **case, "desc": desc}
        return run_module(module, case, tmp_path / "case.lua")

    return run


def job(**more: Any) -> dict[str, Any]:
    """A job of the Gandiva partition that asks for two GPUs."""
    return {"partition": "gandiva", "tres_per_node": "gres:gpu:v100:2", **more}


def flags(**values: str) -> list[str]:
    """Options as Slurm hands them over; `gandiva=""` stands for the bare flag."""
    return [f"{OPTION}={value or '(null)'}" if name == "gandiva" else f"{OPTION}_{name}={value}"
            for name, value in values.items()]


def test_a_job_of_our_partition_is_held_and_recorded(host: Host) -> None:
    outcome = host(job())
    assert (outcome.rc, outcome.user) == (0, "")
    assert outcome.changes["priority"] == "0"
    assert (outcome.changes["min_nodes"], outcome.changes["max_nodes"]) == ("1", "1")
    assert outcome.record == {
        "v": 1, "tickets": 100, "priority": 50, "class": "guaranteed", "vc": "", "types": "", "cell": "any",
        "elastic": "", "pack": "auto", "migrate": "auto", "hook": "auto", "checkpoint": "auto",
        "gpus": 2, "nodes": 1, "type": "v100", "user_hold": False,
    }


def test_the_controller_reads_what_is_recorded(host: Host) -> None:
    sent = flags(gandiva="1", tickets="7", priority="9", gpu_types="k80,v100", cell="node", hook="none")
    outcome = host(job(spank=sent, tres_per_node="gres:gpu:2", admin_comment='jobstats:{"x":1}', priority=0))
    assert outcome.changes["admin_comment"].startswith('jobstats:{"x":1} gandiva:{')
    options = read_options(outcome.changes["admin_comment"], 1)
    assert options is not None
    assert (options.tickets, options.priority, options.types) == (7, 9, ("k80", "v100"))
    assert (options.cell, options.hook, options.gpus, options.user_hold) == ("node", "none", 2, True)


def test_an_ordinary_job_is_left_alone(host: Host) -> None:
    stray = {"partition": "cpu", "spank": flags(pack="x")}
    for desc in ({"partition": "cpu", "tres_per_node": "gres:gpu:9"}, {}, stray):
        outcome = host(desc)
        assert (outcome.rc, outcome.user, outcome.changes) == (0, "", {})


def test_the_default_partition_counts_when_none_is_named(host: Host) -> None:
    ours = {"gandiva": {"flag_default": 1}, "cpu": {"flag_default": 0}}
    assert host({"tres_per_node": "gres:gpu:1"}, parts=ours).record["gpus"] == 1


def test_the_flag_alone_brings_a_job_to_our_partition(host: Host) -> None:
    outcome = host({"tres_per_node": "gres:gpu:1", "spank": flags(gandiva="")})
    assert (outcome.rc, outcome.changes["partition"]) == (0, "gandiva")
    assert "partition" not in host(job(partition="gandiva")).changes


@pytest.mark.parametrize(("desc", "gpus", "kind"), [
    ({"tres_per_node": "gres:gpu"}, 1, ""),
    ({"tres_per_node": "gres:gpu:k80"}, 1, "k80"),
    ({"tres_per_node": "gres/gpu:v100=3"}, 3, "v100"),
    ({"tres_per_node": "gres:gpu=2,gres:craynetwork:1"}, 2, ""),
    ({"tres_per_job": "gres:gpu:2"}, 2, ""),
    ({"tres_per_job": "gres:gpu:v100:4", "tres_per_node": "gres:gpu:4"}, 4, "v100"),
    ({"tres_per_task": "gres:gpu:1", "num_tasks": 3}, 3, ""),
    ({"tres_per_task": "gres:gpu:2", "ntasks_per_node": 2}, 4, ""),
    ({"tres_per_task": "gres:gpu:2"}, 2, ""),
    ({"tres_per_job": "gres:gpu:4", "tres_per_task": "gres:gpu:2"}, 4, ""),
    ({"tres_per_socket": "gres:gpu:2", "sockets_per_node": 2}, 4, ""),
    ({"ntasks_per_tres": 2, "num_tasks": 4}, 2, ""),
])
def test_every_form_of_asking_for_gpus(host: Host, desc: dict[str, Any], gpus: int,
                                       kind: str) -> None:
    outcome = host({"partition": "gandiva", **desc})
    assert (outcome.user, outcome.rc) == ("", 0)
    assert (outcome.record["gpus"], outcome.record["type"]) == (gpus, kind)


@pytest.mark.parametrize(("desc", "gpus", "nodes", "ntasks_per_node"), [
    ({"min_nodes": 2, "max_nodes": 2, "tres_per_node": "gres:gpu:2"}, 4, 2, None),
    ({"min_nodes": 6, "tres_per_node": "gres:gpu:v100:4"}, 24, 6, None),
    ({"min_nodes": 2, "tres_per_node": "gres:gpu:2", "tres_per_job": "gres:gpu:4"}, 4, 2, None),
    ({"min_nodes": 2, "tres_per_socket": "gres:gpu:1", "sockets_per_node": 2}, 4, 2, None),
    ({"min_nodes": 2, "tres_per_task": "gres:gpu:1", "num_tasks": 4, "ntasks_per_node": 2}, 4, 2, 2),
    ({"min_nodes": 2, "tres_per_task": "gres:gpu:2", "ntasks_per_node": 1}, 4, 2, 1),
    ({"min_nodes": 2, "tres_per_task": "gres:gpu:1", "num_tasks": 4}, 4, 2, 2),
    ({"min_nodes": 2, "tres_per_node": "gres:gpu:2", "num_tasks": 4}, 4, 2, 2),
    ({"min_nodes": 2, "tres_per_node": "gres:gpu:2", "num_tasks": 3}, 4, 2, None),
    ({"min_nodes": 1, "tres_per_node": "gres:gpu:2", "num_tasks": 4}, 2, 1, None),
    ({"tres_per_task": "gres:gpu:1", "num_tasks": 6, "ntasks_per_node": 2}, 6, 3, 2),
    ({"tres_per_node": "gres:gpu:2", "num_tasks": 3, "ntasks_per_node": 2}, 4, 2, None),
    ({"min_nodes": 1, "tres_per_node": "gres:gpu:2", "num_tasks": 3, "ntasks_per_node": 2}, 2, 1, None),
])
def test_several_nodes_have_as_many_gpus_each(
    host: Host, desc: dict[str, Any], gpus: int, nodes: int, ntasks_per_node: int | None
) -> None:
    outcome = host({"partition": "gandiva", **desc})
    assert (outcome.user, outcome.rc) == ("", 0)
    assert (outcome.record["gpus"], outcome.record["nodes"]) == (gpus, nodes)
    assert (outcome.changes["min_nodes"], outcome.changes["max_nodes"]) == (str(nodes), str(nodes))
    assert outcome.changes.get("ntasks_per_node", "None") == str(ntasks_per_node)
    options = read_options(outcome.changes["admin_comment"], 1)
    assert options is not None
    assert (options.nodes, options.gpus_per_node) == (nodes, gpus // nodes)


def test_a_partition_whose_size_is_not_told_bounds_nothing(host: Host) -> None:
    unknown = {"gandiva": {"flag_default": 0}}
    assert host(job(min_nodes=99), parts=unknown).record["nodes"] == 99


@pytest.mark.parametrize(("desc", "sentence"), [
    ({"tres_per_node": None}, "--gres: no GPU asked; next: add --gres=gpu:N"),
    ({"tres_per_node": "gres:gpu:0"}, "--gres: no GPU asked"),
    ({"tres_per_node": "gres:gpu:9"}, "--gres: 9 GPUs asked, the largest node of this partition has 4; next"),
    ({"tres_per_node": "gres:gpu:k80:3"},
     "--gres: 3 GPUs asked, the largest node of this partition with k80 has 2"),
    ({"tres_per_node": None, "tres_per_job": "gres:gpu:5"}, "--gpus: 5 GPUs asked"),
    ({"tres_per_node": None, "tres_per_task": "gres:gpu:2", "num_tasks": 3},
     "--gpus-per-task: 6 GPUs asked"),
    ({"tres_per_node": "gres:gpu:h100:1"},
     '--gres: no node has GPUs of type "h100"; next: ask for one of k80, v100, or leave the type out'),
    ({"tres_per_node": "gres:gpu:v100:x"}, '--gres: got "gres:gpu:v100:x", takes gpu:N or gpu:TYPE:N'),
    ({"tres_per_node": "gres:gpu:v100:1,gres:gpu:k80:1"}, "--gres: two kinds of GPU in one job"),
    ({"tres_per_job": "gres:gpu:3"}, "--gres: asks for 2 GPUs where --gpus asks for 3"),
    ({"tres_per_job": "gres:gpu:k80:2"}, "--gres: asks for GPUs of type v100 where --gpus asks for k80"),
    ({"spank": flags(vc="team")}, '--gandiva-vc: no virtual cluster "team"; none is configured here'),
    ({"spank": flags(gpu_types="v100,h100")}, '--gandiva-gpu-types: no node has GPUs of type "h100"'),
    ({"spank": flags(elastic="3-4")}, "--gandiva-elastic: 3-4 leaves out the number --gres asks for, 2"),
    ({"min_nodes": 2, "spank": flags(elastic="1-8")}, "--gandiva-elastic: a job of 2 nodes keeps its size"),
    ({"tres_per_node": None, "tres_per_job": "gres:gpu:2", "spank": flags(elastic="1-4")},
     "--gandiva-elastic: --gpus asks for the GPUs, and Slurm changes their number only where --gres does"),
    ({"tres_per_node": None, "tres_per_task": "gres:gpu:1", "num_tasks": 2, "spank": flags(elastic="1-4")},
     "--gandiva-elastic: --gpus-per-task asks for the GPUs, "),
    ({"tres_per_job": "gres:gpu:2", "spank": flags(elastic="1-4")}, "--gandiva-elastic: --gpus asks"),
    ({"ntasks_per_node": 2, "spank": flags(elastic="1-4")}, "--gandiva-elastic: --ntasks-per-node cannot"),
    ({"spank": flags(gandiva="maybe")}, '--gandiva: got "maybe", takes 1 or 0'),
    ({"min_nodes": 2, "max_nodes": 4},
     "--nodes: 2-4 asked, a Gandiva job has a fixed number; next: ask for --nodes=2"),
    ({"min_nodes": 1, "max_nodes": 2}, "--nodes: 1-2 asked"),
    ({"min_nodes": 7}, "--nodes: 7 nodes asked, the partition has 6; next: ask for at most 6"),
    ({"min_nodes": 2, "tres_per_node": "gres:gpu:9"},
     "--gres: 9 GPUs on each node asked, the largest node of this partition has 4; next"),
    ({"min_nodes": 2, "spank": flags(cell="node")}, "--gandiva-cell: node asked for a job of 2 nodes; next"),
    ({"min_nodes": 2, "spank": flags(cell="gpu")}, "--gandiva-cell: gpu asked for a job of 2 nodes; next: "),
    ({"min_nodes": 2, "tres_per_node": None, "tres_per_job": "gres:gpu:4"},
     "--gpus: Slurm may split 4 GPUs unevenly over 2 nodes; next: write --gpus-per-node"),
    ({"min_nodes": 2, "tres_per_job": "gres:gpu:3"}, "--gpus: asks for 3 GPUs where --gres asks for 4"),
    ({"min_nodes": 2, "tres_per_job": "gres:gpu:k80:4"}, "--gpus: asks for GPUs of type k80 where --gres"),
    ({"min_nodes": 2, "tres_per_node": None, "tres_per_task": "gres:gpu:1"},
     "--gpus-per-task: it must be known how many tasks each of the 2 nodes has; next: write --gpus-per-node"),
    ({"min_nodes": 2, "tres_per_node": None, "tres_per_task": "gres:gpu:1", "num_tasks": 3},
     "--gpus-per-task: it must be known how many tasks each of the 2 nodes has"),
    ({"min_nodes": 2, "tres_per_node": None, "ntasks_per_tres": 1, "num_tasks": 4},
     "--ntasks-per-gpu: it must be known how many tasks each of the 2 nodes has; next: write --gpus-per-"),
    ({"req_nodes": "n1"}, "--nodelist, --exclude: Gandiva chooses the node"),
    ({"exc_nodes": "n1"}, "--nodelist, --exclude: Gandiva chooses the node"),
    ({"features": "avx"}, "--constraint: Gandiva chooses the node by its GPUs"),
    ({"shared": 0}, "--exclusive: a Gandiva job shares its node"),
    ({"het_job_offset": 0}, "heterogeneous jobs are not taken"),
    ({"het_job_offset": 1}, "heterogeneous jobs are not taken"),
    ({"partition": "cpu", "spank": flags(gandiva="")}, "--gandiva: partition cpu is not Gandiva's; next: "),
    ({"partition": "cpu,gandiva"}, "--partition: cpu,gandiva is Gandiva's only in part"),
])
def test_what_cannot_be_met_is_refused_and_nothing_is_changed(
    host: Host, desc: dict[str, Any], sentence: str
) -> None:
    outcome = host({key: value for key, value in job(**desc).items() if value is not None})
    assert outcome.user.startswith("gandiva: " + sentence)
    assert (outcome.rc, outcome.changes) == (-1, {})


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_good_values_are_recorded(host: Host, name: str, value: str) -> None:
    configure = {**CONFIGURE, "vcs": ["team-a", "A.b_9"]}
    gpus = "gres:gpu:1" if value == "1-1" else "gres:gpu:2"
    sent = flags(**{name.replace("-", "_"): value})
    outcome = host(job(spank=sent, tres_per_node=gpus), configure=configure)
    assert outcome.user == ""
    settled = {"signal:USR1": "signal:USR1@60", "submitit": "submitit:USR2@90"}.get(value, value)
    assert str(outcome.record["types" if name == "gpu-types" else name]) == settled


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_values_are_refused_whatever_the_client_let_pass(
    host: Host, name: str, value: str
) -> None:
    outcome = host(job(spank=flags(**{name.replace("-", "_"): value})))
    assert outcome.user.startswith(f'gandiva: --gandiva-{name}: got "')
    assert outcome.user.endswith(f'takes {TAKES[name]}')
    assert outcome.user.isprintable()
    assert (outcome.rc, outcome.changes) == (-1, {})


def test_options_of_an_outer_job_do_not_count(host: Host) -> None:
    outer = {f"{OPTION}_tickets": "7", "SLURM_RESTART_COUNT": "3"}
    outcome = host(job(environment=outer))
    assert outcome.record["tickets"] == 100
    assert outcome.environment["SLURM_RESTART_COUNT"] == "0"


def test_sbatch_hold_is_recorded_and_kept_from_starting(host: Host) -> None:
    outcome = host(job(priority=0))
    assert outcome.record["user_hold"] is True
    assert outcome.changes["begin_time"] == str(OWNER_HOLD)


def test_a_planted_record_is_taken_away(host: Host) -> None:
    planted = 'note gandiva:{"v":1,"gpus":1,"tickets":1000}'
    assert host({"partition": "cpu", "admin_comment": planted}).changes["admin_comment"] == "note"
    assert host(job(admin_comment=planted)).changes["admin_comment"].count("gandiva:{") == 1


@pytest.mark.parametrize("field_name", ["tres_per_node", "num_tasks", "shared", "min_nodes"])
def test_a_mistake_of_ours_refuses_our_jobs_only(host: Host, field_name: str) -> None:
    ours = host(job(), break_field=field_name)
    assert ours.rc == -1
    assert ours.user.startswith("gandiva: job_submit failed on this job: ")
    other = host({"partition": "cpu"}, break_field=field_name)
    assert (other.rc, other.user, other.changes) == (0, "", {})


def test_a_mistake_in_finding_out_lets_ordinary_jobs_pass(host: Host) -> None:
    assert host({"partition": "cpu"}, break_field="spank_job_env_size").rc == 0
    assert host({"partition": "cpu"}, break_field="partition").rc == 0


@pytest.mark.parametrize(("configure", "says"), [
    ({**CONFIGURE, "partition": "x"}, 'unknown key "partition"'),
    ({**CONFIGURE, "nodes_gpus": {"v100": 0}}, "nodes_gpus.v100 must be a whole number from 1"),
    ({"partitions": ["gandiva"]}, "nodes_gpus must name"),
])
def test_a_wrong_configuration_refuses_our_jobs_with_it(
    host: Host, configure: dict[str, Any], says: str
) -> None:
    ours = host(job(), configure=configure)
    assert ours.rc == -1
    assert says in ours.user
    assert says in ours.log
    assert host({"partition": "cpu"}, configure=configure).rc == 0
    assert host({"partition": "cpu", "spank": flags(gandiva="")}, configure=configure).rc == -1


def modify(host: Host, desc: dict[str, Any], uid: int = 2001, comment: str = RECORD,
           state: int = 0) -> Outcome:
    return host(desc, call="modify", rec={"job_id": 5, "admin_comment": comment, "job_state": state}, uid=uid)


@pytest.mark.parametrize("change", [
    {"priority": RELEASE}, {"priority": 1000}, {"nice": 2147483653}, {"tres_per_node": "gres:gpu:4"},
    {"tres_per_job": ""}, {"tres_per_task": "gpu:1"}, {"req_nodes": "n2"}, {"exc_nodes": "n2"},
    {"features": "a"}, {"partition": "cpu"}, {"min_nodes": 2}, {"num_tasks": 4}, {"shared": 0},
])
def test_an_owner_may_not_change_what_gandiva_decides(host: Host, change: dict[str, Any]) -> None:
    outcome = modify(host, dict(change))
    assert (outcome.rc, outcome.changes) == (ACCESS_DENIED, {})
    assert outcome.log.startswith("gandiva: update of job 5 by uid 2001 refused: ")
    for uid in (0, 64, 77):
        assert modify(host, dict(change), uid=uid).rc == 0
    assert modify(host, dict(change), comment="jobstats:{}").rc == 0


@pytest.mark.parametrize("change", [{"comment": "x"}, {"name": "n"}, {"time_limit": 5}, {"begin_time": 1}])
def test_an_owner_may_change_what_is_harmless(host: Host, change: dict[str, Any]) -> None:
    outcome = modify(host, dict(change))
    assert (outcome.rc, outcome.changes) == (0, {})


def test_an_owner_holds_by_the_begin_time(host: Host) -> None:
    assert modify(host, {"priority": 0}).changes == {"begin_time": str(OWNER_HOLD)}
    assert modify(host, {"priority": 0}, state=1).changes == {}


def test_an_owner_lifts_his_own_hold_and_not_ours(host: Host) -> None:
    outcome = modify(host, {"priority": RELEASE}, comment=RECORD.replace("false", "true"))
    assert outcome.rc == 0
    assert outcome.changes["priority"] == "0"
    assert 0 < int(outcome.changes["begin_time"]) < OWNER_HOLD


def test_a_mistake_in_an_update_refuses_the_owner_of_our_jobs_only(host: Host) -> None:
    rec = {"job_id": 5, "admin_comment": RECORD}
    broken = {"call": "modify", "break_field": "nice", "rec": rec}
    assert host({}, **broken, uid=2001).rc == ACCESS_DENIED
    assert host({}, **broken, uid=0).rc == 0
    assert host({}, **{**broken, "rec": {"job_id": 5}}, uid=2001).rc == 0


def test_the_example_script_refuses_only_our_jobs_when_the_module_is_broken(tmp_path: Path) -> None:
    (tmp_path / "gandiva_job_submit.lua").write_text("this is no Lua")
    script = (CONF / "job_submit.lua").read_text().replace("/etc/slurm", str(tmp_path))
    (tmp_path / "job_submit.lua").write_text(
        "slurm = {SUCCESS = 0, ERROR = -1, log_user = function(...) print(string.format(...)) end}\n" + script
    )
    call = ("dofile(arg[1]) print(slurm_job_submit({partition='cpu'}, {}, 1), "
            "slurm_job_submit({partition='gandiva'}, {}, 1), slurm_job_modify({}, {}, {}, 1))")
    words = [str(LUA), "-e", f"arg = {{'{tmp_path}/job_submit.lua'}} " + call]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["0", "-1", "0"]
    assert "does not load" in done.stdout


SAVES = "#SBATCH --signal={}\n"
SUBMITIT = "#SBATCH --signal=USR2@90\nexport SUBMITIT_EXECUTOR=slurm\nsrun python -m submitit.core._submit\n"


@pytest.mark.parametrize(
    ("asked", "script", "requeue", "settled"),
    [
        ("", "", 1, "auto"),
        ("", SAVES.format("B:USR1@90"), 1, "signal:B:USR1@90"),
        ("", SAVES.format("SIGUSR1"), 1, "signal:USR1@60"),
        ("", SAVES.format("USR1@90"), 65534, "auto"),
        ("", SAVES.format("USR1@90") + "trap 'scontrol requeue $SLURM_JOB_ID' USR1", 65534, "signal:USR1@90"),
        ("", SAVES.format("KILL@90"), 1, "auto"),
        ("", SUBMITIT, 1, "auto"),
        ("submitit", SUBMITIT, 65534, "submitit:USR2@90"),
        ("submitit", "", 65534, "submitit:USR2@90"),
        ("none", SUBMITIT, 1, "none"),
        ("self", SAVES.format("USR1@90"), 1, "self"),
        ("signal", SAVES.format("B:TERM@30"), 65534, "signal:B:TERM@30"),
        ("signal:USR2", SAVES.format("B:TERM@30"), 65534, "signal:B:USR2@30"),
        ("signal:USR2@5", "", 65534, "signal:USR2@5"),
        ("signal:USR2", "", 65534, "signal:USR2@60"),
    ],
)
def test_how_a_job_saves_itself_is_settled(
    host: Host, asked: str, script: str, requeue: int, settled: str
) -> None:
    """By its flag, its script's own --signal where it is requeued by its own word; submitit's if asked."""
    sent = flags(checkpoint=asked) if asked else []
    outcome = host(job(spank=sent, script=f"#!/bin/bash\n{script}", requeue=requeue))
    assert outcome.record["checkpoint"] == settled
    options = read_options(outcome.changes["admin_comment"], 1)
    assert options is not None and options.checkpoint == settled


@pytest.mark.parametrize(("given", "script", "settled"), [
    ("B:USR1@90", "", "signal:B:USR1@90"),
    ("B:USR1@90", SAVES.format("TERM@30"), "signal:B:USR1@90"),
    ("KILL@90", "", "auto"),
    ("", "", "auto"),
])
def test_the_signal_that_sbatch_was_given_counts_more_than_its_script_s(
    host: Host, given: str, script: str, settled: str
) -> None:
    told = job(spank=[f"GANDIVA_SIGNAL={given}"], script=f"#!/bin/bash\n{script}", requeue=1)
    assert host(told).record["checkpoint"] == settled


def test_a_job_without_a_script_has_no_signal_to_wait_for(host: Host) -> None:
    """Slurm sends salloc's to what salloc started."""
    assert host(job(spank=["GANDIVA_SIGNAL=USR1@90"], requeue=1)).record["checkpoint"] == "auto"


def test_a_signal_that_is_nowhere_named_is_refused(host: Host) -> None:
    outcome = host(job(spank=flags(checkpoint="signal")))
    assert outcome.rc != 0 and "next: name the signal, as in signal:USR1@60" in outcome.user
