"""Known-wrong variants. Process images that nodes fetch from each other."""

from __future__ import annotations

from tests.variant_kit import Variant

_TESTS = "tests/controller/test_image_fetching.py::"

VARIANTS = (
    Variant(
        "image-of-what-lives",
        "gandiva_slurm/node/handing.py:Hander._claim",
        "if key in self._node.residents:",
        "if False:",
        "A node gives away the image of a job that may yet go on there: two are alive.",
        (_TESTS + "test_what_lives_there_still_is_waited_for",),
    ),
    Variant(
        "image-for-two",
        "gandiva_slurm/node/handing.py:Hander.answer",
        "if given is not None and given.node != question.node:",
        "if False:",
        "Two nodes fetch one image.",
        (_TESTS + "test_one_node_claims_it_and_no_other_has_it",),
    ),
    Variant(
        "image-names-believed",
        "gandiva_slurm/node/images.py:is_plain",
        "return bool(_NAME.fullmatch(name)) and name != MANIFEST",
        "return True",
        "A node reads, or writes, whatever file another names.",
        (
            _TESTS + "test_nothing_but_its_files_can_be_read",
            _TESTS + "test_a_node_that_lies_of_it_leaves_nothing_behind",
        ),
    ),
    Variant(
        "image-stays-claimed",
        "gandiva_slurm/node/handing.py:Hander._claim",
        "timer = asyncio.get_running_loop().call_later(SILENT_S, self._drop, key)",
        "timer = asyncio.get_running_loop().call_later(1e9, self._drop, key)",
        "What a node has claimed and does not fetch lies there for ever.",
        (_TESTS + "test_a_node_that_asks_no_more_has_given_it_up",),
    ),
    Variant(
        "image-never-fetched",
        "gandiva_slurm/node/restorer.py:Restorer._await_image",
        "if not fetching.done():",
        "if False:",
        "A task does not wait for its image to come.",
        (_TESTS + "test_a_task_waits_until_it_is_there_and_begins_anew_where_it_does_not_come",),
    ),
)
