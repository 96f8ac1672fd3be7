"""What the pages tell people to type is what the program takes, and what they say it prints has its headings.

Nothing is run: a command line is put to click's own parser.
"""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gandiva_slurm.cli.main import COMMANDS, cli
from gandiva_slurm.cli.table import choose_fields

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "slurm_conf/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
]
#: What the program itself tells people to type.
SOURCES = sorted((ROOT / "gandiva_slurm").rglob("*.py"))

FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: A line to be typed, whatever stands before `gandiva` there, and one in prose.
TYPED = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?(gandiva .*)$")
SPAN = re.compile(r"`(?:[A-Z_]+=\S+ )*(?:\S*/)?(gandiva\s[^`]+)`")
#: In a synopsis: a line that goes on with the one before, and a choice of which one may be given.
GOES_ON = re.compile(r"\\\n|\n +(?=\[?--)")
ONE_OF = re.compile(r"\[([^\]|]*) \|[^\]]*\]")
#: What readers put something else in place of, and something that may stand there.
STAND_IN = {"FILE": str(ROOT / "README.md"), "NAME": "fifo", "N": "1", "S": "1", "K": "2", "C": "0"}
STAND_IN |= {"PART": "0.5", "SIGMA": "0.1", "SECONDS": "5", "JOBID": "4711"}
#: A forecast is spoken of before it is there.
ABSENT = {"when"} - COMMANDS.keys()
#: Commands that print a table by default, with the case of its heading.
TABLES = {"queue": str.upper, "nodes": str.upper, "eff": str.upper, "acct": str, "share": str, "report": str}


def blocks(page: Path) -> Iterator[list[str]]:
    """The lines of each block of code."""
    for block in FENCE.findall(page.read_text()):
        yield GOES_ON.sub(" ", block).splitlines()


def in_blocks(page: Path) -> Iterator[str]:
    """Command lines of `gandiva` that stand in blocks: whole ones."""
    for lines in blocks(page):
        yield from (match[1] for line in lines if (match := TYPED.match(line)))


def in_prose(page: Path) -> Iterator[str]:
    """Command lines of `gandiva` in running text: what goes without saying may be missing."""
    text = FENCE.sub("", page.read_text()) if page.suffix == ".md" else page.read_text()
    yield from (" ".join(span.split()) for span in SPAN.findall(text))


def words_of(line: str) -> list[str]:
    """The arguments behind `gandiva`: of `a|b` the first, and all that may be left out."""
    line = ONE_OF.sub(r"\1", line.replace("\\|", "|").replace('" "', ""))
    words = []
    for word in shlex.split(re.sub(r"[\[\]]", "", line), comments=True)[1:]:
        if word in {"|", ">", "&&", ";"}:
            break
        first = word.split("|")[0]
        words.append(STAND_IN.get(first, first))
    return [word for word in words if word not in {"…", "..."}]


def parse(words: list[str], is_whole: bool) -> None:
    """Put a line to the parser, and one that stands behind `--` in turn; click.ClickException: not taken."""
    command: click.Command | None = cli
    context = None
    if not words or words[0] in ABSENT:
        return
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command, parent=context, info_name=words[0])
        _, command, words = command.resolve_command(context, words)
    assert command is not None
    try:
        command.make_context(command.name, words.copy(), parent=context)
    except click.MissingParameter:
        if is_whole:
            raise
    except (click.exceptions.NoArgsIsHelpError, click.exceptions.Exit):
        pass  # a group that is named alone, --version
    behind = words[words.index("--") + 1 :] if "--" in words else []
    if behind[:1] == ["gandiva"]:
        parse(behind[1:], is_whole)


LINES = [
    *((page, line, True) for page in PAGES for line in dict.fromkeys(in_blocks(page))),
    *((page, line, False) for page in [*PAGES, *SOURCES] for line in dict.fromkeys(in_prose(page))),
]


@pytest.mark.parametrize(
    ("page", "line", "is_whole"), LINES, ids=lambda it: it.name if isinstance(it, Path) else str(it)[:60]
)
def test_what_is_to_be_typed_is_taken(page: Path, line: str, is_whole: bool) -> None:
    try:
        parse(words_of(line), is_whole)
    except click.ClickException as err:
        pytest.fail(f"{page.relative_to(ROOT)}: `{line}`: {err.format_message()}")


def tables() -> Iterator[tuple[Path, list[str], list[str]]]:
    """The words of each command of a block that prints a table, and what the page has below it."""
    for page in PAGES:
        for lines in blocks(page):
            for number, line in enumerate(lines, 1):
                match = TYPED.match(line) if line.startswith("$ ") else None
                words = words_of(match[1]) if match else [""]
                if words[0] in TABLES and "--json" not in words and (words[0] != "eff" or "-u" in words):
                    yield page, words, lines[number:]


@pytest.mark.parametrize(
    ("page", "words", "below"), [*tables()], ids=lambda it: it.name if isinstance(it, Path) else it[0][:20]
)
def test_tables_have_the_columns_that_are_printed(page: Path, words: list[str], below: list[str]) -> None:
    name = words[0]
    module = importlib.import_module(COMMANDS[name][0])
    if name == "report":
        by = words[words.index("--by") + 1] if "--by" in words else "user"
        hidden = {*module.BY} - {*module.BY[by]}
        want = [field.name for field in module.FIELDS if field.name.lower() not in hidden]
        assert below[2].strip("| ").split(" | ") == want, page
        return
    spec = words[words.index("-o") + 1] if "-o" in words else getattr(module, "DEFAULT", "")
    fields = choose_fields(spec, module.FIELDS) if spec else module.FIELDS
    assert below[0].split() == [TABLES[name](field.name) for field in fields], page


def test_there_is_something_to_check() -> None:
    assert len(LINES) > 150 and len([*tables()]) >= 4
