"""Known-wrong variants. The node: turns, switches and orders."""

from __future__ import annotations

from tests.variant_kit import Variant

RESTARTED = "tests/node/test_fencing.py::test_one_restarted_without_gandivactld_is_the_next_incarnation"

VARIANTS = (
    Variant(
        "older-order-obeyed",
        "gandiva_slurm/node/part.py:Part.obey",
        "if (epoch_ns, seq) < (self.epoch_ns, self.seq):",
        "if False:",
        "A part obeys an order that a newer one has overtaken.",
        (
            "tests/unit/test_node_span_orders.py::test_a_newer_order_ends_the_wait_of_an_older_one_and_an_"
            "older_one_is_refused",
        ),
    ),
    Variant(
        "older-controller-obeyed",
        "gandiva_slurm/node/part.py:Part.obey",
        "if (epoch_ns, seq) < (self.epoch_ns, self.seq):",
        "if seq < self.seq and epoch_ns == self.epoch_ns:",
        "A part obeys a controller that another one has replaced.",
        (
            "tests/unit/test_node_span_orders.py::test_orders_of_an_older_controller_or_from_before_the_last_"
            "are_not_obeyed",
        ),
    ),
    Variant(
        "granted-before-released",
        "gandiva_slurm/node/switch.py:Switcher.begin",
        "resident.state, resident.ordered_ns = SUSPENDING, now",
        "resident.state, resident.ordered_ns = SUSPENDED, now",
        "A gang that is told to park counts as parked at once.",
        ("tests/unit/test_node_slicer.py::test_users_alternate_and_a_users_jobs_share_his_part",),
    ),
    Variant(
        "part-frees-by-itself",
        "gandiva_slurm/node/switch.py:Switcher._arrived",
        "resident.part.is_released = True",
        "self.give_on(resident)",
        "A node gives a span's GPUs on before the ranks of other nodes have released.",
        ("tests/unit/test_node_span.py::test_the_end_of_its_job_in_any_phase_gives_its_gpus_on",),
    ),
    Variant(
        "late-client-off-a-boundary",
        "gandiva_slurm/node/parkfacts.py:park_facts",
        "not resident.is_unasked and ",
        "",
        "A gang that is frozen while its last client comes counts as parked off a boundary.",
        (
            "tests/unit/test_node_refusal.py::"
            "test_one_that_is_frozen_before_all_its_ranks_could_be_asked_has_missed_no_boundary",
        ),
    ),
    Variant(
        "frozen-before-written-down",
        "gandiva_slurm/node/switch.py:Switcher.stop_processes",
        (
            "        resident.stopped |= set(only or ())\n        # The guard reads the state file: what is "
            "stopped must be there first.\n        self._node.save()\n"
        ),
        "",
        (
            "Processes are stopped before the state file names them: a killed gandivad leaves them stopped "
            "for ever."
        ),
        ("tests/unit/test_node_slicer.py::test_what_is_to_be_stopped_is_written_down_first",),
    ),
    Variant(
        "thaw-leaves-them-stopped",
        "gandiva_slurm/node/switch.py:Switcher.wake",
        "procs.send(proc, signal.SIGCONT)",
        "pass",
        "What was frozen is never continued.",
        ("tests/unit/test_node_slicer.py::test_what_was_stopped_is_continued",),
    ),
    Variant(
        "gang-frozen-in-mid-collective",
        "gandiva_slurm/node/switch.py:Switcher._out_of_time",
        "if resident.is_solo and not resident.leave.is_saving:",
        "if not resident.leave.is_saving:",
        "A gang that comes to no boundary is frozen in the middle of a collective at its first late park.",
        (
            "tests/unit/test_node_refusal.py::test_it_is_frozen_where_it_is_when_others_have_borne_it_for_"
            "the_bound",
        ),
    ),
    Variant(
        "refused-park-gives-gpus-on",
        "gandiva_slurm/node/switch.py:Switcher._give_up",
        "        self._keep(resident, now)\n",
        "        self.give_on(resident)\n",
        "A gang that did not park loses its GPUs in the books and keeps them in life.",
        (
            "tests/unit/test_node_refusal.py::test_it_is_frozen_where_it_is_when_others_have_borne_it_for_"
            "the_bound",
        ),
    ),
    Variant(
        "park-lasts-beyond-its-bound",
        "gandiva_slurm/node/jobs.py:Resident.bound_ns",
        "return self.since_ns + max_park_ns",
        "return self.since_ns + 10 * max_park_ns",
        "A park may last ten times its bound.",
        ("tests/unit/test_node_slicer.py::test_a_park_past_its_bound_goes_first",),
    ),
    Variant(
        "freeze-outlasts-the-collective",
        "gandiva_slurm/node/jobs.py:Resident.bound_ns",
        "min([freeze_bound_ns, *told])",
        "freeze_bound_ns",
        "A gang is frozen for longer than its process group's time-out bears.",
        ("tests/unit/test_node_refusal.py::test_no_freeze_outlasts_a_process_group",),
    ),
    Variant(
        "starting-job-parked",
        "gandiva_slurm/node/jobs.py:Resident.has_client",
        "and not self._awaited_tasks() ",
        "",
        "A job is parked while some of its tasks still start up.",
        ("tests/unit/test_node_jobs.py::test_a_job_is_not_parked_while_tasks_of_its_step_start_up",),
    ),
    Variant(
        "stranger-of-root-killed",
        "gandiva_slurm/node/strangers.py:_is_of",
        "uids[0] == owner.processes.uid and proc not in owner.processes.stepds",
        "True",
        "slurmstepd, or what root runs beside a job, is killed as a stranger on its GPU.",
        ("tests/unit/test_node_strangers.py::test_another_users_process_in_a_job_is_not_stopped",),
    ),
    Variant(
        "strangers-killed-unasked",
        "gandiva_slurm/node/strangers.py:Strangers._tell",
        "node.settings.stops_strangers and looks >= STOP_LOOKS",
        "looks >= STOP_LOOKS",
        "Processes on others' GPUs are killed though the site did not ask for that.",
        ("tests/unit/test_node_strangers.py::test_a_process_on_another_gpu_is_told_of_once_and_left_alone",),
    ),
    Variant(
        "stranger-killed-at-first-sight",
        "gandiva_slurm/node/strangers.py:Strangers._tell",
        "looks >= STOP_LOOKS",
        "looks >= 1",
        "A process that is just leaving a GPU is killed at the first look.",
        ("tests/unit/test_node_strangers.py::test_it_is_stopped_where_the_site_says_so_when_it_is_seen_again",),
    ),
    Variant(
        "another-process-signalled",
        "gandiva_slurm/node/procs.py:open_pidfd",
        "is_it = now is not None and now.start == proc.start",
        "is_it = now is not None",
        "A process that has the number of one that ended is signalled in its place.",
        ("tests/unit/test_node_procs.py::test_a_reused_id_is_not_signalled",),
    ),
    Variant(
        "stale-incarnation-lives",
        "gandiva_slurm/node/binding.py:Admission._refuse_stale",
        "if node.is_stale(key) or (present is not None and present.is_fenced):",
        "if False:",
        "A task of an older incarnation is taken in, and runs beside the newer one.",
        ("tests/unit/test_node_slicer.py::test_a_task_of_an_older_incarnation_is_refused_and_stopped",),
    ),
    Variant(
        "restart-count-of-the-environment",
        "gandiva_slurm/node/binding.py:Admission._with_true_restart",
        "return replace(bind, key=known)",
        "return bind",
        "A task's restart count is believed as its environment says it, where more is known.",
        ("tests/unit/test_node_span.py::test_a_part_that_is_only_planned_does_not_vouch_for_a_restart_count",),
    ),
    Variant(
        "restarted-and-taken-for-the-one-before",
        "gandiva_slurm/node/binding.py:Admission._with_true_restart",
        "or any(map(self._is_over, planned))",
        "",
        "What Slurm restarts without gandivactld is ended as stale when that is back.",
        (RESTARTED,),
    ),
    Variant(
        "restarted-and-placed-anywhere",
        "gandiva_slurm/node/binding.py:Admission._register",
        "self._in_its_place(peer, bind) or ",
        "",
        "What Slurm restarts without gandivactld has other GPUs than it had.",
        (RESTARTED,),
    ),
    Variant(
        "passed-over-for-ever",
        "gandiva_slurm/node/slicer.py:Slicer.quantum",
        "[*overdue, *self._starved(runnable, overdue)]",
        "overdue",
        "A gang whose user has its share by another of its gangs waits until its park's bound is over.",
        ("tests/unit/test_node_all_turns.py::test_one_whose_user_has_its_share_by_another_has_its_turn_all_the_same",),
    ),
    Variant(
        "job-number-believed",
        "gandiva_slurm/node/binding.py:Admission._member",
        "if claimed is not None and claimed != member.job_id:",
        "if False:",
        "A process may speak for another job than its own.",
        ("tests/unit/test_node_slicer.py::test_a_process_speaks_for_its_own_job_and_its_own_user_only",),
    ),
    Variant(
        "anybodys-process-binds",
        "gandiva_slurm/node/binding.py:Admission._check_uid",
        "if resident.processes.uid != peer.uid:",
        "if False:",
        "A process of another user joins a job.",
        ("tests/unit/test_node_slicer.py::test_a_process_speaks_for_its_own_job_and_its_own_user_only",),
    ),
    Variant(
        "task-of-a-parked-job-runs",
        "gandiva_slurm/node/binding.py:Admission.bind",
        "if resident.is_at_rest and bind.has_gpus and not is_starter:",
        "if False:",
        "A task that starts while its job waits runs on a GPU that others hold.",
        (
            "tests/unit/test_node_slicer.py::test_a_task_that_comes_while_its_job_waits_is_stopped_before_it_"
            "begins",
        ),
    ),
    Variant(
        "wrong-gpu-behind-a-slot",
        "gandiva_slurm/node/binding.py:gpus_of_task",
        "places = [resident.slots.index(slot) for slot in step_slots]",
        "places = list(range(len(step_slots)))",
        "Every task of a job is given the job's first GPUs.",
        ("tests/unit/test_node_slicer.py::test_slots_are_turned_into_gpus",),
    ),
    Variant(
        "left-without-a-save",
        "gandiva_slurm/node/leaving.py:has_left",
        "return is_movable(resident) and have_saved(resident.ranks)",
        "return is_movable(resident)",
        "A job counts as having left, to be requeued, before its ranks have saved themselves.",
        ("tests/unit/test_node_leaving.py::test_a_parked_gang_waits_for_its_turn_to_save_itself",),
    ),
    Variant(
        "one-rank-unsaved",
        "gandiva_slurm/node/leaving.py:arrive",
        "    if have_saved(resident.ranks):\n",
        "    if True:\n",
        "A gang of which a rank parked without saving counts as saved.",
        ("tests/unit/test_node_leaving.py::test_a_rank_that_parks_without_saving_has_not_left",),
    ),
    Variant(
        "leaves-without-a-controller",
        "gandiva_slurm/node/leaving.py:is_heard_to_leave",
        " and node.clock.mono() - node.contact_ns <= HEARD_NS",
        "",
        "A gang that has saved itself waits for ever for a controller that is gone.",
        (
            "tests/unit/test_node_leaving.py::test_it_goes_back_to_its_turns_when_no_controller_is_heard_any_"
            "more",
        ),
    ),
    Variant(
        "save-has-no-time",
        "gandiva_slurm/node/leaving.py:park_deadline_ns",
        "settings.park_deadline_ns + resident.leave.is_saving * settings.save_deadline_ns",
        "settings.park_deadline_ns",
        "A save has no more time than a park.",
        (
            "tests/unit/test_node_leaving.py::test_a_save_may_take_longer_than_a_park_and_is_never_stopped_"
            "in_its_midst",
        ),
    ),
    Variant(
        "plan-is-not-obeyed",
        "gandiva_slurm/node/leading.py:is_out",
        "resident.is_on is False",
        "False",
        "A job that a policy has planned off takes its turns all the same.",
        (
            "tests/node/test_leading.py"
            "::test_the_job_that_is_planned_on_holds_the_gpu_and_the_others_have_no_turn",
        ),
    ),
    Variant(
        "plan-is-obeyed-for-ever",
        "gandiva_slurm/node/leading.py:is_led",
        "return now - node.contact_ns <",
        "return node.clock.mono() + 0 * node.contact_ns > 0 *",
        "Without a controller jobs that were planned off never have a turn again.",
        ("tests/node/test_leading.py::test_without_a_controller_all_have_turns_again",),
    ),
    Variant(
        "plan-never-lets-save",
        "gandiva_slurm/node/leading.py:must_save",
        "return is_asked and",
        "return False and",
        "A parked job that is to leave waits for a turn that it never has.",
        ("tests/node/test_leading.py::test_a_parked_job_that_is_to_leave_has_a_turn_to_save_itself",),
    ),
)
