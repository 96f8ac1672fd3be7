"""Known-wrong variants. The rank: its memory and its share."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "storage-comes-back-empty",
        "gandiva_slurm/client/offload.py:TorchTier.restore",
        "                self._copy(one, is_out=False)",
        "                pass",
        "Memory is allocated again and its bytes are not copied back.",
        ("tests/unit/test_client_offload_faults.py::test_memory_of_numpy_is_refused_by_name",),
    ),
    Variant(
        "let-go-before-the-copy",
        "gandiva_slurm/client/offload.py:TorchTier._copy_out",
        "self._copy(one, is_out=True)",
        "one.storage.resize_(0)",
        "Storages are let go before their bytes are copied out.",
        ("tests/unit/test_client_offload_faults.py::test_shared_parameters_are_refused_by_name",),
    ),
    Variant(
        "release-fails-half-gone",
        "gandiva_slurm/client/offload.py:TorchTier._offload",
        "            self._undo()\n",
        "",
        "A release that fails in the middle leaves part of the memory away.",
        ("tests/unit/test_client_offload_faults.py::test_failure_when_all_is_gone_is_undone",),
    ),
    Variant(
        "restore-fails-half-back",
        "gandiva_slurm/client/offload.py:TorchTier.restore",
        "                one.storage.resize_(0)\n",
        "                pass\n",
        "A restore that fails keeps the part it had got, and the next one allocates it again.",
        (
            "tests/unit/test_client_offload_faults.py::test_restore_that_finds_no_memory_stays_parked_and_is_"
            "tried_again",
        ),
    ),
    Variant(
        "streams-not-heeded",
        "gandiva_slurm/client/device.py:Cuda.is_movable",
        "return not any(start <= address < end for start, end in self._elsewhere)",
        "return True",
        "Memory of other streams is moved under their kernels.",
        ("tests/unit/test_client_device.py::test_memory_of_other_streams_stays",),
    ),
    Variant(
        "graphs-not-heeded",
        "gandiva_slurm/client/device.py:Cuda.begin",
        'raise Refused("it has captured CUDA graphs, or has a memory pool of its own")',
        "pass",
        "Memory is moved though a captured CUDA graph has its addresses.",
        ("tests/unit/test_client_device.py::test_captured_graphs_are_refused",),
    ),
    Variant(
        "other-threads-not-heeded",
        "gandiva_slurm/client/guards.py:refuse_other_threads",
        "if thread:",
        "if False:",
        "Memory is taken from under another thread that is inside torch.",
        (
            "tests/unit/test_client_offload_faults.py::test_foreign_thread_inside_torch_is_refused_until_it_"
            "is_gone",
        ),
    ),
    Variant(
        "other-allocators-not-heeded",
        "gandiva_slurm/client/guards.py:refuse_other_allocators",
        'if backend != "native":',
        "if False:",
        "Memory of an allocator that is not torch's own is moved as if it were.",
        ("tests/unit/test_client_device.py::test_other_allocators_are_refused",),
    ),
    Variant(
        "memory-cap-not-lifted",
        "gandiva_slurm/client/sharing.py:Share.heed",
        "self._bound(cap if duty else 0)",
        "self._bound(cap)",
        "A rank that is alone again keeps the memory cap of its pack.",
        ("tests/unit/test_client_sharing.py::test_a_cap_holds_while_the_gpu_is_shared_and_no_longer",),
    ),
    Variant(
        "memory-cap-below-use",
        "gandiva_slurm/client/sharing.py:Share._bound_device",
        "least = max(cap, cuda.max_memory_allocated(device))",
        "least = cap",
        "A memory cap below what a rank has needed ends its training.",
        ("tests/unit/test_client_sharing.py::test_a_cap_is_never_below_what_was_needed_so_far",),
    ),
    Variant(
        "duty-counts-the-park",
        "gandiva_slurm/client/sharing.py:Share.rest",
        "self._since_ns = 0",
        "pass",
        "The time of a park counts as that of a step, so that a rank pauses for hours.",
        ("tests/unit/test_client_sharing.py::test_a_park_is_no_step",),
    ),
    Variant(
        "pause-outlives-the-node",
        "gandiva_slurm/client/sharing.py:Share._pause",
        "if now - words[W_BEAT] > SILENT_NS:",
        "if False:",
        "A rank pauses on though its node is dead.",
        ("tests/unit/test_client_sharing.py::test_a_pause_ends_when_it_must",),
    ),
    Variant(
        "pause-outlives-the-order",
        "gandiva_slurm/client/sharing.py:Share._pause",
        "while now < until and words[W_AT] == NEVER and words[W_THROTTLE] == duty:",
        "while now < until and words[W_THROTTLE] == duty:",
        "A rank that pauses does not see that it is to park.",
        ("tests/unit/test_client_sharing.py::test_a_pause_ends_when_it_must",),
    ),
    Variant(
        "tensors-looked-for-at-each-park",
        "gandiva_slurm/client/roots.py:Roots._find_again",
        "return list(haul.storages.values()) if is_all else None",
        "return None",
        "Each park looks through all that hangs on a training: tens of milliseconds.",
        ("tests/unit/test_client_roots.py::test_what_is_known_of_a_training_is_not_looked_for_again",),
    ),
    Variant(
        "known-tensors-are-all-there-is",
        "gandiva_slurm/client/roots.py:Roots._find_again",
        " and live - haul.size <= self._device.slack",
        "",
        "What has come to a training since its first park stays on the device.",
        ("tests/unit/test_client_roots.py::test_what_is_known_of_a_training_is_not_looked_for_again",),
    ),
    Variant(
        "known-tensors-shared-since",
        "gandiva_slurm/client/roots.py:Roots._find_again",
        "and not haul.fixed and",
        "and",
        "A parameter that another process shares since the last park is left behind, and the rest is moved.",
        (
            "tests/unit/test_client_roots.py::test_what_is_shared_with_other_processes_since_is_refused_all_"
            "the_same",
        ),
    ),
)
