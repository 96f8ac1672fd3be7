"""From Slurm's answers to the picture: fields, states, GRES, node lists, arrays, associations."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.engine.state.records import NodeRecord
from gandiva_slurm.model.errors import SlurmUnreachable
from gandiva_slurm.model.snapshot import Association, SlurmJob
from gandiva_slurm.slurm import accounts, arrays, gres, reader, states
from gandiva_slurm.slurm.commands import parse_config
from gandiva_slurm.slurm.dependencies import Dependencies
from gandiva_slurm.slurm.fields import records
from gandiva_slurm.slurm.jobs import exit_code, node_names
from tests.builders import a_job

TAPES = Path(__file__).parents[1] / "contract/assets"
OLD, NEW = "22.05", "26.05"
OURS = frozenset({"gandiva"})
SQUEUE = {release: reader.jobs_command(reader.release(release)) for release in (OLD, NEW)}
NODES = {release: reader.nodes_command(reader.release(release)) for release in (OLD, NEW)}
PLAIN = Path(__file__).parents[1] / "data/squeue-26.05-plain.json"


def recorded(command: Sequence[str], test: str, release: str = OLD) -> dict[str, Any]:
    """Return the last answer of a command on a test's tape."""
    home = TAPES / release / test
    tape = json.loads((home / "tape.json").read_text())
    entry = [item for item in tape if item["argv"] == list(command)][-1]
    return json.loads((home / entry["out_file"]).read_text() if "out_file" in entry else entry["out"])


@pytest.fixture
def answer() -> dict[str, Any]:
    return recorded(SQUEUE[OLD], "test_a_held_gandiva_job")


@pytest.mark.parametrize("release", [OLD, NEW])
def test_every_job_field_that_is_missing_is_named(release: str) -> None:
    answer = recorded(SQUEUE[release], "test_a_held_gandiva_job", release)
    (whole,) = answer["jobs"]
    read = 0
    for key in whole:
        without = {name: value for name, value in whole.items() if name != key}
        try:
            reader.read_jobs(json.dumps(answer | {"jobs": [without]}), OURS)
        except SlurmUnreachable as err:
            assert f"squeue --all --states=all: jobs[0].{key} is missing" in str(err)
            read += 1
    assert read >= 20


@pytest.mark.parametrize("release", [OLD, NEW])
def test_every_node_field_that_is_missing_is_named(release: str) -> None:
    answer = recorded(NODES[release], "test_nodes", release)
    keys = ["name", "state", "gres", "gres_used", "partitions", "reason", "real_memory", "cpus", "address"]
    for key in keys + ["state_flags"] * (release == OLD):
        node = {name: value for name, value in answer["nodes"][0].items() if name != key}
        command = re.escape(" ".join(NODES[release]))
        with pytest.raises(SlurmUnreachable, match=rf"{command}: nodes\[0\]\.{key} is missing"):
            reader.read_nodes(json.dumps(answer | {"nodes": [node]}), OURS, NODES[release])


@pytest.mark.parametrize("release", [OLD, NEW])
def test_a_node_that_has_not_registered_since_slurmctlds_start_is_not_known(release: str) -> None:
    """A job that ends there makes it IDLE; 22.05 would give the next one none of its GPUs."""
    answer = recorded(NODES[release], "test_nodes", release)

    def state(started: int) -> frozenset[str]:
        node = answer["nodes"][0]
        node = node | {"state": "idle" if release == OLD else ["IDLE"], "slurmd_start_time": started}
        (read,) = reader.read_nodes(json.dumps(answer | {"nodes": [node]}), OURS, NODES[release])
        assert NodeRecord(read).is_open is read.is_heard is (started > 0)
        return read.state

    assert state(1795912129) == {"IDLE"} and state(0) == {"IDLE", "UNKNOWN"}


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("22.05.8", (*reader.SINFO, "--json")),
        ("23.02.1", (*reader.NODES, "--json")),
        ("26.05.5", (*reader.NODES, "--json=v0.0.45+complex")),
        ("27.11.0", (*reader.NODES, "--json")),
    ],
)
def test_nodes_are_asked_for_as_the_release_can_tell(version: str, command: tuple[str, ...]) -> None:
    assert reader.nodes_command(reader.release(version)) == command


def test_a_missing_part_of_an_exit_code_is_named() -> None:
    answer = recorded(SQUEUE[NEW], "test_a_held_gandiva_job", NEW)
    del answer["jobs"][0]["exit_code"]["signal"]["id"]
    with pytest.raises(SlurmUnreachable, match=r"jobs\[0\]\.exit_code\.signal\.id is missing"):
        reader.read_jobs(json.dumps(answer), OURS)


@pytest.mark.parametrize("endless", ["Infinity", 2**32 - 1, {"set": True, "infinite": True, "number": 0}])
def test_what_has_no_limit(endless: object) -> None:
    answer = recorded(SQUEUE[NEW], "test_a_held_gandiva_job", NEW)
    answer["jobs"][0] |= {"time_limit": endless, "priority": endless}
    (job,), _ = reader.read_jobs(json.dumps(answer), OURS)
    assert job.time_limit_s == 0
    assert not job.is_held, "a priority without limit is not 0, which would mean held"


def test_the_plain_form_of_a_release_not_tried_is_read_too() -> None:
    (job,), _ = reader.read_jobs(PLAIN.read_text(), OURS)
    assert (job.job_id, job.state, job.priority, job.exit_code) == (1, "PENDING", 0, "0:0")
    assert (job.time_limit_s, job.array_job_id, job.array_task_id) == (3600, 0, None)
    assert job.options is not None and job.options.gpus == 2


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("priority", {"set": True, "number": 1}, "a number"),
        ("priority", {"set": True, "infinite": False, "number": "1"}, "a number"),
        ("priority", [1], "a number"),
        ("priority", "1", "a number"),
        ("job_state", 3, "a list of words"),
        ("job_state", [3], "a list of words"),
        ("batch_flag", 1, "true or false"),
    ],
)
def test_a_field_of_another_form_is_named(
    answer: dict[str, Any], key: str, value: object, wanted: str
) -> None:
    answer["jobs"][0][key] = value
    with pytest.raises(SlurmUnreachable, match=rf"jobs\[0\]\.{key}: expected {wanted}"):
        reader.read_jobs(json.dumps(answer), OURS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ('{"jobs": [{"job_id": 1', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no list 'jobs'"),
        ('{"errors": []}', "no list 'jobs'"),
        ('{"jobs": [3], "errors": []}', r"jobs\[0\]: expected a record"),
        ('{"jobs": [], "errors": [{"error": "Unspecified error"}]}', "Unspecified error; is slurmctld up"),
    ],
)
def test_an_answer_that_is_no_picture(text: str, why: str) -> None:
    with pytest.raises(SlurmUnreachable, match=why):
        records(text, "squeue --json", "jobs")


def test_an_empty_cluster_is_a_picture(answer: dict[str, Any]) -> None:
    assert reader.read_jobs(json.dumps(answer | {"jobs": []}), OURS) == ((), ())


def test_an_unknown_state_is_alive(answer: dict[str, Any]) -> None:
    answer["jobs"][0]["job_state"] = "TELEPORTING"
    (job,), _ = reader.read_jobs(json.dumps(answer), OURS)
    assert job.state == "TELEPORTING"
    assert not states.is_finished(job.state)


def test_states_are_words_in_upper_case() -> None:
    assert states.job_state(["CANCELLED by 1000"]) == "CANCELLED"
    assert states.job_state(["running"]) == "RUNNING"
    assert states.job_state([""]) == states.job_state([]) == "UNKNOWN"
    assert states.job_state(["COMPLETED", "COMPLETING"]) == "COMPLETING", "a flag hides the state below it"
    assert states.job_state(["RUNNING", "UPDATE_DB"]) == "RUNNING", "not each flag does"
    assert states.job_state(["REQUEUE_HOLD"]) == states.job_state(["PENDING", "REQUEUE_HOLD"]) == "PENDING"
    assert states.node_state(["mixed", "drain", "NOT_RESPONDING"]) == {"MIXED", "DRAIN", "NOT_RESPONDING"}
    assert states.node_state([""]) == {"UNKNOWN"}


def test_a_user_slurm_cannot_name_is_a_number(answer: dict[str, Any]) -> None:
    answer["jobs"][0]["user_name"] = ""
    (job,), _ = reader.read_jobs(json.dumps(answer), OURS)
    assert job.user == "5001"


def test_what_slurm_does_not_know_is_nothing(answer: dict[str, Any]) -> None:
    answer["jobs"][0] |= {"time_limit": None, "qos": None, "tres_req_str": ""}
    (job,), _ = reader.read_jobs(json.dumps(answer), OURS)
    assert (job.time_limit_s, job.qos, job.memory_mib) == (0, "", 0)


def test_a_job_that_may_go_to_our_partition_is_seen(answer: dict[str, Any]) -> None:
    answer["jobs"][0] |= {"partition": "plain,gandiva", "admin_comment": ""}
    (job,), _ = reader.read_jobs(json.dumps(answer), OURS)
    assert job.options is None
    answer["jobs"][0]["partition"] = "plain"
    assert reader.read_jobs(json.dumps(answer), OURS) == ((), ())


@pytest.mark.parametrize(
    ("status", "text"), [(0, "0:0"), (768, "3:0"), (9, "0:9"), (256 + 15, "1:15"), (4294967294, "255:126")]
)
def test_exit_codes_are_slurms(status: int, text: str) -> None:
    assert exit_code(status) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:v100:16", [("v100", 16)]),
        ("gpu:v100:3(IDX:0,2-3)", [("v100", 3)]),
        ("gpu:16(S:0-1)", [("", 16)]),
        ("gpu:v100:8(S:0),gpu:p100:8(S:1),nic:2", [("v100", 8), ("p100", 8)]),
        ("gpu:v100:0(IDX:N/A)", [("v100", 0)]),
        ("gpu", [("", 1)]),
        ("gpu:0", [("", 0)]),
        ("mps:gpu:3,shard:4", []),
        ("(null)", []),
        ("", []),
    ],
)
def test_gres(text: str, found: list[tuple[str, int]]) -> None:
    assert gres.gpus(text) == found


@pytest.mark.parametrize(
    ("text", "mem_mib"),
    [
        ("cpu=2,mem=200M,node=1", 200), ("mem=62.50G", 64000), ("mem=2T", 2 * 1024**2), ("mem=1500", 1500),
        ("mem=100K", 1), ("mem=1.01M", 2), ("cpu=1", None), ("mem=", None), ("mem=x", None), ("", None),
    ],
)  # fmt: skip
def test_tres_memory_is_mib_rounded_up(text: str, mem_mib: int | None) -> None:
    assert gres.tres(text).get("mem") == mem_mib


def test_node_lists() -> None:
    assert node_names("n[08-11],a1") == ("a1", "n08", "n09", "n10", "n11")
    assert node_names("") == ()
    with pytest.raises(SlurmUnreachable, match="not a node list"):
        node_names("n[1-")


@pytest.mark.parametrize(
    ("text", "count", "numbers"),
    [
        ("1-5,9%2", 10, [1, 2, 3, 4, 5, 9]),
        ("0-499:5", 3, [0, 5, 10]),
        ("3", 2, [3]),
        ("1,3,5,...", 9, [1, 3, 5]),
        ("0-4294967295", 2, [0, 1]),
        ("7-3", 2, []),
        ("1-9:0", 2, [1, 2]),
        ("x", 2, []),
        ("", 2, []),
    ],
)
def test_task_lists(text: str, count: int, numbers: list[int]) -> None:
    assert arrays.first_tasks(text, count) == numbers


def test_nothing_is_split_where_nothing_is_of_use() -> None:
    answer = recorded(SQUEUE[OLD], "test_a_large_array_is_split_ahead")
    jobs, joint = reader.read_jobs(json.dumps(answer), OURS)
    assert len(joint) == 1
    assert arrays.to_split(joint, jobs) == {}


def test_associations() -> None:
    table = (
        "root|||1|\nroot|root||1|\nlab||root|30|\nlab|ann||20|gandiva\nlab|ann||10|\nlab|bob||parent|\n"
        "lab|eve||5|gandiva\nlab|eve||6|plain\nbroken|line\n"
    )
    assert accounts.parse(table) == (
        Association("root", "", "", 1),
        Association("root", "root", "", 1),
        Association("lab", "", "root", 30),
        Association("lab", "ann", "", 10),
        Association("lab", "bob", "", 1),
        Association("lab", "eve", "", 5),
    )


def test_configuration() -> None:
    text = "Configuration data:\nA   = 1\nB = (null)\nC=x = y\n\nCgroup:\nA = 2\nslurmctld is UP\n"
    assert parse_config(text) == {"A": "1", "B": "", "C": "x = y"}


def job(job_id: int, state: str = "PENDING", **changes: Any) -> SlurmJob:
    return SlurmJob(job_id, "ann", 1, "lab", "gandiva", state, **{"name": f"j{job_id}", **changes})


OTHERS = (
    job(1, "COMPLETED"),
    job(2, "FAILED"),
    job(3, "RUNNING"),
    job(4, "PENDING"),
    job(5, "COMPLETING"),
    job(61, "COMPLETED", array_job_id=60, array_task_id=1),
    job(62, "FAILED", array_job_id=60, array_task_id=2),
    job(60, "PENDING", array_job_id=60),
    job(71, "COMPLETED", array_job_id=70, array_task_id=1),
    job(70, "COMPLETED", array_job_id=70, array_task_id=2),
    job(8, "RUNNING", name="one"),
)


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ("afterok:1(unfulfilled)", ""),
        ("afterok:2(unfulfilled)", "afterok:2(failed)"),
        ("afterok:3(unfulfilled)", "afterok:3(unfulfilled)"),
        ("afterok:5(unfulfilled)", "afterok:5(unfulfilled)"),
        ("afterok:99(unfulfilled)", ""),
        ("afterok:1(failed)", "afterok:1(failed)"),
        ("afterany:2(unfulfilled)", ""),
        ("afternotok:2(unfulfilled)", ""),
        ("afternotok:1(unfulfilled)", "afternotok:1(failed)"),
        ("after:3(unfulfilled)", ""),
        ("after:3+5(unfulfilled)", ""),
        ("after:4(unfulfilled)", "after:4(unfulfilled)"),
        ("afterok:1(unfulfilled),afterok:3(unfulfilled)", "afterok:3(unfulfilled)"),
        ("afterok:3(unfulfilled)?afterany:2(unfulfilled)", ""),
        ("afterok:3(unfulfilled)?afterok:2(unfulfilled)", "afterok:3(unfulfilled)?afterok:2(failed)"),
        ("afterok:60_1(unfulfilled)", ""),
        ("afterok:60_2(unfulfilled)", "afterok:60_2(failed)"),
        ("afterok:60_7(unfulfilled)", "afterok:60_7(unfulfilled)"),
        ("afterany:60_*(unfulfilled)", "afterany:60_*(unfulfilled)"),
        ("afterok:70_*(unfulfilled)", ""),
        ("afterok:70_9(unfulfilled)", ""),
        ("aftercorr:60_*(unfulfilled)", ""),
        ("expand:3(unfulfilled)", "expand:3(unfulfilled)"),
        ("afterok:1@far(unfulfilled)", "afterok:1@far(unfulfilled)"),
        ("singleton(unfulfilled)", "singleton(unfulfilled)"),
    ],
)
def test_what_a_held_job_still_waits_for(told: str, left: str) -> None:
    waiting = job(100, dependency=told, name="one", array_job_id=90, array_task_id=1)
    assert Dependencies(OTHERS).settle(waiting).dependency == left


def test_dependencies_of_others_are_left_to_slurm() -> None:
    free = job(100, dependency="afterok:1(unfulfilled)", priority=9)
    assert Dependencies(OTHERS).settle(free) == free
    only = job(7, dependency="singleton(unfulfilled)", name="one")
    assert Dependencies([*OTHERS, only]).settle(only).dependency == ""


def test_the_start_of_a_job_that_waits_or_was_requeued_is_a_forecast():
    known = {state: states.has_started(state) for state in ("PENDING", "COMPLETING", "RUNNING", "FAILED")}
    assert known == {"PENDING": False, "COMPLETING": False, "RUNNING": True, "FAILED": True}


def test_a_throttled_array_has_no_more_live_tasks_than_it_may():
    jobs = [a_job(20 + task, array_job_id=7, array_task_id=task) for task in (1, 2)]
    assert arrays.to_split([arrays.JointTasks(7, "3-9", throttle=3)], jobs) == {7: [3]}
    assert arrays.to_split([arrays.JointTasks(7, "3-9", throttle=2)], jobs) == {}
    assert arrays.to_split([arrays.JointTasks(7, "3-6", throttle=0)], jobs) == {7: [3, 4, 5]}


def test_restart_count_and_the_memory_of_each_node_are_read(answer: dict[str, Any]) -> None:
    tres = {"tres_req_str": "cpu=4,mem=8G,node=2,billing=4,gres/gpu=2", "tres_alloc_str": ""}
    (record,) = answer["jobs"]
    record |= tres | {"restart_cnt": 3}
    ((job,), _) = reader.read_jobs(json.dumps(answer), OURS)
    assert (job.restart, job.node_count, job.memory_mib) == (3, 2, 4096)


def test_one_job_that_cannot_be_read_is_left_out_alone(answer: dict[str, Any]) -> None:
    whole = answer["jobs"][0]
    bad = {key: value for key, value in whole.items() if key != "tres_req_str"} | {"job_id": 900}
    unread: dict[int, str] = {}
    jobs, _ = reader.read_jobs(json.dumps(answer | {"jobs": [bad, whole]}), OURS, unread=unread)
    assert [job.job_id for job in jobs] == [whole["job_id"]]
    assert [*unread] == [900] and "jobs[0].tres_req_str is missing" in unread[900]


def test_many_jobs_that_cannot_be_read_are_another_form(answer: dict[str, Any]) -> None:
    whole = answer["jobs"][0]
    bad = {key: value for key, value in whole.items() if key != "tres_req_str"}
    for jobs in ([bad], [whole, *({**bad, "job_id": 900 + n} for n in range(reader.MOST_UNREAD + 1))]):
        with pytest.raises(SlurmUnreachable, match="tres_req_str is missing"):
            reader.read_jobs(json.dumps(answer | {"jobs": jobs}), OURS, unread={})
