"""Today's daemons take over from an older release's, with jobs running: none is lost, none charged twice."""

from __future__ import annotations

import pytest

from gandiva_slurm.model import job as states
from tests.cluster import older
from tests.cluster.fleet import Fleet, mended, own_cluster, wait_for
from tests.slow import slow, soak

#: Of a job's GPU time: events are written a moment after a hold begins or ends.
NEAR_S = 0.05
LIVE = (states.RUNNING, states.SUSPENDING, states.SUSPENDED, states.RESUMING)


def check_losses(lines: list[str]) -> None:
    """A training's losses are those of one that nobody touched."""
    *found, end = lines
    loss = 1
    for number, line in enumerate(found):
        loss = loss * 48271 % 2147483647
        assert line == f"{number} {loss}"
    assert end == "end"


@slow("80 s; tests/controller/test_upgrade.py has the same on a recorded state")
def test_jobs_go_on_under_today_s_daemons_and_end_as_if_nobody_had_touched_them(slurm_here: None) -> None:
    with older.older_cluster("upgrade") as cluster:
        fleet = Fleet(cluster)
        jobs = older.Jobs(fleet)
        older.kill_all(fleet, jobs)
        before, logged = jobs.slurm(), cluster.log("gandivactld").stat().st_size
        fleet.start_dead()
        ours = wait_for(lambda: (rows := fleet.ask("queue")["jobs"]) and rows, "the queue")
        assert {row["job_id"] for row in ours} >= jobs.users.keys()
        for job in jobs.users:
            jobs.wait_trains(job, 120)
        again = {row["job_id"]: row["restart"] for row in before}
        assert jobs.users.keys() == {row["job_id"] for row in jobs.slurm()} == again.keys()
        for job, user in jobs.users.items():
            fleet.home(user, f"stop.{job}").touch()
        for job in jobs.users:
            fleet.wait_ended(job, "COMPLETED", deadline_s=90)
            check_losses(jobs.lines(job))
        fleet.finish()

        def in_accounts() -> bool:
            rows = {row["job_id"]: row["gpu_held_s"] for row in fleet.accounts()}
            return rows == pytest.approx(older.held_s(fleet), abs=NEAR_S)

        wait_for(in_accounts, lambda: f"{fleet.accounts()} to say {older.held_s(fleet)}")
        log = cluster.log("gandivactld").read_bytes()[logged:].decode(errors="replace")
        for key in ("moves.at_once", "packing.trial_quanta"):
            assert f"{key} has no effect any more" in log
        assert "Traceback" not in log and "invariant broken" not in log, log


def living(fleet: Fleet) -> set[int]:
    """The jobs that gandivactld knows on GPUs, parked or not, or between the two."""
    return {row["job_id"] for row in fleet.ask("queue")["jobs"] if row["state"] in LIVE}


@soak("40 s; tests/controller/test_upgrade.py has a state that is read by another release")
def test_an_earlier_copy_of_its_state_is_put_back(slurm_here: None) -> None:
    """As docs/admin.md has it for the way back from an upgrade: jobs go on, no hold is charged twice."""
    with own_cluster("back", "v100:1x1", 0.5) as mini, mended(Fleet(mini)) as fleet:
        state = mini.path("spool", "gandivactld")
        jobs = {user: fleet.train(user, "one") for user in ("user1", "user2")}
        fleet.wait_suspends(jobs.values(), 2)
        mini.kill("gandivactld")
        mini.exec(["cp", "-a", str(state), f"{state}.before"])
        mini.start_daemon("gandivactld")
        jobs["user3"] = fleet.train("user3", "one")
        fleet.wait_suspends(jobs.values(), 2)
        mini.kill("gandivactld")
        mini.exec(["mv", str(state), f"{state}.after"])
        mini.exec(["mv", f"{state}.before", str(state)])
        mini.start_daemon("gandivactld")
        fleet.wait_suspends(jobs.values(), 3)
        wait_for(lambda: living(fleet) == {*jobs.values()}, lambda: f"the three, not {living(fleet)}")
        for user, job in jobs.items():
            fleet.stop(user, "one")
            fleet.wait_ended(job, "COMPLETED")
        held = {row["job_id"]: row["gpu_held_s"] for row in fleet.accounts()}
        for job in jobs.values():
            lines = [line for line in fleet.events() if line["event"] == "release" and line["job"] == job]
            assert 0 < held[job] <= sum(line["held_ms"] for line in lines) / 1e3 + NEAR_S
