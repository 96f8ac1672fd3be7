"""Two pictures in, events out."""

from dataclasses import replace

from gandiva_slurm.controller.differences import Picture, daemon_events, look, report_events, slurm_events
from gandiva_slurm.model.event import (
    DaemonSeen,
    HeldTold,
    JobGone,
    JobSeen,
    NodeGone,
    NodeSeen,
    ResidentGone,
    ResidentSeen,
    SharesSeen,
)
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import Association, JobOptions, SlurmJob, SlurmNode, Snapshot
from gandiva_slurm.wire.messages import NodeReport, Resident

JOB = SlurmJob(7, "user1", 1001, "lab", "gandiva", "PENDING", options=JobOptions())
PLAIN = replace(JOB, job_id=8, options=None)
NODE = SlurmNode("n1", frozenset({"IDLE"}))
RESIDENT = Resident(7, 0, "RUNNING", (0,), 1, 1, 1, 1, 5, 1.0, 0, 0, 0, 0, "", "")


def picture(*jobs: SlurmJob, nodes=(NODE,), associations=None) -> Picture:
    return look(Snapshot(jobs, tuple(nodes), associations), None, {})


def test_first_picture_is_all_new():
    events = slurm_events(None, picture(JOB, PLAIN), (), ())
    assert events == [NodeSeen(NODE), JobSeen(JOB)]


def test_same_picture_again_is_no_news():
    assert slurm_events(picture(JOB), picture(JOB), (7,), ("n1",)) == []


def test_changed_job_and_node_are_seen():
    moved, drained = replace(JOB, state="RUNNING"), replace(NODE, state=frozenset({"DRAIN"}))
    assert slurm_events(picture(JOB), picture(moved, nodes=[drained]), (7,), ("n1",)) == [
        NodeSeen(drained),
        JobSeen(moved),
    ]


def test_finished_job_is_gone_once_with_its_end():
    done = replace(JOB, state="FAILED", end_s=9, exit_code="1:0", restart=2)
    assert slurm_events(picture(JOB), picture(done), (7,), ("n1",)) == [JobGone(7, "FAILED", 9, "1:0", 2)]
    assert slurm_events(picture(done), picture(done), (), ("n1",)) == []
    assert slurm_events(picture(done), picture(), (), ("n1",)) == []


def test_unknown_state_is_alive():
    odd = replace(JOB, state="LAUNCH_FAILED_SOMEHOW")
    assert slurm_events(picture(JOB), picture(odd), (7,), ("n1",)) == [JobSeen(odd)]


def test_job_that_vanished_is_gone_without_a_word():
    assert slurm_events(picture(JOB), picture(), (7,), ("n1",)) == [JobGone(7, "", 0, "")]


def test_what_the_engine_remembers_and_slurm_does_not_is_gone_after_a_restart():
    assert slurm_events(None, picture(), (7,), ("n1", "n9")) == [
        NodeSeen(NODE),
        NodeGone("n9"),
        JobGone(7, "", 0, ""),
    ]


def test_shares_are_news_when_they_differ():
    rows = (Association("lab", "user1", "root", 1),)
    new = picture(associations=rows)
    assert slurm_events(picture(), new, (), ("n1",)) == [SharesSeen(rows)]
    later = look(Snapshot((), (NODE,), None), new, {})
    assert slurm_events(new, later, (), ("n1",)) == []


def test_overwritten_record_keeps_the_options_the_engine_has():
    bare = replace(JOB, options=None)
    assert look(Snapshot((bare,), (), None), None, {7: JOB}).jobs == {7: JOB}
    assert look(Snapshot((bare,), (), None), None, {}).jobs == {}


def test_residents_are_told_each_time_and_missing_ones_are_gone():
    report = NodeReport("n1", "b", 0, 0, 0, 4, (RESIDENT,), (), ())
    seen = ResidentSeen("n1", JobKey(7, 0), "RUNNING", (0,), "", "")
    assert report_events(report, [JobKey(7, 0)]) == [seen]
    assert report_events(report, [JobKey(6, 0)]) == [seen, ResidentGone("n1", JobKey(6, 0))]


def test_what_was_held_is_told_with_the_moment_at_which_it_was_heard():
    report = NodeReport("n1", "b", 0, 0, 0, 4, (replace(RESIDENT, gpu_ns=5),), (), ())
    assert report_events(report, [], None, 30)[1:] == [HeldTold("n1", ((JobKey(7, 0), 5),), 30)]


def test_a_job_without_a_record_that_slurm_shows_on_the_node_is_no_stray():
    report = NodeReport("n1", "b", 0, 0, 0, 4, (RESIDENT,), (), ())
    guest = replace(PLAIN, job_id=7, state="RUNNING", nodes=("n1",))
    assert picture(guest).others == {7: guest}
    assert report_events(report, [JobKey(7, 0)], {7: guest}) == [ResidentGone("n1", JobKey(7, 0))]
    for other in (replace(guest, state="COMPLETED"), replace(guest, nodes=("n2",))):
        assert [type(event) for event in report_events(report, [], {7: other})] == [ResidentSeen]


def test_daemons_are_news_when_they_begin_or_cease_to_answer():
    assert daemon_events({}, {"n1": False}) == [DaemonSeen("n1", False)]
    assert daemon_events({"n1": False, "n2": True}, {"n1": True, "n2": True}) == [DaemonSeen("n1", True)]
