"""Rules for every floor: what cannot run here is skipped aloud, and CI does not accept it."""

import gc
import os
import signal

import pytest
from hypothesis import settings

from tests import patience
from tests.costs import COSTS_S
from tests.invariants_plugin import invariants_hold  # noqa: F401  (checks every test's end)
from tests.skips import ALWAYS, BY_FLOOR, NO_GPU
from tests.times import pytest_runtest_protocol  # noqa: F401  (TIMES=FILE: what each test takes)

#: Set by .ci/run: comma list of floors that must not be skipped.
REQUIRED = frozenset(filter(None, os.environ.get("GANDIVA_REQUIRE", "").split(",")))
ACCEPTED = (*ALWAYS, *(why for floor, why in BY_FLOOR.items() if floor not in REQUIRED))

_unexpected: list[str] = []

# A shell without job control has what it starts with & ignore SIGINT, nohup has SIGHUP ignored; and so would
# all that tests end by them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# aiohttp reads the system's certificates when it is imported, for a client by TLS, which nothing here is: a
# tenth of the processor time of a daemon's start.
os.environ["SSL_CERT_FILE"] = os.devnull

# The same examples at each run: the verdict is on the change, not on luck; `make soak` draws anew. How long
# an example takes is the machine's load.
settings.register_profile(
    "gandiva",
    deadline=None,
    derandomize=os.environ.get("GANDIVA_DRAW") != "anew",
    database=None,
    print_blob=True,
)
settings.load_profile("gandiva")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let the bound on a test's time go with the machine's speed, as the deadlines inside do."""
    if config.option.timeout:
        config.option.timeout *= patience.slowness()


def _scale_bound(item: pytest.Item) -> None:
    """Let a bound of the test's own go with the machine's speed, too."""
    bound = item.get_closest_marker("timeout")
    if bound is not None and bound.args:
        scaled = pytest.mark.timeout(bound.args[0] * patience.slowness(), **bound.kwargs)
        item.add_marker(scaled, append=False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests aloud where there is no GPU; long files come first, containers last, by suite."""
    for item in items:
        _scale_bound(item)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not _has_gpu():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))
    items.sort(key=_when)


def pytest_collection_finish() -> None:
    """Leave what collecting made out of every later collection of garbage: a million objects that stay."""
    _forget_objects()


@pytest.fixture(scope="module")
def few_objects() -> None:
    """A module that parks trainings in this process begins with no more objects than one of its own has.

    A park looks through the objects that Python's collector lists; beside those of a thousand tests before it
    each one would take a third of a second.
    """
    _forget_objects()


def _forget_objects() -> None:
    gc.collect()
    gc.freeze()


def _when(item: pytest.Item) -> tuple[bool, str, float]:
    """Return what items are sorted by. A suite's containers are up while its tests run, not beside others'.

    Workers take files in this order (`--no-loadscope-reorder`): a long one that came last would be waited
    for alone.
    """
    file = item.nodeid.partition("::")[0]
    return bool(item.get_closest_marker("docker")), _suite_of(item), -COSTS_S.get(file, 0.0)


def _suite_of(item: pytest.Item) -> str:
    """The back end in containers that a test runs on, as docker:SUITE; "" for all others."""
    callspec = getattr(item, "callspec", None)
    backend = callspec.params.get("backend") if callspec else None
    return backend if isinstance(backend, str) and backend.startswith("docker:") else ""


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember skips that CI must not accept."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(why in reason for why in ACCEPTED):
            _unexpected.append(f"{report.nodeid}: {reason}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module skipped while it is collected counts like a skipped test."""
    if report.skipped:
        _unexpected.append(f"{report.nodeid}: {report.longrepr}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With GANDIVA_REQUIRE set, a skip is a failure."""
    if REQUIRED and _unexpected and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which skips made the run fail."""
    if REQUIRED and _unexpected:
        terminalreporter.section("skipped although GANDIVA_REQUIRE asks for it", red=True)
        for line in _unexpected:
            terminalreporter.line(line)
