"""The small parts of mini: node lists, mounts, and that the templates for administrators stay true."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gandiva_slurm import config
from gandiva_slurm.mini import conffiles, docker, mounts, probe, trees
from gandiva_slurm.mini.layout import CLONE, Layout
from gandiva_slurm.mini.spec import POLICY_VARIABLE, MiniSpec, parse_nodes
from gandiva_slurm.model.errors import UsageError


def test_parse_nodes_numbers_nodes_in_order() -> None:
    nodes = parse_nodes("v100:2x4, k80:1x2")
    assert [(n.name, n.gpu_type, n.gpus, n.slots) for n in nodes] == [
        ("n1", "v100", 4, 16), ("n2", "v100", 4, 16), ("n3", "k80", 2, 8)]


@pytest.mark.parametrize("text", ["", "v100", "a:0x4", "a:2x", "a:2x99", "V100:1x4", "a:1x4,,", "a:40x1"])
def test_parse_nodes_refuses_with_the_form_it_takes(text: str) -> None:
    with pytest.raises(UsageError, match=r"--nodes: .*(for example|at most)"):
        parse_nodes(text)


@pytest.mark.parametrize("bad", [{"name": "../x"}, {"name": ""}, {"quantum_s": 0.1}, {"quantum_s": 1e9}])
def test_spec_refuses_bad_values(bad: dict) -> None:
    with pytest.raises(UsageError):
        MiniSpec(**bad)


def test_the_policy_is_that_of_the_environment_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLICY_VARIABLE, "tiresias")
    assert MiniSpec().policy == "tiresias" and MiniSpec(policy="fifo").policy == "fifo"
    monkeypatch.setenv(POLICY_VARIABLE, "fastest")
    with pytest.raises(UsageError, match="fastest"):
        MiniSpec()
    monkeypatch.delenv(POLICY_VARIABLE)
    assert MiniSpec().policy == "gandiva_fair"


def test_covers_stop_at_the_first_closed_directory() -> None:
    closed = {Path("/srv/lab"), Path("/srv/lab/me")}.__contains__
    covers = mounts.covers_for([Path("/srv/lab/me/clone"), Path("/root/clone"), Path("/opt/python")], closed)
    assert set(covers) - set(mounts.COVERS) == {"/srv/lab"}


def test_to_open_lists_what_others_cannot_read(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "open").mkdir(parents=True)
    (tree / ".git").mkdir()
    (tree / ".hypothesis").mkdir()
    for name, mode in {"open/a": 0o644, "open/b": 0o600, "open/run": 0o700, ".git/secret": 0o600,
                       ".hypothesis/seen": 0o600}.items():
        (tree / name).write_text("")
        (tree / name).chmod(mode)
    os.symlink("nowhere", tree / "open/link")
    tree.chmod(0o700)
    assert sorted(trees.to_open(tree)) == [(".", 0o705), ("open/b", 0o604), ("open/run", 0o705)]


def test_yaml_of_mini_and_template_are_accepted(tmp_path: Path) -> None:
    file, spec = tmp_path / "gandiva.yaml", MiniSpec(backend="docker:forky")
    site = docker.site_of(spec, Layout.of("x"), "10.99.9")
    file.write_text(yaml.safe_dump(conffiles.gandiva_yaml(spec, site)))
    assert config.load_config(file).quantum_s == 1.0
    assert config.load_config(CLONE / "slurm_conf/gandiva.yaml").partitions == ("gandiva",)


def test_yaml_template_shows_every_key_with_its_default() -> None:
    path = CLONE / "slurm_conf/gandiva.yaml"
    shown, read = yaml.safe_load(path.read_text()), config.load_config(path)
    for section, model in [(shown, read), (shown["controller"], read.controller),
                           (shown["node"], read.node), (shown["slurm"], read.slurm)]:
        fields = type(model).model_fields
        assert set(section) == set(fields)
        for key, field in fields.items():
            if not field.is_required() and key not in ("node", "slurm"):
                assert getattr(model, key) == field.get_default(call_default_factory=True), key


@pytest.mark.parametrize("unit", ["gandivactld.service", "gandivad.service"])
def test_units_start_what_the_package_installs(unit: str) -> None:
    text = (CLONE / "slurm_conf/systemd" / unit).read_text()
    programs = {Path(word).name for word in re.findall(r"^ExecSt(?:art|op)=(\S+)", text, re.M)}
    assert programs == {unit.removesuffix(".service")}
    assert programs <= set(re.findall(r"^(\w+) = ", (CLONE / "pyproject.toml").read_text(), re.M))


def test_sites_lua_script_is_filled_with_the_nodes(tmp_path: Path) -> None:
    at = Layout(tmp_path)
    conffiles._write_lua(MiniSpec(nodes=parse_nodes("v100:1x4,k80:1x2,v100:1x8")), at)
    assert "nodes_gpus = {v100 = 8, k80 = 2}," in (at.etc / "job_submit.lua").read_text()
    shipped = {path.name for path in (CLONE / "slurm_conf").glob("gandiva_*.lua")}
    assert {path.name for path in at.etc.iterdir()} == shipped | {"job_submit.lua", "paths.lua"}


#: In a mount namespace of its own, as init does it: a file bound over one in a directory of the host's.
INSIDE = """
import os, sys
from gandiva_slurm.mini import init
place, ours = sys.argv[1:]
init.mount("tmpfs", "/run", "tmpfs", 0)
os.mkdir(init.OVERLAYS)
init.own_copy(place)
handle = os.open(ours, os.O_PATH)
init.bind(handle, place + "/passwd")
print("bound", flush=True)
sys.stdin.readline()
print(open(place + "/passwd").read(), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces and mounts")
def test_a_file_of_the_clusters_own_stays_when_the_host_replaces_its_one(tmp_path: Path) -> None:
    """As useradd replaces /etc/passwd, or a package that is installed."""
    place, ours = tmp_path / "etc", tmp_path / "ours"
    place.mkdir()
    (place / "passwd").write_text("the host's")
    ours.write_text("the cluster's")
    words = ["unshare", "-m", sys.executable, "-c", INSIDE, str(place), str(ours)]
    inside = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert inside.stdin and inside.stdout and inside.stdout.readline() == "bound\n"
    (place / "new").write_text("the host's next")
    (place / "new").rename(place / "passwd")
    assert inside.communicate("\n")[0] == "the cluster's\n"


def test_a_socket_is_open_once_it_listens(tmp_path: Path) -> None:
    """Not from the moment on in which its file is there: MariaDB refused a first client, once."""
    path = tmp_path / "a socket"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        assert path.is_socket() and not probe.is_open(os.getpid(), str(path))
        door.listen()
        assert probe.is_open(os.getpid(), str(path)) and not probe.is_open(os.getpid(), str(tmp_path))
    assert not probe.is_open(os.getpid(), str(path))


def test_a_file_that_goes_while_a_tree_is_looked_at_is_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program compiles there: Python's temporary files get their names when they are whole."""
    (tmp_path / "gone.pyc.140").write_text("")
    (tmp_path / "stays").write_text("")
    (tmp_path / "stays").chmod(0o600)
    note = trees._note

    def late(found: list[tuple[str, int]], entry: os.DirEntry[str] | Path, name: str) -> None:
        if name == "gone.pyc.140":
            (tmp_path / name).unlink()
        note(found, entry, name)

    monkeypatch.setattr(trees, "_note", late)
    assert ("stays", 0o604) in trees.to_open(tmp_path)
    assert not (tmp_path / "gone.pyc.140").exists()


def test_a_process_has_ended_when_its_last_thread_has() -> None:
    with subprocess.Popen(["sleep", "60"]) as call:
        ticks = probe.start_ticks(call.pid)
        assert not probe.has_ended(call.pid, ticks) and probe.has_ended(call.pid, (ticks or 0) - 1)
        call.kill()
        probe.wait_until(lambda: probe.has_ended(call.pid, ticks), "it to end", 30)
