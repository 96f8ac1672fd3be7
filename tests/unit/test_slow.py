"""What `make test-all` finds its tests by: a long form that it does not see would be left out in silence."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: Helpers whose decorators mark the tests of others; the Makefile's LONG_FILES knows them by name.
MARKING = {"policy_world.py": "on_cases"}


def test_marks_come_from_where_the_makefile_looks_for_them() -> None:
    # tests/docker is run as a directory.
    helpers = {
        path for path in TESTS.rglob("*.py") if path.name[:5] != "test_" and path.parent.name != "docker"
    }
    assert {path.name for path in helpers if "from tests.slow" in path.read_text()} == {*MARKING}
    told = re.search(r"^LONG_FILES = .*grep -rlE '([^']+)'", (TESTS.parent / "Makefile").read_text(), re.M)
    assert told and {"tests\\.slow", *MARKING.values()} <= {*told[1].split("|")}


def test_what_draws_more_in_test_all_is_marked_for_it() -> None:
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        asked = len(re.findall(r"max_examples=drawn\(", text))
        marked = len(re.findall(r"^@DRAWN$|DRAWN\(", text, re.M))
        assert path == Path(__file__) or marked >= asked, path
