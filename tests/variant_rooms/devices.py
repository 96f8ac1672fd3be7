"""Known-wrong variants. What keeps a job to its own GPUs."""

from __future__ import annotations

from tests.variant_kit import Variant

NODE = "tests/node/test_devices.py"
SEEN = "tests/unit/test_node_strangers.py"
UNIT = "tests/unit/test_devices.py"
ROOM = "gandiva_slurm/node/devices.py"

VARIANTS = (
    Variant(
        "others-gpus-open",
        f"{ROOM}:Devices._confine_first",
        "self._close_instead(group, tuple(others))",
        "pass",
        "A job opens every GPU of its node.",
        (f"{NODE}::test_a_job_opens_its_own_gpus_alone[v2]",),
    ),
    Variant(
        "all-gpus-no-program",
        "gandiva_slurm/node/bpf.py:program",
        "    if not closed:\n        return allowed\n",
        "",
        "To a job of all GPUs nothing is to be closed, and the kernel refuses the program for that.",
        (f"{UNIT}::test_a_program_refuses_those_alone_and_no_instruction_of_it_is_unreachable[()]",),
    ),
    Variant(
        "later-steps-open-all-gpus",
        f"{ROOM}:Devices.confine",
        "elif resident.is_confined and not self._enter(self._group(resident), pids):",
        "elif False:",
        "A step that comes later is outside its job's group, and opens every GPU by the wrong number.",
        (f"{UNIT}::test_a_task_that_cannot_be_confined_as_its_job_is_does_not_start",),
    ),
    Variant(
        "numbers-of-the-whole-node",
        "gandiva_slurm/node/binding.py:_numbers",
        "tuple(map(resident.gpus.index, gpus)) if resident.is_confined else gpus",
        "gpus",
        "A job that opens GPUs 1 and 3 alone is told of numbers 1 and 3: CUDA knows them as 0 and 1.",
        (f"{NODE}::test_a_job_opens_its_own_gpus_alone[v2]",),
    ),
    Variant(
        "confined-in-mid-life",
        "gandiva_slurm/node/saved.py:read_job",
        'row.get("is_confined", False)',
        'row.get("is_confined") or None',
        "A job that runs by the node's numbers is confined when its next step comes.",
        (f"{NODE}::test_a_job_that_came_before_is_left_as_it_is",),
    ),
    Variant(
        "confinement-forgotten",
        "gandiva_slurm/node/saved.py:_job",
        '"is_confined": resident.is_confined,',
        "",
        "After a restart of gandivad a job's next step has the numbers of the whole node.",
        (f"{NODE}::test_it_lasts_when_gandivad_is_killed_and_holds_for_later_steps",),
    ),
    Variant(
        "unbound-jobs-open-all",
        "gandiva_slurm/node/binding.py:Admission.take_lost",
        "if resident.is_confined is None:",
        "if False:",
        "A job whose tasks were not bound opens every GPU.",
        (f"{NODE}::test_a_job_whose_tasks_were_not_bound_opens_no_others_either",),
    ),
    Variant(
        "gpus-of-others-for-nothing",
        "gandiva_slurm/node/strangers.py:Strangers._charge_strangers",
        "charge_elsewhere(self._node, resident, self._now_ns - self._last_ns)",
        "pass",
        "Where devices are not closed, a job uses its neighbour's GPU and pays for its own alone.",
        (f"{SEEN}::test_a_job_pays_for_a_gpu_that_was_not_given_to_it_from_when_it_was_seen_there",),
    ),
    Variant(
        "trusted-and-works",
        "gandiva_slurm/node/strangers.py:Strangers._look_at_parked",
        "charge_ran(self._node, resident, self._now_ns - self._last_ns)",
        "return",
        "A parked job that is not frozen works on its GPU, and pays nothing.",
        (f"{SEEN}::test_a_parked_job_that_uses_its_gpu_is_charged_and_frozen",),
    ),
    Variant(
        "frozen-for-its-last-turn",
        "gandiva_slurm/node/strangers.py:Strangers._look_at_parked",
        "self._last_ns < resident.since_ns + SAMPLE_NS",
        "False",
        "The driver's samples of a job's turn are taken for work after it: the honest pay.",
        (f"{SEEN}::test_a_parked_job_that_uses_its_gpu_is_charged_and_frozen",),
    ),
    Variant(
        "devices-fault-for-ever",
        "gandiva_slurm/node/devices.py:Devices._confine_first",
        'self.fault = ""',
        "pass",
        "A node that could not close GPUs to one job is called unable to for ever.",
        ("tests/unit/test_node_faults.py::test_gpus_that_cannot_be_closed_are_told_until_they_can",),
    ),
    Variant(
        "closed-to-the-next-incarnation",
        "gandiva_slurm/node/devices.py:Devices._close_instead",
        "_reopen(group, before, others)",
        "pass",
        "In a group of Slurm's that outlives its slurmstepd the next incarnation opens none of its GPUs.",
        ("tests/unit/test_devices.py::test_in_a_group_that_outlives_an_incarnation_the_next_has_its_own_gpus",),
    ),
    Variant(
        "closed-again-and-again",
        "gandiva_slurm/node/devices.py:Devices._close_instead",
        "if before is not None and before.inode == inode and before.closed == others:",
        "if False:",
        "Each step of a job is closed once more, until the kernel takes no more programs for its group.",
        ("tests/unit/test_devices.py::test_in_a_group_that_outlives_an_incarnation_the_next_has_its_own_gpus",),
    ),
    Variant(
        "ssh-trains-for-nothing",
        "gandiva_slurm/node/strangers.py:Strangers._is_users",
        "uids[0] in users",
        "False",
        "What has come by ssh to an salloc between its steps trains, where the site stops strangers.",
        (f"{SEEN}::test_what_came_by_ssh_to_a_job_without_a_step_here_is_stopped",),
    ),
    Variant(
        "fault-names-a-job",
        "gandiva_slurm/node/devices.py:Devices._tell",
        "self.fault, told = why, where or why",
        "self.fault = told = where or why",
        "Whoever asks about nodes is told of a job that it may not see.",
        ("tests/unit/test_node_faults.py::test_gpus_that_cannot_be_closed_are_told_until_they_can",),
    ),
    Variant(
        "slurmctld-away-is-a-fault",
        "gandiva_slurm/node/isolation.py:Isolation._ping",
        '"scontrol ping has no answer" if is_up is None else ""',
        '"" if is_up else "scontrol ping has no answer"',
        "A slurmctld that is down is said to be every node's fault.",
        ("tests/unit/test_node_faults.py::test_a_slurmctld_that_is_away_is_no_fault_of_the_node",),
    ),
    Variant(
        "slurmctld-never-tried",
        "gandiva_slurm/node/isolation.py:Isolation.ask_for_ever",
        "self.bounds.silence and self._node",
        "False and self._node",
        "That slurmctld cannot be asked is found out when the node is cut off.",
        ("tests/unit/test_node_faults.py::test_it_is_tried_before_it_is_needed_where_the_site_asks_for_isolation",),
    ),
    Variant(
        "gpus-by-their-files-numbers",
        f"{ROOM}:of_driver",
        "[int(match[1]) for match in found if match]",
        "sorted(int(match[1]) for match in found if match)",
        "GPUs are counted by their files: a job is closed out of its own where PCI order is another.",
        (f"{UNIT}::test_gpus_are_counted_in_pci_order_whatever_their_files_numbers_are",),
    ),
)
