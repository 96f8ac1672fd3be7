"""Time slices between real processes: shares, boundaries, gangs beside single jobs, joining and leaving."""

from __future__ import annotations

from tests.node.gangs import check_losses, gang
from tests.node.harness import HERE, a_planned_job
from tests.records import share_of_turns
from tests.slow import slow

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]


def test_two_users_get_equal_time_whatever_their_number_of_jobs(make_node):
    node = make_node(gpus=1, quantum_s=0.2)
    shares = {1: ("user1", 300), 2: ("user2", 100), 3: ("user2", 100), 4: ("user2", 100)}
    node.plan(*[a_planned_job(n, user, (0,), tickets=share) for n, (user, share) in shares.items()])
    for job_id in (1, 2, 3, 4):
        node.start_job(job_id, LOOP)
    node.wait(lambda: all(node.resident(job_id).suspends for job_id in (1, 2, 3, 4)))
    # What start-ups held beyond their turns is given back first.
    node.wait(lambda: abs(share_of_turns(node.events(), 1, (2, 3, 4)) - 0.5) < 0.05)


def test_tickets_weigh(make_node):
    node = make_node(gpus=1, quantum_s=0.2)
    node.plan(a_planned_job(1, "user1", (0,), tickets=300), a_planned_job(2, "user2", (0,), tickets=100))
    node.start_job(1, LOOP)
    node.start_job(2, LOOP)
    node.wait(lambda: abs(share_of_turns(node.events(), 2, (1,)) - 0.25) < 0.05)


def test_nothing_moves_while_all_fit(make_node):
    node = make_node(gpus=2, quantum_s=0.2)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (1,)))
    node.start_job(1, LOOP)
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(1).steps > 250 and node.resident(2).steps > 250)
    assert node.events("park") == []
    assert node.resident(1).reason == "Running"
    # 4 ms a step, or more where others are in the way; what was held up is made good by no faster ones.
    node.wait(lambda: 0 < node.resident(1).rate < 260)
    assert [(node.out / f"env.{job}.0").read_text() for job in (1, 2)] == ["0", "1"]


@slow("15 s, torch in each rank; cluster/test_sharing compares losses, too")
def test_a_gang_and_single_jobs_park_at_boundaries_and_lose_no_bit(make_node):
    node = make_node(gpus=2, quantum_s=0.2)
    node.plan(a_planned_job(1, "user1", (0, 1)), *[a_planned_job(n, "user2", (n - 2,)) for n in (2, 3)])
    node.start_job(1, gang(2))
    node.wait(lambda: node.resident(1).ranks == 2)
    node.start_job(2, LOOP)
    node.start_job(3, LOOP)
    node.wait(lambda: node.resident(1).suspends >= 4)
    check_losses(node, 2, 1)
    parks = node.events("parked", 1)
    assert all(len(set(park["seqs"][0])) == 1 and park["at"] == [park["seqs"][0][0]] for park in parks)
    assert sum(park["off_boundary"] for park in parks) == 0


def test_the_end_of_a_job_gives_its_gpu_on_at_once(make_node):
    node = make_node(gpus=1, quantum_s=60)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(2).reason == "WaitingTurn")
    (node.out / "stop.1").touch()
    node.wait(lambda: node.resident(2).state == "RUNNING")
    assert (1, 0) in node.report().ended
    ended, granted = node.events("ended", 1)[0], node.events("grant", 2)[0]
    assert granted["mono_ns"] - ended["mono_ns"] < 30_000_000_000, "long before the quantum's end"
    assert (1, 0) not in node.plan(a_planned_job(2, "user2", (0,)), forget=True).ended


def test_a_job_no_plan_names_runs_where_the_load_is_least(make_node):
    node = make_node(gpus=2, quantum_s=0.3)
    node.plan(a_planned_job(1, "user1", (0,)))
    node.start_job(1, LOOP, slots="0")
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(9, LOOP, slots="5", user="user2")
    stranger = node.wait(lambda: node.resident(9).ranks and node.resident(9))
    assert stranger.gpus == (1,)
    assert "in no plan" in stranger.detail
    assert node.wait(lambda: (node.out / "env.9.0").read_text()) == "1"


def test_each_step_of_a_job_gets_the_gpus_of_its_slots(make_node):
    node = make_node(gpus=4, quantum_s=0.3)
    node.plan(a_planned_job(1, "user1", (1, 3)))
    node.start_job(1, [str(HERE / "scripts" / "loop.py"), "4", "none"], slots="6,11")
    assert node.wait(lambda: (node.out / "env.1.0").read_text()) == "1,3"
    node.start_job(1, LOOP, step="0", slots="11", env={"RANK": "7"})
    assert node.wait(lambda: (node.out / "env.1.7").read_text()) == "3"
    node.wait(lambda: node.resident(1).ranks == 1)


def test_two_steps_of_one_job_park_together(make_node):
    node = make_node(gpus=2, quantum_s=0.3)
    node.plan(a_planned_job(1, "user1", (0, 1)), a_planned_job(2, "user2", (0, 1)))
    node.start_job(1, LOOP, step="0", slots="0")
    node.start_job(1, LOOP, step="1", slots="1", env={"SLURM_PROCID": "0", "SLURM_STEP_ID": "1"})
    node.wait(lambda: node.resident(1).ranks == 2)
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(1).suspends >= 2 and node.resident(2).suspends >= 2)
    assert all(len(park["seqs"]) == 2 for park in node.events("parked", 1))
