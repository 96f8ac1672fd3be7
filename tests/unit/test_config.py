"""gandiva.yaml: what is read, where it is looked for, and the sentence for each mistake."""

import os
import re
from pathlib import Path

import pytest

from gandiva_slurm.config import Config, MovesConfig, PackingConfig, expand, find_config, load_config
from gandiva_slurm.controller.settings import engine_settings, leader, leader_of
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.replay import engine_of, frame_of, settings_of
from gandiva_slurm.engine.state.settings import SECOND_NS, EngineSettings
from gandiva_slurm.model.errors import ConfigError

MINIMAL = "cluster: mini\npartitions: [gandiva]\ncontroller: {host: ctl}\n"


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str) -> Path:
        file = tmp_path / "gandiva.yaml"
        file.write_text(text)
        file.chmod(0o644)
        return file

    return _write


def complaint(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    return str(caught.value)


def test_minimal_file_takes_defaults(write):
    config = load_config(write(MINIMAL))
    assert config.quantum_ns == 60 * 10**9
    assert (config.slots_per_gpu, config.controller.cycle_s, config.node.max_park_s) == (4, 1.0, 3600)
    assert config.controller_url == "http://ctl:7321"
    assert config.node_address("n7") == ("n7", 7322)
    assert config.node_socket("n7") == "/run/gandiva/n7.sock"
    assert config.node_state_dir("n7") == Path("/var/lib/gandivad/n7")


@pytest.mark.parametrize(
    ("keys", "want_s"),
    [
        ("", 600),
        ("quantum_s: 5\n", 120),
        ("quantum_s: 5\nnode: {refusal_bound_s: auto, park_deadline_s: 1}\n", 50),
        ("node: {refusal_bound_s: 42.5}\n", 42.5),
        ("node: {refusal_bound_s: 0}\n", 0),
    ],
)
def test_how_long_a_gang_that_does_not_park_is_borne(write, keys, want_s):
    assert load_config(write(MINIMAL + keys)).refusal_bound_ns == want_s * 10**9


def test_moves_are_as_free_as_the_engine_says_by_itself(write):
    assert engine_settings(load_config(write(MINIMAL))) == EngineSettings()
    keys = "enabled: false, min_run_s: 10, per_hour: 5, cost_s: 2, deadline_s: 40"
    config = load_config(write(MINIMAL + f"moves: {{{keys}}}\n"))
    got, told = engine_settings(config), leader(config).told
    assert told is not None and told["restart_ns"] == 2 * SECOND_NS
    assert (got.moves, got.min_run_ns, got.moves_per_hour) == (False, 10 * SECOND_NS, 5)
    assert got.move_deadline_ns == 40 * SECOND_NS
    assert "moves.often: unknown key; allowed: enabled" in complaint(write(MINIMAL + "moves: {often: 1}\n"))


def test_the_example_shows_the_defaults_of_moves():
    example = Path(__file__).parents[2] / "slurm_conf/gandiva.yaml"
    assert load_config(example).moves == MovesConfig()


def test_packing_is_on_and_may_be_set(write):
    example = Path(__file__).parents[2] / "slurm_conf/gandiva.yaml"
    assert load_config(example).packing == PackingConfig()
    got = load_config(write(MINIMAL + "packing: {enabled: false, floor: 1.2}\n"))
    assert not engine_settings(got).packing
    led_by = leader(got)
    assert led_by.told["pack_floor"] == 1.2 and leader_of(led_by.told).told == led_by.told
    assert "allowed: 1 .. 2" in complaint(write(MINIMAL + "packing: {floor: 0.5}\n"))


def test_past_use_does_not_matter_unless_a_half_life_is_set(write):
    example = Path(__file__).parents[2] / "slurm_conf/gandiva.yaml"
    for file in (example, write(MINIMAL)):
        assert "half_life_ns" not in leader(load_config(file)).told, "a former release's policy goes on"
    led_by = leader(load_config(write(MINIMAL + "use_half_life_s: 604800\n")))
    assert led_by.told["half_life_ns"] == 604800 * SECOND_NS
    assert leader_of(led_by.told).told == led_by.told
    assert "use_half_life_s: expected greater than or equal to 0" in complaint(
        write(MINIMAL + "use_half_life_s: -1\n")
    )


def test_cells_are_switches_and_sockets_by_gpu_type(write):
    config = load_config(write(MINIMAL + "cells: {v100: {switch: 2, socket: 4}, k80: {socket: 8}}\n"))
    want = {"v100": {"switch": 2, "socket": 4}, "k80": {"socket": 8}}
    engine = Engine(engine_settings(config), leader(config))
    assert engine.settings.cells == want
    assert engine_of(frame_of(engine), settings_of(engine), leader_of).settings == engine.settings
    for told, wrong in (
        ("{v100: {switch: 3, socket: 4}}", "a socket has a whole number of switches"),
        ("{v100: {rack: 2}}", "cells.v100.rack"),
        ("{v100: {switch: 0}}", "greater than or equal to 1"),
        ("[v100]", "cells: expected names and their values"),
    ):
        assert wrong in complaint(write(MINIMAL + f"cells: {told}\n"))


def test_keys_of_a_former_release_are_taken_and_named(write, caplog):
    """As in its example: what they did, the policy does."""
    caplog.set_level("INFO")
    told = "moves: {at_once: 0, faster_percent: 25, per_hour: 2}\npacking: {retry_s: 3600}\n"
    assert load_config(write(MINIMAL + told)).moves.per_hour == 2
    named = re.findall(r"(\S+) has no effect any more", caplog.text)
    assert named == ["moves.at_once", "moves.faster_percent", "packing.retry_s"]


def test_a_cluster_has_a_policy(write, caplog):
    caplog.set_level("INFO")
    assert load_config(write(MINIMAL)).policy == "gandiva_fair" and not caplog.records
    assert load_config(write(MINIMAL + 'policy: ""\nmoves: {min_run_s: 1800}\n')).policy == "gandiva_fair"
    assert "gandiva_fair decides" in caplog.text and "bound the policy now" in caplog.text
    assert "policy: expected a name" in complaint(write(MINIMAL + "policy: a b\n"))


def test_virtual_clusters_are_gpus_by_type_in_their_order(write):
    told = "virtual_clusters: {vision: {v100: 8}, nlp: {v100: 4, k80: 4}}\n"
    config = load_config(write(MINIMAL + told))
    got = engine_settings(config)
    assert [*got.virtual_clusters.items()] == [("vision", {"v100": 8}), ("nlp", {"v100": 4, "k80": 4})]
    engine = Engine(got, leader(config))
    again = engine_of(frame_of(engine), settings_of(engine), leader_of)
    assert again.settings == got, "and in a recording"
    assert load_config(write(MINIMAL)).virtual_clusters == {}


@pytest.mark.parametrize(
    ("told", "want"),
    [
        ("{vision: {v100: 0}}", "virtual_clusters.vision.v100: expected greater than or equal to 1, got 0"),
        ("{vision: {v100: 1.5}}", "virtual_clusters.vision.v100: expected a valid integer, got 1.5"),
        ("{vision: 8}", "virtual_clusters.vision: expected names and their values, as {NAME: …}, got 8"),
        ("[vision]", "virtual_clusters: expected names and their values"),
        ("{a b: {v100: 1}}", "virtual_clusters.a b: expected a name of letters, digits, _ . -, got 'a b'"),
        ("{a: {v100: 1}, a: {}}", "virtual_clusters.a: given twice; keep one"),
    ],
)
def test_virtual_clusters_that_are_wrong_are_told(write, told, want):
    assert f":4: {want}" in complaint(write(f"{MINIMAL}virtual_clusters: {told}\n"))


def test_the_checkpoint_directory_is_one_for_each_job(write):
    place = "/scratch/%u/gandiva/%j"
    config = load_config(write(MINIMAL + f"node: {{checkpoint_dir: '{place}'}}\n"))
    assert config.node.checkpoint_dir == place
    for wrong in ("/scratch/all", "scratch/%j", "/a b/%j"):
        assert "checkpoint_dir" in complaint(write(MINIMAL + f"node: {{checkpoint_dir: '{wrong}'}}\n"))


def test_node_addresses_override_name_and_port(write):
    config = load_config(write(MINIMAL + "node: {addresses: {n1: '10.99.0.1:7401'}}\n"))
    assert config.node_url("n1") == "http://10.99.0.1:7401"
    assert config.node_url("n2") == "http://n2:7322"


@pytest.mark.parametrize(
    ("extra", "want"),
    [
        ("quantum: 5\n", ":4: quantum: unknown key; allowed: cluster, partitions, quantum_s"),
        ("node: {sock: /x}\n", ":4: node.sock: unknown key; allowed: port, socket"),
        ("quantum_s: 0.1\n", ":4: quantum_s: expected greater than or equal to 0.2 (allowed: 0.2 .. 3600), "),
        ("quantum_s: 60s\n", "got '60s'"),
        ("slots_per_gpu: 2.5\n", "(allowed: 1 .. 64), got 2.5"),
        ("node: {refusal_bound_s: soon}\n", "(allowed: 0 .. 86400), got 'soon'"),
        ("node:\n  port: 70000\n", ":5: node.port: expected less than or equal to 65535"),
        ("node: {state_dir: here}\n", "node.state_dir: expected an absolute path, got 'here'"),
        ("node: {addresses: {n1: ten}}\n", "n1: expected host:port with a port of 1..65535, got 'ten'"),
        ("node: {addresses: {n1: 'ten:0'}}\n", "n1: expected host:port"),
        ("node: yes\n", "node: expected keys and values (port, socket"),
        ("cluster: other\n", ":4: cluster: given twice"),
        ("node: [\n", "not YAML"),
        ("node: " + "[" * 1000 + "]" * 1000 + "\n", "not YAML: maximum recursion depth exceeded"),
        ("policy: 2026-13-45\n", ":4: not YAML: cannot be read as 'timestamp'; write a plain value"),
        ("policy: x\nquantum_s: !!int x\n", ":5: not YAML: cannot be read as 'int'"),
        ("quantum_s: " + "9" * 5000, ":4: not YAML: cannot be read as 'int'"),
        ("a: 1\nb: *c\n", ":5: an alias"),
        ("a: &a [x, x]\nb: &b [*a, *a]\n", "an alias (*name) of another place"),
        ("node: {checkpoint_dir: '/ckpt'}\n", "expected an absolute path with %j or nothing"),
    ],
)
def test_mistake_is_named_with_line_and_what_is_allowed(write, extra, want):
    assert want in complaint(write(MINIMAL + extra))


def test_each_mistake_has_its_line(write):
    text = complaint(write("cluster: a b\npartitions: []\ncontroller: {}\n"))
    assert len(text.splitlines()) == 3
    assert "partitions: expected a list with at least one item" in text
    assert ":3: controller.host: missing" in text


@pytest.mark.parametrize("text", ["", "- a\n", "gandiva\n"])
def test_file_that_is_no_mapping_is_refused(write, text):
    assert "expected keys and values" in complaint(write(text))


def test_world_writable_file_is_refused(write):
    file = write(MINIMAL)
    file.chmod(0o666)
    assert "everybody may write it" in complaint(file)


def test_missing_binary_and_huge_files_are_refused(tmp_path, write):
    assert "No such file" in complaint(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in complaint(binary)
    assert "longer than" in complaint(write("#" * 2_000_000))


def test_search_order(tmp_path, monkeypatch):
    (tmp_path / "gandiva.yaml").write_text(MINIMAL)
    slurm = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert find_config(slurm) == tmp_path / "gandiva.yaml"
    assert find_config({**slurm, "GANDIVA_CONF": "/elsewhere.yaml"}) == Path("/elsewhere.yaml")
    monkeypatch.setattr("gandiva_slurm.config_file.DEFAULT_DIRECTORY", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="looked at"):
        find_config({})


def test_expand_knows_node_and_percent():
    assert expand("/run/%n/100%%.sock", "n1") == "/run/n1/100%.sock"


def test_unknown_slurm_user_is_named(write):
    config = load_config(write(MINIMAL.replace("host: ctl", "host: ctl, slurm_user: nobody-here")))
    with pytest.raises(ConfigError, match="no user 'nobody-here'"):
        config.slurm_uid()


def test_configuration_cannot_be_changed_in_flight(write):
    config = load_config(write(MINIMAL))
    assert isinstance(config, Config)
    with pytest.raises(ValueError):
        config.quantum_s = 3  # type: ignore[misc]
    assert os.path.isabs(config.controller.state_dir)
