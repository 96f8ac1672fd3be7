"""Known-wrong variants. A parked job is written to disk: when, for how long, and what its turn ends."""

from __future__ import annotations

from tests.variant_kit import Variant

_NODE = "tests/unit/test_node_behind.py::"
_PARKED = "tests/attach/test_parked.py::"
VARIANTS = (
    Variant(
        "behind-goes-on-in-its-turn",
        "gandiva_slurm/client/behind.py:Pace.check",
        "self.is_over or ",
        "",
        "A state is written while the training changes it, and counts as whole.",
        (_PARKED + "test_what_is_not_through_when_its_turn_comes_is_given_up[hold]",),
    ),
    Variant(
        "behind-object-s-tensors-are-let-go",
        "gandiva_slurm/client/behind.py:pickling",
        "host.tensor(thing)",
        "thing",
        "Tensors within a script's own objects are written when their memory is gone.",
        (_PARKED + "test_tensors_within_a_scripts_own_objects_are_written_as_they_were",),
    ),
    Variant(
        "behind-at-every-park",
        "gandiva_slurm/node/behind.py:begins",
        "    resident.counts.asked_held_ns = resident.counts.held_ns\n",
        "",
        "A job is written at each park, once it has held its GPUs for long enough.",
        (_NODE + "test_it_is_asked_again_when_it_has_held_its_gpus_for_as_long_again",),
    ),
    Variant(
        "behind-without-a-bound",
        "gandiva_slurm/node/behind.py:_look",
        " and now < window.until_ns",
        "",
        "A job whose page says that it writes runs on while it is parked.",
        (_NODE + "test_what_a_page_says_buys_a_bounded_time",),
    ),
    Variant(
        "behind-takes-the-time-for-signals",
        "gandiva_slurm/node/rest.py:Rest._may_wake",
        "counts.awake_ns - counts.written_ns",
        "counts.awake_ns",
        "A job that was written often is not woken for its signal any more.",
        (_NODE + "test_what_a_page_says_buys_a_bounded_time",),
    ),
)
