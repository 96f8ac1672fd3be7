"""Rules for every floor: what cannot run here is skipped aloud, and CI does not accept it."""

import os
import signal

import pytest
from hypothesis import settings

from tests.invariants_plugin import invariants_hold  # noqa: F401  (checks every test's end)
from tests.skips import ALWAYS, BY_FLOOR, NO_GPU

#: Set by .ci/run: comma list of floors that must not be skipped.
REQUIRED = frozenset(filter(None, os.environ.get("GANDIVA_REQUIRE", "").split(",")))
ACCEPTED = (*ALWAYS, *(why for floor, why in BY_FLOOR.items() if floor not in REQUIRED))

_unexpected: list[str] = []

# A shell without job control has what it starts with & ignore SIGINT, nohup has SIGHUP ignored; and so would
# all that tests end by them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# An example's time is the machine's load; Hypothesis' own profile for CI has no deadline either.
if settings.get_current_profile_name() == "default":
    settings.register_profile("gandiva", deadline=None)
    settings.load_profile("gandiva")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Where workers share the tests (--dist loadgroup), one gets all of a file, of containers, of the GPU."""
    group = "containers" if _suite_of(item) else item.nodeid.partition("::")[0]
    group = "gpu" if item.get_closest_marker("gpu") else group
    item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests aloud where there is no GPU; real clusters run last, those in containers by suite."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not _has_gpu():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))
    items.sort(key=_when)


def _when(item: pytest.Item) -> tuple[int, str]:
    """A suite's containers are up while its own tests run, and not beside those of others."""
    if item.get_closest_marker("docker"):
        return (2, _suite_of(item))
    return (int(item.get_closest_marker("cluster") is not None), "")


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
