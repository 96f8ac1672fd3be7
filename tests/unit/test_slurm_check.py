"""`gandiva check`: each misconfiguration is found, told where it is, and how to cure it."""

import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.config import Config
from gandiva_slurm.slurm import check_files, check_site, elf
from gandiva_slurm.slurm.check import run_checks
from gandiva_slurm.slurm.check_site import Site
from gandiva_slurm.slurm.commands import parse_config
from gandiva_slurm.slurm.finding import ERROR, WARNING, Finding

ROOT = Path(__file__).parents[2]
TAPE = ROOT / "tests/contract/assets/22.05/test_configuration_version_and_partitions"
CONFIG = Config.model_validate(
    {"cluster": "mini", "partitions": ["gandiva"], "slots_per_gpu": 4, "controller": {"host": "ctl"}}
)
SLOTS = {"n1": (("v100", 16),), "n2": (("v100", 16),), "p1": ()}
PARTITIONS = {
    "gandiva": {"Nodes": "n[1-2]", "OverSubscribe": "FORCE:8", "State": "UP"},
    "plain": {"Nodes": "p1", "OverSubscribe": "NO", "State": "UP"},
}


def site(
    config: Mapping[str, str] | None = None,
    partitions: Mapping[str, Mapping[str, str]] | None = None,
    **changes: Any,
) -> Site:
    """A site with no fault but those given: the recorded configuration, with process tracking by cgroup."""
    recorded = parse_config(next(TAPE.glob("*-scontrol.txt")).read_text())
    sound = {**recorded, "ProctrackType": "proctrack/cgroup"}
    parts = {
        name: {**PARTITIONS.get(name, {}), **(partitions or {}).get(name, {})}
        for name in (PARTITIONS | (partitions or {}))
    }
    settings = {"gres": SLOTS, "client_version": recorded["SLURM_VERSION"], "admin_level": "None"}
    return Site({**sound, **(config or {})}, parts, **(settings | changes))


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    assert finding.what and finding.where and finding.cure
    assert finding.text == f"{finding.where}: {finding.what}; {finding.cure}"
    return finding


def test_a_sound_site_has_no_fault() -> None:
    assert list(check_site.check(site(), CONFIG)) == []


@pytest.mark.parametrize(
    ("changes", "level", "where", "what"),
    [
        ({"SlurmUser": "root(0)"}, ERROR, "slurm.conf: SlurmUser", "runs as root"),
        ({"ClusterName": "big"}, ERROR, "gandiva.yaml: cluster", "ClusterName is big"),
        ({"GresTypes": ""}, ERROR, "slurm.conf: GresTypes", "gpu is not in it"),
        ({"JobSubmitPlugins": "all_partitions"}, ERROR, "slurm.conf: JobSubmitPlugins", "lua is not in it"),
        ({"SelectType": "select/linear"}, ERROR, "slurm.conf: SelectType", "select/linear"),
        (
            {"SelectTypeParameters": "CR_CORE"},
            ERROR,
            "slurm.conf: SelectTypeParameters",
            "memory is not counted",
        ),
        (
            {"DefMemPerCPU": "", "DefMemPerNode": "UNLIMITED"},
            ERROR,
            "slurm.conf: DefMemPerCPU",
            "whole node's",
        ),
        ({"PreemptMode": "GANG,SUSPEND"}, ERROR, "slurm.conf: PreemptMode", "GANG"),
        ({"SchedulerType": "sched/builtin"}, WARNING, "slurm.conf: SchedulerType", "blocks all behind it"),
        (
            {"AccountingStorageType": "accounting_storage/none"},
            WARNING,
            "AccountingStorageType",
            "same tickets",
        ),
        ({"AccountingStorageTRES": "cpu,mem"}, WARNING, "slurm.conf: AccountingStorageTRES", "gres/gpu"),
        ({"JobRequeue": "0"}, WARNING, "slurm.conf: JobRequeue", "not placed again"),
        ({"AuthInfo": "cred_expire=2"}, WARNING, "slurm.conf: AuthInfo", "cred_expire=2"),
        ({"AuthInfo": "cred_expire=soon"}, WARNING, "slurm.conf: AuthInfo", "cred_expire=soon"),
        ({"SchedulerParameters": "bf_interval=3"}, WARNING, "SchedulerParameters", "batch_sched_delay=3"),
        ({"ProctrackType": "proctrack/linuxproc"}, WARNING, "slurm.conf: ProctrackType", "linuxproc"),
        ({"ConstrainDevices": "yes"}, WARNING, "cgroup.conf: ConstrainDevices", "isolates nothing"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_slurm_conf(changes: dict[str, str], level: str, where: str, what: str) -> None:
    found = list(check_site.check(site(changes), CONFIG))
    if "SlurmUser" in changes:  # slurm is then no longer SlurmUser, which is a fault of its own
        found = found[:1]
    finding = only(found)
    assert finding.level == level
    assert where in finding.where and what in finding.what


@pytest.mark.parametrize(
    ("isolation", "timeout", "expire", "is_sound"),
    [("never", "30", 10, True), (320, "300", 120, True), (321, "300", 120, False), (211, "300", 10, False),
     (401, "300", 600, False), (90, "0", 10, True)],
)  # fmt: skip
def test_isolation_ends_before_slurm_gives_a_node_up(isolation, timeout, expire, is_sound) -> None:  # type: ignore[no-untyped-def]
    config = CONFIG.model_copy(update={"isolation": isolation})
    told = site({"SlurmdTimeout": f"{timeout} sec", "AuthInfo": f"cred_expire={expire}"})
    found = [finding.where for finding in check_site.check(told, config)]
    assert found == ([] if is_sound else ["gandiva.yaml: isolation"])


def test_our_user() -> None:
    root = CONFIG.model_copy(
        update={"controller": CONFIG.controller.model_copy(update={"slurm_user": "root"})}
    )
    assert "must not run as root" in only([*check_site.check(site(), root)]).what
    other = CONFIG.model_copy(
        update={"controller": CONFIG.controller.model_copy(update={"slurm_user": "gandiva"})}
    )
    assert "AdminLevel=Operator" in only([*check_site.check(site(), other)]).cure
    assert [*check_site.check(site(admin_level="Operator"), other)] == []


def test_versions() -> None:
    assert (
        "too old"
        in only(
            [*check_site.check(site({"SLURM_VERSION": "21.08.8"}, client_version="21.08.8"), CONFIG)]
        ).what
    )
    assert "install the same" in only([*check_site.check(site(client_version="24.11.5"), CONFIG)]).cure


@pytest.mark.parametrize(
    ("partitions", "level", "what"),
    [
        ({"gandiva": {"OverSubscribe": "NO"}}, ERROR, "OverSubscribe=NO"),
        ({"gandiva": {"OverSubscribe": "YES:4"}}, ERROR, "OverSubscribe=YES:4"),
        ({"gandiva": {"State": "DRAIN"}}, WARNING, "it is DRAIN"),
        ({"plain": {"Nodes": "n2,p1"}}, ERROR, "it shares n2 with the Gandiva partition gandiva"),
    ],
)
def test_partitions(partitions: dict[str, dict[str, str]], level: str, what: str) -> None:
    finding = only([*check_site.check(site(partitions=partitions), CONFIG)])
    assert finding.level == level and what in finding.what


def test_a_partition_slurm_does_not_have() -> None:
    config = CONFIG.model_copy(update={"partitions": ("gpu",)})
    finding = only([*check_site.check(site(), config)])
    assert finding.what == "Slurm has no partition gpu (it has gandiva, plain)"


@pytest.mark.parametrize(
    ("slots", "level", "what"),
    [
        ((("v100", 14),), ERROR, "14 slots are no multiple of slots_per_gpu=4"),
        ((), ERROR, "no gres/gpu"),
        ((("v100", 8), ("k80", 8)), ERROR, "several types (v100, k80)"),
        ((("", 16),), WARNING, "has no type"),
    ],
)
def test_slots(slots: tuple[tuple[str, int], ...], level: str, what: str) -> None:
    finding = only([*check_site.check(site(gres=SLOTS | {"n2": slots}), CONFIG)])
    assert (finding.level, finding.where) == (level, "slurm.conf: NodeName=n2")
    assert what in finding.what


PLUGIN_LINE = "optional {plugin} socket=/run/gandiva/%n.sock hook={hook}\n"
SCRIPT = """
local gandiva = dofile("{module}")
gandiva.configure {{ partitions = {{"gandiva"}}, nodes_gpus = {{v100 = 4}} }}
function slurm_job_submit(d, p, u) return gandiva.submit(d, p, u) end
function slurm_job_modify(d, r, p, u) return gandiva.modify(d, r, p, u) end
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A configuration directory with no fault, and a plugin for the recorded Slurm."""
    (tmp_path / "client/hook").mkdir(parents=True)
    (tmp_path / "wire").mkdir()
    (tmp_path / "wire/page.py").touch()
    (tmp_path / "gandiva.so").write_bytes(library((22 << 16) | (5 << 8) | 8))
    (tmp_path / "plugstack.conf.d").mkdir()
    (tmp_path / "plugstack.conf").write_text("# ours:\ninclude plugstack.conf.d/*.conf\n")
    write_line(tmp_path, PLUGIN_LINE)
    for name in (check_files.LUA_MODULE, *check_files.LUA_PARTS):
        (tmp_path / name).write_text("return {}\n")
    (tmp_path / "job_submit.lua").write_text(SCRIPT.format(module=tmp_path / check_files.LUA_MODULE))
    (tmp_path / "gres.conf").write_text("AutoDetect=off\n")
    return tmp_path


def write_line(directory: Path, line: str) -> None:
    text = line.format(plugin=directory / "gandiva.so", hook=directory / "client/hook")
    (directory / "plugstack.conf.d/gandiva.conf").write_text(text)


def library(version: int) -> bytes:
    """A file with just enough of a shared library: one symbol table with plugin_version."""
    names, rodata, symbols = b"\0plugin_version\0", struct.pack("<I", version), 24 * b"\0"
    symbols += struct.pack("<IBBHQQ", 1, 0x11, 0, 3, 0x2000, 4)
    parts = [(0, 0, b"", 0), (11, 0, symbols, 2), (3, 0, names, 0), (1, 0x2000, rodata, 0)]
    body, headers = b"", b""
    for kind, address, content, link in parts:
        headers += struct.pack(
            "<IIQQQQIIQQ", 0, kind, 0, address, 64 + len(body), len(content), link, 0, 0, 0
        )
        body += content
    start = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 4, 0)
    )
    return start + body + headers


def files(directory: Path, **changes: Any) -> list[Finding]:
    return list(check_files.check(site(changes.pop("config", None)), CONFIG, directory))


def test_sound_files_have_no_fault(directory: Path) -> None:
    assert files(directory) == []


@pytest.mark.parametrize(
    ("line", "level", "what"),
    [
        ("optional /usr/lib/pyxis.so\n", ERROR, "no line loads gandiva.so"),
        ("# optional {plugin} hook={hook}\n", ERROR, "no line loads gandiva.so"),
        ("required {plugin} hook={hook}\n", ERROR, "the plugin is required"),
        ("optional {plugin} hook={hook} sokcet=/x\n", ERROR, "unknown argument sokcet"),
        (
            "optional {plugin} hook={hook} socket=/run/other.sock\n",
            ERROR,
            "gandivad listens at /run/gandiva/%n.sock",
        ),
        ("optional {plugin} hook={hook} partitions=gandiva,gpu\n", ERROR, "partitions=gandiva,gpu"),
        ("optional {plugin}\n", WARNING, "no hook="),
        ("optional {plugin} hook={hook}/gone\n", WARNING, "is no directory"),
        ("optional {plugin} hook={hook}/..\n", WARNING, "jobs cannot import it"),
        ("optional {hook}/gandiva.so hook={hook}\n", ERROR, "No such file"),
    ],
)
def test_plugstack(directory: Path, line: str, level: str, what: str) -> None:
    write_line(directory, line)
    finding = only(files(directory))
    assert finding.level == level and what in finding.what


def test_a_plugstack_that_is_missing_or_includes_itself(directory: Path) -> None:
    (directory / "plugstack.conf.d/again.conf").write_text("include ../plugstack.conf\n")
    assert len([*check_files.plugin_lines(directory / "plugstack.conf")]) > 1
    (directory / "plugstack.conf").unlink()
    assert "no line loads" in only(files(directory)).what


def test_a_plugin_loaded_twice(directory: Path) -> None:
    write_line(directory, PLUGIN_LINE + PLUGIN_LINE)
    assert "loaded 2 times" in only(files(directory)).what


@pytest.mark.parametrize("part", check_files.LUA_PARTS)
def test_half_of_the_lua_files(directory: Path, part: str) -> None:
    (directory / part).unlink()
    finding = only(files(directory))
    assert finding.level == ERROR and part in finding.what


def test_all_lua_files_are_looked_for() -> None:
    shipped = {path.name for path in (Path(__file__).parents[2] / "slurm_conf").glob("gandiva_*.lua")}
    assert shipped == {check_files.LUA_MODULE, *check_files.LUA_PARTS}


def test_plugstack_elsewhere(directory: Path) -> None:
    elsewhere = directory / "elsewhere.conf"
    shutil.copy(directory / "plugstack.conf.d/gandiva.conf", elsewhere)
    (directory / "plugstack.conf").unlink()
    assert files(directory, config={"PlugStackConfig": str(elsewhere)}) == []


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"#!/bin/sh\n", "not a 64-bit ELF library"),
        (b"", "not a 64-bit ELF library"),
        (library(0x160508)[:200], "cut short or damaged"),
        (library(0x160508).replace(b"plugin_version", b"plugin_visions"), "no SPANK plugin"),
        (library((24 << 16) | (11 << 8) | 5), "was built for Slurm 24.11, but 22.05"),
    ],
    ids=["text", "empty", "cut", "other", "release"],
)
def test_plugin_file(directory: Path, content: bytes, what: str) -> None:
    (directory / "gandiva.so").write_bytes(content)
    finding = only(files(directory))
    assert finding.level == ERROR and what in finding.what


def test_any_cut_of_a_plugin_is_survived(tmp_path: Path) -> None:
    whole = library(0x160508)
    path = tmp_path / "gandiva.so"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(elf.NotALibrary):
            elf.plugin_release(path)
    path.write_bytes(whole)
    assert elf.plugin_release(path) == (22, 5)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("local gandiva = dofile", "-- local gandiva = dofile", "does not load"),
        ("local gandiva = dofile", "--[[ local gandiva = dofile", "does not load"),
        ("gandiva_job_submit.lua", "gone/gandiva_job_submit.lua", "does not exist"),
        ("gandiva.modify(d, r, p, u)", "0", "the module's modify is never called"),
        ('{"gandiva"}', '{"gpu"}', "configure has partitions gpu; gandiva.yaml has gandiva"),
        (
            "v100 = 4",
            "v100 = 8, k80 = 2",
            "configure has nodes_gpus k80 = 2, v100 = 8, but the nodes have v100 = 4",
        ),
    ],
)
def test_job_submit_lua(directory: Path, old: str, new: str, what: str) -> None:
    script = directory / "job_submit.lua"
    text = script.read_text()
    assert old in text
    script.write_text(text.replace(old, new))
    finding = only(files(directory))
    assert finding.level == ERROR and what in finding.what


def test_job_submit_lua_that_is_missing(directory: Path) -> None:
    (directory / "job_submit.lua").unlink()
    assert "cannot be read" in only(files(directory)).what
    # Without lua in JobSubmitPlugins that is the fault to tell, and the script is not looked at.
    assert files(directory, config={"JobSubmitPlugins": ""}) == []


def test_gres_conf(directory: Path) -> None:
    (directory / "gres.conf").write_text("# AutoDetect=nvml\nNodeName=n1 autodetect=nvml\n")
    finding = only(files(directory))
    assert finding.where.endswith("gres.conf:2") and "AutoDetect=nvml" in finding.what


def test_a_host_without_slurms_files(tmp_path: Path) -> None:
    assert only(files(tmp_path / "gone")).where == "this host"


async def test_slurm_that_does_not_answer_is_the_one_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = only((await run_checks(CONFIG)).findings)
    assert (finding.level, finding.where) == (ERROR, "slurmctld")
