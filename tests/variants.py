"""Put known-wrong variants into a copy of the product, one at a time, and show that the tests catch each.

    .venv/bin/python -m tests.variants [--list] [--only NAME ...] [--sample N --seed S] [--jobs N]
                                       [--table FILE] [--commands]

Ends with 0 when every variant is caught, 1 when one is missed or does not apply any more. The working tree is
never changed: each variant gets a copy of its own, with a virtual environment that imports the product from
there. First the tests that are named must pass without any variant.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.variant_kit import Stale, Variant, put_in
from tests.variants_table import ALL, ROOMS

ROOT = Path(__file__).parents[1]
#: What a copy has of the tree.
PARTS = ("gandiva_slurm", "tests", "spank", "slurm_conf", "container", "examples", "docs", "pyproject.toml")
FILES = ("Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE")
#: Commands that a mini cluster finds beside its Python.
COMMANDS = ("gandiva", "gandivactld", "gandivad", "torchrun")
PYTEST = "-m pytest -x -q --tb=short -p no:cacheprovider --timeout=120"
#: The longest that one run of tests, or a command, may take, in seconds.
BOUND_S = 900.0
#: A variant that fails by one of these is a slip of the pen, which any test would find: it proves nothing.
SLIP = re.compile(r"^E +(NameError|ImportError|ModuleNotFoundError|SyntaxError|UnboundLocalError)\b.*", re.M)

HEAD = """# Known-wrong variants

Each line is a change that makes the product wrong, and the test that fails with it: what the tests are
worth, seen by trying. Written by `.venv/bin/python -m tests.variants --table docs/variants.md`: in a copy of
the tree the named tests pass, and with the change they fail. {count} variants, {seconds:.0f} s of tests with
them, each alone. The changes lie in `tests/variant_rooms/`, each by the function it changes; one that does
not apply any more is a failure, of this script and of `tests/unit/test_variants.py`. All these tests are in
`make test`, unless said.
"""


class Result(NamedTuple):
    """How a variant fared: `trouble` is "" when it was caught; `seen` is the test's first word on it."""

    variant: Variant
    trouble: str
    seconds: float = 0.0
    seen: str = ""


class Bench:
    """A pristine copy of the tree, from which every run gets a copy of its own."""

    def __init__(self, scratch: Path) -> None:
        """`scratch` is an empty directory."""
        self._scratch = scratch
        self._numbers = itertools.count(1)
        self._pristine = scratch / "pristine"
        self._pristine.mkdir()
        for name in PARTS + FILES:
            source, target = ROOT / name, self._pristine / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            elif source.exists():
                shutil.copy2(source, target)
        compiling = [sys.executable, "-m", "compileall", "-q", "gandiva_slurm", "tests"]
        subprocess.run(compiling, cwd=self._pristine, check=True)

    def run(self, argv: Sequence[str], variant: Variant | None = None) -> tuple[int, str]:
        """Run a command in a new copy, with a variant in it; Stale when that does not apply."""
        tree = self._tree()
        try:
            if variant is not None:
                put_in(variant, tree)
            return run([word.replace("{python}", str(tree / ".venv/bin/python")) for word in argv], tree)
        finally:
            shutil.rmtree(tree, ignore_errors=True)

    def _tree(self) -> Path:
        """Make a copy with an environment of its own: there gandiva_slurm is the copy's, wherever it runs."""
        tree = self._scratch / f"v{next(self._numbers)}"
        shutil.copytree(self._pristine, tree, copy_function=os.link)
        venv.create(tree / ".venv", symlinks=True)
        packages = next((tree / ".venv/lib").glob("python*/site-packages"))
        theirs = [path for path in sys.path if path.endswith("-packages")]
        (packages / "variant.pth").write_text("\n".join([str(tree), *theirs]) + "\n")
        for name in COMMANDS:
            mine = Path(sys.executable).with_name(name).read_text().splitlines(keepends=True)
            (tree / ".venv/bin" / name).write_text(f"#!{tree}/.venv/bin/python\n" + "".join(mine[1:]))
            (tree / ".venv/bin" / name).chmod(0o755)
        asked = [str(tree / ".venv/bin/python"), "-I", "-c", "import gandiva_slurm as g; print(g.__file__)"]
        found = subprocess.run(asked, cwd="/", capture_output=True, text=True, check=True).stdout.strip()
        if not Path(found).is_relative_to(tree):
            raise RuntimeError(f"{found} would be tested, not the copy in {tree}")
        return tree


def run(argv: Sequence[str], tree: Path) -> tuple[int, str]:
    """Run a program in a copy; return its exit status and all it wrote."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "PYTEST_ADDOPTS", "GANDIVA_REQUIRE")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {"CI": "true", "OMP_NUM_THREADS": "1", "PATH": f"{tree}/.venv/bin:{os.environ['PATH']}"}
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = subprocess.Popen(
            argv, cwd=tree, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        out.seek(0)
        return code, out.read()


def files_of(variants: Iterable[Variant]) -> dict[str, list[str]]:
    """Return the tests that are named, by file."""
    files: dict[str, list[str]] = {}
    for test in dict.fromkeys(test for variant in variants for test in variant.tests):
        files.setdefault(test.partition("::")[0], []).append(test)
    return files


def argv_of(variant: Variant) -> list[str]:
    """Return the command that must fail with a variant."""
    return [*variant.command] or ["{python}", *PYTEST.split(), *variant.tests]


def judge(bench: Bench, variant: Variant, troubles: dict[str, str]) -> Result:
    """Run a variant's tests with it; `troubles` says which files' tests fail without any."""
    known = [trouble for name in parts_of(variant) if (trouble := troubles[name])]
    if known:
        return Result(variant, f"its tests fail without it: {known[0]}")
    began = time.monotonic()
    try:
        code, output = bench.run(argv_of(variant), variant)
    except Stale as err:
        return Result(variant, f"does not apply: {err}")
    return Result(variant, verdict(variant, code, output), time.monotonic() - began, first_error(output))


def parts_of(variant: Variant) -> list[str]:
    """Return the names under which a variant's tests are tried without it: its files, or its command."""
    return [" ".join(variant.command)] if variant.command else [*files_of([variant])]


def troubles_unchanged(
    bench: Bench, variants: Sequence[Variant], pool: ThreadPoolExecutor
) -> dict[str, str]:
    """Run all named tests without a variant, those of a file together; say of each what failed, or ""."""
    todo = {file: ["{python}", *PYTEST.split(), *tests] for file, tests in files_of(variants).items()}
    todo |= {" ".join(each.command): [*each.command] for each in variants if each.command}

    def tried(argv: list[str]) -> str:
        code, output = bench.run(argv)
        return f"exit {code}: {first_error(output) or output[-300:]}" if code else ""

    return dict(zip(todo, pool.map(tried, todo.values()), strict=True))


def verdict(variant: Variant, code: int, output: str) -> str:
    """Return why a run does not count as caught, "" when it does."""
    if code == 0:
        return "MISSED: what should fail ended with 0"
    if variant.command:
        return "" if variant.says in output else f"ended with {code} and did not say {variant.says!r}"
    if code != 1:
        return f"pytest ended with {code}, which is no failed test: {output[-300:]}"
    slip = SLIP.search(output)
    return f"it is broken, not wrong: {slip.group()}" if slip else ""


def first_error(output: str) -> str:
    """Return the first line that pytest marks as the error."""
    found = re.search(r"^E +(.*)$", output, re.MULTILINE)
    return found.group(1) if found else ""


def table(results: Sequence[Result]) -> str:
    """Return the page of results, by room."""
    by_name = {result.variant.name: result for result in results}
    lines = [HEAD.format(count=len(results), seconds=sum(result.seconds for result in results))]
    for room, variants in ROOMS.items():
        rows = [by_name[variant.name] for variant in variants if variant.name in by_name]
        if rows:
            lines += [f"## {room}", "", "| variant | what is wrong | caught by | s |", "|---|---|---|---|"]
            lines += [_row(result) for result in rows] + [""]
    return "\n".join(lines)


def _row(result: Result) -> str:
    variant = result.variant
    by = ", ".join(f"`{each}`" for each in variant.tests or (" ".join(variant.command),))
    by += f" (`make {variant.target}`: {variant.why})" if variant.target != "test" else ""
    by = f"**{result.trouble.partition(':')[0]}** {by}" if result.trouble else by
    return f"| {variant.name} | {variant.wrong} | {by} | {result.seconds:.1f} |"


def chosen(args: argparse.Namespace) -> list[Variant]:
    """Return the variants that are asked for."""
    known = {variant.name: variant for variant in ALL}
    unknown = [name for name in args.only or () if name not in known]
    if unknown:
        raise SystemExit(f"no variant {', '.join(unknown)}; next: see --list")
    if args.only:
        return [known[name] for name in args.only]
    found = [variant for variant in ALL if args.commands or not variant.command]
    return random.Random(args.seed).sample(found, min(args.sample, len(found))) if args.sample else found


def tried(variants: Sequence[Variant], jobs: int) -> list[Result]:
    """Try these variants, `jobs` at a time; say of each at once how it fared."""
    with tempfile.TemporaryDirectory(prefix="variants-") as scratch:
        os.chmod(scratch, 0o755)  # tests start tasks as other users
        bench = Bench(Path(scratch))
        with ThreadPoolExecutor(jobs) as pool:
            troubles = troubles_unchanged(bench, variants, pool)
            return [_said(result) for result in pool.map(lambda each: judge(bench, each, troubles), variants)]


def _said(result: Result) -> Result:
    caught = f"caught {result.seconds:5.1f} s  {result.seen}"
    said = f"NOT CAUGHT  {result.trouble}" if result.trouble else caught
    print(f"{result.variant.name:44} {said}"[:200], flush=True)
    return result


def main() -> int:
    """Do what the command line asks; return the exit status."""
    parser = argparse.ArgumentParser("tests.variants", description="Known-wrong variants against the tests.")
    parser.add_argument("--list", action="store_true", help="name them and run nothing")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="run this many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0, help="what --sample draws by")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="at a time")
    parser.add_argument("--commands", action="store_true", help="also those tried by a command (minutes)")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the results there, as Markdown")
    args = parser.parse_args()
    variants = chosen(args)
    if args.list:
        for variant in variants:
            print(f"{variant.name:44} {variant.where:70} {variant.wrong}")
        return 0
    began = time.monotonic()
    results = tried(variants, args.jobs)
    if args.table:
        args.table.write_text(table(results), encoding="utf-8")
    bad = [result.variant.name for result in results if result.trouble]
    last = f"{len(results) - len(bad)} of {len(results)} variants caught in {time.monotonic() - began:.0f} s"
    print(last + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
