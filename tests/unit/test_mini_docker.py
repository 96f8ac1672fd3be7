"""The back end `docker` before any engine: what is asked, what compose is told, which network is taken."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini import docker, engine
from gandiva_slurm.mini.commands import mini
from gandiva_slurm.mini.engine import Engine
from gandiva_slurm.mini.layout import CLONE, Layout
from gandiva_slurm.mini.spec import (
    BACKEND_VARIABLE,
    SUITES,
    MiniSpec,
    backend_text,
    default_backend,
    parse_nodes,
)
from gandiva_slurm.model.errors import GandivaError, UsageError


@pytest.mark.parametrize(("kind", "suite", "want"), [
    ("local", "", "local"), ("docker", "", "docker:bookworm"),
    ("docker", "trixie", "docker:trixie")])
def test_backend_and_suite_are_one_word(kind: str, suite: str, want: str) -> None:
    assert backend_text(kind, suite) == want


@pytest.mark.parametrize(("kind", "suite"), [("podman", ""), ("docker", "sid"), ("local", "sid")])
def test_backend_refuses_what_there_is_not(kind: str, suite: str) -> None:
    with pytest.raises(UsageError, match="choose from"):
        backend_text(kind, suite)


def test_the_variable_names_the_back_end_of_every_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, "docker:forky")
    assert MiniSpec().backend == "docker:forky"
    assert default_backend("trixie") == "docker:trixie"
    monkeypatch.setenv(BACKEND_VARIABLE, "docker:hamm")
    with pytest.raises(UsageError, match="bookworm, trixie, forky"):
        MiniSpec()
    monkeypatch.delenv(BACKEND_VARIABLE)
    assert MiniSpec().backend == "local"


def test_compose_has_a_machine_for_each_node_after_the_pattern_of_the_file() -> None:
    spec = MiniSpec("x", parse_nodes("v100:3x2,k80:1x2"), backend="docker:trixie")
    site = docker.site_of(spec, Layout.of("x"), "10.99.9")
    told = docker.compose_of(spec, site, "10.99.9")
    services = told["services"]
    assert list(services) == ["db", "ctl", "n1", "n2", "n3", "n4", "p1"]
    assert {service["image"] for service in services.values()} == {"gandiva-mini:trixie"}
    assert services["n4"]["hostname"] == "n4" and services["n4"]["container_name"] == "gandiva-x-n4"
    addresses = [service["networks"]["private"]["ipv4_address"] for service in services.values()]
    assert len(set(addresses)) == 7 and all(address.startswith("10.99.9.") for address in addresses)
    assert addresses[2:] == [site.nodes[name].ip for name in ("n1", "n2", "n3", "n4", "p1")]
    assert told["networks"]["private"]["internal"] is True
    assert "${" not in json.dumps(told)


def test_the_most_nodes_fit_into_the_network() -> None:
    spec = MiniSpec("x", parse_nodes("v100:32x1"), backend="docker:forky")
    last = docker.site_of(spec, Layout.of("x"), "10.99.9").nodes["n32"].ip
    assert int(last.rpartition(".")[2]) < 255


def test_compose_file_shows_three_nodes_and_the_plain_one() -> None:
    shown = yaml.safe_load((CLONE / "container/compose.yaml").read_text())
    assert list(shown["services"]) == ["db", "ctl", "n1", "n2", "n3", "p1"]


def test_every_suite_is_known_to_the_image() -> None:
    script = (CLONE / "container/build.sh").read_text()
    assert " | ".join(SUITES) in script


class FakeEngine(Engine):
    """Answers from a table instead of an engine."""

    answers: dict[str, str]

    def call(self, *words: str, check: bool = True) -> str:
        return self.answers[" ".join(words)]


@pytest.fixture
def none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that no cluster of this machine asks for meanwhile."""
    monkeypatch.setattr(engine, "NETWORK", "10.97")


def test_a_network_in_use_is_passed_over(none_of_ours: None) -> None:
    found = FakeEngine("unix:///nowhere")
    used = [{"IPAM": {"Config": [{"Subnet": "10.97.6.0/24"}]}}, {"IPAM": {"Config": None}}]
    object.__setattr__(found, "answers", {"network ls -q": "a b", "network inspect a b": json.dumps(used)})
    with found.free_network(5) as network, found.free_network(253) as last:
        assert (network, last) == ("10.97.7", "10.97.254")
        # Another cluster that starts now, before this one has made its own, does not get that.
        with found.free_network(5) as other:
            assert other == "10.97.8"
    with found.free_network(5) as network:
        assert network == "10.97.7"


def test_a_network_that_another_cluster_removes_meanwhile_hinders_none(none_of_ours: None) -> None:
    """`docker network inspect` fails then, and prints the others, or none."""
    found = FakeEngine("unix:///nowhere")
    object.__setattr__(found, "answers", {"network ls -q": "a", "network inspect a": ""})
    with found.free_network(5) as network:
        assert network == "10.97.6"


def test_without_an_engine_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "container").mkdir()
    (tmp_path / "container/engine.sh").write_text(
        "echo 'gandiva: no engine' >&2; echo 'gandiva: next: make engine' >&2; exit 1")
    monkeypatch.setattr(engine, "CLONE", tmp_path)
    with pytest.raises(GandivaError, match=r"^no engine; next: make engine$"):
        Engine.find()
    monkeypatch.setattr(docker.os, "geteuid", lambda: 0)
    assert clusters.missing("docker:forky") == "no engine; next: make engine"


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker.os, "geteuid", lambda: 1000)
    assert "run it as root" in clusters.missing("docker:forky")


@pytest.mark.parametrize(("file", "cure"), [
    ("/nowhere/report.json", "make /nowhere first"), ("/", "name a file in it")])
def test_the_demo_says_at_once_that_its_report_could_not_be_written(file: str, cure: str) -> None:
    done = CliRunner().invoke(mini, ["demo", "--json", file])
    assert isinstance(done.exception, UsageError) and cure in str(done.exception)


def test_local_has_the_suite_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"VERSION_CODENAME": "trixie"})
    assert backend_text("local", "trixie") == backend_text("local", "") == "local"
    done = CliRunner().invoke(mini, ["up", "--suite", "forky"])
    assert isinstance(done.exception, UsageError) and "next: --backend docker" in str(done.exception)


def test_up_refuses_a_suite_there_is_not() -> None:
    done = CliRunner().invoke(mini, ["up", "--backend", "docker", "--suite", "sid"])
    assert isinstance(done.exception, UsageError) and "choose from bookworm" in str(done.exception)
