"""Known-wrong variants. What keeps a job from working without paying for it."""

from __future__ import annotations

from tests.variant_kit import Variant

ATTACKS = "tests/node/test_attacks.py::test_no_way_to_cheat_gains_anything"
FREEZE = "tests/node/test_freeze.py"
STOPS = "tests/node/test_attacks.py::test_nor_does_it_where_no_group_can_be_frozen"

VARIANTS = (
    Variant(
        "parked-runs-on",
        "gandiva_slurm/node/switch.py:Switcher.give_on",
        "self.shut(resident)",
        "pass",
        "What a parked job has started beside its ranks works on, and is not charged.",
        (f"{ATTACKS}[child]", f"{ATTACKS}[parked_and_trains]"),
    ),
    Variant(
        "tasks-stay-where-slurm-put-them",
        "gandiva_slurm/node/binding.py:Admission.bind",
        "self._node.freezer.admit(resident, peer.proc.pid)",
        "pass",
        "A task is in no group of its job: what leaves its session and its parents is not found.",
        (f"{ATTACKS}[clean_environment]",),
    ),
    Variant(
        "frozen-by-signals-only",
        "gandiva_slurm/node/switch.py:Switcher.stop_processes",
        "if only is None and not resident.is_trusted and self._node.freezer.shut(resident):",
        "if False:",
        "Each process of a job frozen whole is sent SIGSTOP: thousands take seconds.",
        (f"{FREEZE}::test_what_its_user_stopped_stays_so_and_none_of_many_processes_is_signalled",),
    ),
    Variant(
        "frozen-for-the-next",
        "gandiva_slurm/node/freezer.py:Freezer.forget",
        "self.open(resident)",
        "pass",
        "What a job that ended while it was frozen has left freezes its next start at birth.",
        ("tests/unit/test_freezer.py::test_a_group_of_slurms_that_outlives_its_job_does_not_freeze_the_next",),
    ),
    Variant(
        "step-ends-its-neighbours",
        "gandiva_slurm/node/members.py:JobProcesses.kill",
        "[] if with_others else self._other_stepds()",
        "[]",
        "The end of one step kills the next one, the job's next incarnation, and the user's ssh sessions.",
        ("tests/unit/test_node_procs.py::test_what_another_step_has_begun_does_not_end_with_one",),
    ),
    Variant(
        "a-wake-is-free",
        "gandiva_slurm/node/charging.py:charge_awake",
        "charge_ran(node, resident, now - resident.awake_from_ns)",
        "pass",
        "A job that is woken for a signal is not charged for what it does then.",
        ("tests/unit/test_node_behind.py::test_what_a_page_says_buys_a_bounded_time",),
    ),
    Variant(
        "continued-is-free",
        "gandiva_slurm/node/watch.py:Watcher._look_at_suspended",
        "charge_ran(self._node, resident, min(now - resident.since_ns, round(BEAT_S * 1e9)))",
        "pass",
        "What its user continues between two looks works for nothing.",
        (f"{STOPS}[continued]",),
        target="test-all",
        why="35 s of programs at work, where no group can be frozen; the others stay",
    ),
    Variant(
        "boundary-never-comes",
        "gandiva_slurm/node/leaving.py:is_late",
        "bound_ns = min(bound_ns, overrun_ns(node, resident))",
        "pass",
        "A rank that comes to no boundary holds its GPU for the whole deadline of a park, each time.",
        (f"{ATTACKS}[never_at_a_boundary]",),
    ),
    Variant(
        "resume-never-ends",
        "gandiva_slurm/node/returning.py:longest_ns",
        "return min(deadline_ns, max(LEAST_RESUME_NS, node.local.quantum_ns))",
        "return deadline_ns",
        "A rank that says it is still parked holds its GPU for the whole deadline of a park.",
        (
            "tests/unit/test_node_returning.py"
            "::test_one_that_only_says_that_it_comes_back_is_asked_to_park_like_any_other",
        ),
    ),
    Variant(
        "group-word-believed",
        "gandiva_slurm/node/jobs.py:Resident.bound_ns",
        "if group.world > 1 ",
        "",
        "A lone rank says that its group gives up soon, and comes back before it has paid.",
        ("tests/unit/test_node_hostage.py::test_a_lone_rank_says_nothing_of_a_groups_timeout",),
    ),
    Variant(
        "group-word-without-a-floor",
        "gandiva_slurm/node/jobs.py:Resident.bound_ns",
        "max(half, LEAST_FREEZE_NS, quantum_ns)",
        "max(half, LEAST_FREEZE_NS)",
        "A gang says that its group gives up soon, and comes back within the others' quantum.",
        ("tests/unit/test_node_hostage.py::test_a_gang_is_frozen_for_a_quantum_at_least",),
    ),
    Variant(
        "flood-without-a-bucket",
        "gandiva_slurm/node/door.py:Rates.take",
        "return may_enter",
        "return True",
        "One user's connects, as many as they come, are all served.",
        (
            "tests/node/test_flood.py::test_a_flood_is_dropped_and_others_ranks_come_in",
            "tests/unit/test_node_door.py::test_and_comes_so_often",
        ),
    ),
    Variant(
        "door-without-a-limit-by-user",
        "gandiva_slurm/node/door.py:Door._may_enter",
        "self._users[uid] < PER_USER and ",
        "",
        "One user's silent connections take the room of all.",
        ("tests/unit/test_node_door.py::test_one_user_has_so_many_connections_at_a_time",),
    ),
    Variant(
        "tasks-are-roots",
        "gandiva_slurm/node/sock.py:Speech._with_task",
        "Peer(peer.proc, hello.parse_task(await _line(link)))",
        "Peer(peer.proc, hello.parse_task(await _line(link)) * 0)",
        "On root's socket each task is taken for root's.",
        ("tests/node/test_flood.py::test_tasks_are_bound_in_time_beside_a_flood",),
    ),
    Variant(
        "unbound-for-good",
        "gandiva_slurm/node/daemon.py:Daemon._run",
        "Lost(node, admission).run(),",
        "",
        "A planned job whose task was not bound works for nothing, beside those whose GPUs it is on.",
        ("tests/node/test_doors.py::test_a_planned_job_that_was_never_bound_is_charged_and_takes_turns",),
    ),
    Variant(
        "waiting-taken-for-unbound",
        "gandiva_slurm/node/lost.py:_is_program",
        " and not members.is_stepds_title(procs.title(pid))",
        "",
        "A task that waits to be bound is taken for one that was not.",
        ("tests/node/test_doors.py::test_a_task_that_waits_is_not_taken_for_one_that_was_not_bound",),
    ),
    Variant(
        "before-any-plan-never-bound",
        "gandiva_slurm/node/sock.py:Speech._answer",
        "later if is_to_wait else 'NO'",
        "'NO'",
        "A task that comes before the first plan runs without a GPU.",
        ("tests/node/test_doors.py::test_a_task_that_comes_before_any_plan_is_bound_when_one_has_come",),
    ),
    Variant(
        "joined-without-a-word",
        "gandiva_slurm/client/join.py:join",
        'if answer.get("confirms"):',
        "if False:",
        "A rank that its node was killed over believes that it was taken in; nobody parks it any more.",
        ("tests/unit/test_client_joining.py::test_a_rank_that_its_node_has_not_taken_in_says_hello_again",),
    ),
)
