"""Known-wrong variants. A GPU's memory: what parked jobs keep of it, and who finds room beside that."""

from __future__ import annotations

from tests.variant_kit import Variant

_NODE = "tests/unit/test_node_card_memory.py::"
_BACK = "tests/unit/test_node_returning.py::"
VARIANTS = (
    Variant(
        "card-failed-restore-runs",
        "gandiva_slurm/node/returning.py:failure",
        "if resident.part is not None:",
        "if True:",
        "A job whose memory does not come back holds its GPU, runs by the books, and pays.",
        (_BACK + "test_it_does_not_run_is_not_charged_and_the_other_goes_on[1]",),
    ),
    Variant(
        "card-failed-restore-is-charged",
        "gandiva_slurm/node/returning.py:forgive",
        "    resident.charged_ns += free_ns\n",
        "",
        "A job pays for the time in which its memory did not come back.",
        (_BACK + "test_it_does_not_run_is_not_charged_and_the_other_goes_on[1]",),
    ),
    Variant(
        "card-failed-restore-is-free",
        "gandiva_slurm/node/returning.py:forgive",
        "min(FREE_NS, now - resident.charged_ns)",
        "now - resident.charged_ns",
        "A job that works first and tells of a failure then pays nothing.",
        (_BACK + "test_who_works_first_and_then_tells_of_a_failure_pays",),
    ),
    Variant(
        "card-failed-restore-at-once-again",
        "gandiva_slurm/node/returning.py:fail",
        "min(REST_NS << min(returning.failures, 10), LONGEST_REST_NS)",
        "0",
        "A job whose memory does not come back is tried again at once, for ever.",
        (_BACK + "test_it_is_tried_again_ever_more_seldom_and_comes_back",),
    ),
    Variant(
        "card-failed-restore-left-idle",
        "gandiva_slurm/node/returning.py:is_rested",
        "    returning.again_ns = 0\n    return True",
        "    returning.again_ns = 0\n    return False",
        "A GPU idles until the quantum ends although the one job there may be tried again.",
        (_BACK + "test_alone_on_its_gpu_it_is_tried_as_soon_as_its_rest_is_over",),
    ),
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
