"""Known-wrong variants. A GPU's memory: what parked jobs keep of it, and who finds room beside that."""

from __future__ import annotations

from tests.variant_kit import Variant

_NODE = "tests/unit/test_node_card_memory.py::"
VARIANTS = (
    Variant(
        "card-turn-without-room",
        "gandiva_slurm/node/slicer.py:Slicer._is_out",
        "not resident.holds and bool(lack(self._node, resident))",
        "False",
        "A job is chosen for a GPU on which its memory finds no room: the GPU idles.",
        (_NODE + "test_one_that_would_not_fit_waits_for_what_nvml_sees_and_the_other_goes_on",),
    ),
    Variant(
        "card-words-alone-are-heeded",
        "gandiva_slurm/node/memory.py:_kept",
        "return size if is_known else 0",
        "return size if is_known else memory_of(other).held",
        "A job that says it keeps all its memory keeps others from their turns.",
        (_NODE + "test_a_job_keeps_nobody_out_by_its_word",),
    ),
    Variant(
        "card-grant-before-the-look",
        "gandiva_slurm/node/slicer.py:Slicer._is_ready",
        "            self._node.look_soon.set()\n            return False\n",
        "            pass\n",
        "A job has its turn before anybody has seen what the one before it kept.",
        (_NODE + "test_one_that_would_not_fit_waits_for_what_nvml_sees_and_the_other_goes_on",),
    ),
    Variant(
        "card-kept-for-ever",
        "gandiva_slurm/node/memory.py:_kept",
        "now - seen_ns < KEPT_NS if other.holds else",
        "other.holds or",
        "What a job kept once keeps others out until it ends.",
        (_NODE + "test_what_a_job_keeps_is_looked_at_anew_after_a_while",),
    ),
    Variant(
        "card-contexts-keep-others-out",
        "gandiva_slurm/node/memory.py:lack",
        "if size > CONTEXT_BYTES + RESIDUE]",
        "if size]",
        "A job that has not told what it takes never begins where others have a context.",
        (_NODE + "test_a_job_that_has_not_told_what_it_takes_needs_the_whole_gpu",),
    ),
    Variant(
        "card-planned-one-idles-the-gpu",
        "gandiva_slurm/node/leading.py:is_out",
        "return is_off and not _is_left_over(node, resident)",
        "return is_off",
        "A GPU idles for a turn where the planned job does not fit in.",
        (_NODE + "test_where_the_planned_one_does_not_fit_the_others_go_on",),
    ),
    Variant(
        "card-clients-of-mps-unseen",
        "gandiva_slurm/node/nvml.py:Nvml._running",
        "for name in _LISTS:",
        "for name in _LISTS[:1]:",
        "What uses a GPU by MPS is not seen: it is no stranger, and takes no memory.",
        ("tests/unit/test_node_memory.py::test_clients_of_mps_are_processes_too_each_once",),
    ),
    Variant(
        "card-seen-while-it-ran",
        "gandiva_slurm/node/strangers.py:Strangers.take",
        "resident.state == SUSPENDED and asked_ns > resident.since_ns",
        "resident.state == SUSPENDED",
        "What a job had while it ran is taken for what it keeps.",
        ("tests/unit/test_node_strangers.py::test_what_a_parked_job_keeps_is_what_was_seen_after_its_park",),
    ),
)
