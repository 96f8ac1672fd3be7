"""The known-wrong variants still apply, and the tests that catch them are there; none of them is run here."""

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest

from tests import variants
from tests.variant_kit import TARGETS, Stale, Variant, changed, functions
from tests.variants_table import ALL, ROOMS

ROOT = Path(__file__).parents[2]
#: Floors that `make test` does not run, and the mark of tests that it leaves out.
OUTSIDE, SLOW = ("tests/gpu/", "tests/docker/", "tests/bench/"), "mark.slow"


@functools.cache
def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def named_in(path):
    """The functions of a file of tests, each with what decorates it and its module's marks."""
    tree = ast.parse(text_of(path))
    assigned = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    marks = [line for line in assigned if line.startswith("pytestmark")]
    return {
        name.replace(".", "::"): " ".join(map(ast.unparse, node.decorator_list)) + " ".join(marks)
        for name, node in functions(tree)
    }


def faults_of(variant):
    """Yield what is wrong with a row of the table."""
    try:
        changed(variant, text_of(variant.path))
    except Stale as err:
        yield str(err)
    if variant.old == variant.new or not variant.wrong.endswith(".") or variant.target not in TARGETS:
        yield "wants a change, a sentence and a known target"
    if bool(variant.tests) == bool(variant.command) or bool(variant.command) != bool(variant.says):
        yield "wants tests, or a command and what it says"
    if bool(variant.why) != (variant.target == "test-all"):
        yield "wants a reason why it is not in `make test`, or none"
    for test in variant.tests:
        path, _, name = test.partition("[")[0].partition("::")
        if not (ROOT / path).is_file() or (name and name not in named_in(path)):
            yield f"{test} is gone"
        elif variant.target == "test" and (path.startswith(OUTSIDE) or SLOW in named_in(path).get(name, "")):
            yield f"{test} is not in `make test`"


@pytest.mark.parametrize("room", ROOMS)
def test_variants_apply_and_their_tests_are_there(room):
    faults = [f"{variant.name}: {fault}" for variant in ROOMS[room] for fault in faults_of(variant)]
    assert faults == []


def test_names_are_unique():
    assert [name for name, count in Counter(each.name for each in ALL).items() if count > 1] == []


PYTHON = "def one():\n    return 1\n\n\nclass A:\n    def one(self):\n        return 1 + 1\n"
C = "static int one(int a)\n{\n\treturn a;\n}\n\nint two(void)\n{\n\tone(1);\n\treturn 2;\n}\n"
LUA = "local function one()\n    return 1\nend\n\nfunction M.one(a)\n    return 1\nend\n"


@pytest.mark.parametrize(
    "where, old, new, text, want",
    [
        ("a.py:one", "return 1", "return 2", PYTHON, PYTHON.replace("    return 1\n\n", "    return 2\n\n")),
        ("a.py:A.one", "1 + 1", "3", PYTHON, PYTHON.replace("1 + 1", "3")),
        ("a.c:one", "return a", "return 0", C, C.replace("return a", "return 0")),
        ("a.c:two", "return 2", "return 0", C, C.replace("return 2", "return 0")),
        ("a.lua:one", "return 1", "return 2", LUA, LUA.replace("1\nend\n\n", "2\nend\n\n")),
        ("a.lua:M.one", "return 1", "return 2", LUA, LUA.replace("(a)\n    return 1", "(a)\n    return 2")),
    ],
)
def test_one_function_is_changed(where, old, new, text, want):
    assert changed(Variant("name", where, old, new, "Wrong."), text) == want


@pytest.mark.parametrize(
    "where, old, new, why",
    [
        ("a.py:two", "return 1", "return 2", "0 functions two"),
        ("a.py:one", "return 3", "return 2", "0 times"),
        ("a.py:A.one", "1", "2", "2 times"),
        ("a.py:one", "return 1", "return (", "does not compile"),
    ],
)
def test_what_does_not_apply_is_told(where, old, new, why):
    with pytest.raises(Stale, match=why):
        changed(Variant("name", where, old, new, "Wrong."), PYTHON)


CAUGHT = "E   assert 1 == 2\n1 failed"


@pytest.mark.parametrize(
    "code, output, why",
    [
        (1, CAUGHT, ""),
        (0, "1 passed", "MISSED"),
        (2, "interrupted", "no failed test"),
        (4, "no such test", "no failed test"),
        (5, "no tests ran", "no failed test"),
        (-9, "", "no failed test"),
        (1, "E   NameError: name 'x' is not defined", "broken, not wrong"),
    ],
)
def test_only_a_failed_test_is_a_catch(code, output, why):
    told = variants.verdict(Variant("name", "a.py:one", "1", "2", "Wrong.", ("tests/x.py",)), code, output)
    assert why in told and bool(told) == bool(why)


@pytest.mark.parametrize(
    "code, output, is_caught", [(1, "so: lost", True), (0, "lost", False), (1, "other", False)]
)
def test_a_command_must_fail_and_say_why(code, output, is_caught):
    variant = Variant("name", "a.py:one", "1", "2", "Wrong.", target="demo", command=("x",), says="lost")
    assert (variants.verdict(variant, code, output) == "") == is_caught
