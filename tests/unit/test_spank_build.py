"""How the SPANK plugin is built: links nothing, exports only its hooks, hardened, short functions."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.spank_runner import MISSING, SPANK, build

#: House limits for C: lines of a function at most, median at most, lines of a file at most.
LONGEST, MEDIAN, FILE = 80, 25, 350

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("spank"))[0]


def output(*words: str | Path) -> str:
    words = tuple(map(str, words))
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def test_it_links_the_c_library_and_nothing_else(plugin: Path) -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", plugin))
    assert needed == ["libc.so.6"]


def test_it_uses_nothing_of_slurm_but_spank_h(plugin: Path) -> None:
    wanted = {line.split()[-1] for line in output("nm", "-D", "--undefined-only", plugin).splitlines()}
    declared = set(re.findall(r"\b(\w+)\s*\(", Path("/usr/include/slurm/spank.h").read_text()))
    ours = {name for name in wanted if re.match(r"(spank|slurm)_", name)}
    assert "spank_option_register" in ours
    assert ours <= declared


def test_it_exports_what_slurm_looks_up_and_nothing_else(plugin: Path) -> None:
    defined = {line.split()[-1] for line in output("nm", "-D", "--defined-only", plugin).splitlines()}
    assert {"plugin_name", "plugin_version", "spank_plugin_version", "slurm_spank_init"} <= defined
    assert all(name.startswith(("plugin_", "spank_plugin_version", "slurm_spank_")) for name in defined)


def test_it_is_hardened(plugin: Path) -> None:
    assert "BIND_NOW" in output("readelf", "-d", plugin)
    segments = output("readelf", "-lW", plugin)
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK.* RW ", segments)
    assert "__stack_chk_fail" in output("nm", "-D", plugin)


def test_it_is_put_in_place_by_rename(plugin: Path) -> None:
    before = plugin.stat().st_ino
    with plugin.open("rb") as held:
        subprocess.run(["make", "-s", "-B", "-C", str(plugin.parent)], check=True, timeout=120)
        assert plugin.stat().st_ino != before
        assert len(held.read()) > 0
    assert [path.name for path in plugin.parent.glob("*.new")] == []


def function_lengths(text: str) -> list[int]:
    """Lines of each function, by its opening and closing brace in the first column."""
    lengths, start = [], None
    for number, line in enumerate(text.splitlines()):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            lengths.append(number - start + 2)
            start = None
    return lengths


def test_functions_and_files_stay_short() -> None:
    sources = sorted(SPANK.glob("*.c"))
    lengths = sorted(length for path in sources for length in function_lengths(path.read_text()))
    assert len(lengths) > 30
    assert lengths[-1] <= LONGEST
    assert lengths[len(lengths) // 2] <= MEDIAN
    assert max(len(path.read_text().splitlines()) for path in sources) <= FILE
