"""Rules of `gandiva check` on the files beside slurm.conf: plugstack.conf, job_submit.lua, gres.conf."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.config import Config
from gandiva_slurm.slurm import elf
from gandiva_slurm.slurm.check_site import Site
from gandiva_slurm.slurm.finding import Finding, error, warning

PLUGIN = "gandiva.so"
LUA_MODULE = "gandiva_job_submit.lua"
#: What the module loads from beside it.
LUA_PARTS = ("gandiva_request.lua", "gandiva_gpus.lua", "gandiva_words.lua")
#: Arguments the plugin takes; with any other it disables itself.
PLUGIN_KEYS = ("socket", "hook", "partitions", "unbound")
#: Deepest nesting of include lines that is followed.
MAX_INCLUDES = 8


@dataclass(frozen=True)
class PluginLine:
    """One line of plugstack.conf: required or optional, the file, its arguments, and where it stands."""

    need: str
    path: str
    arguments: Mapping[str, str]
    where: str


def check(site: Site, config: Config, directory: Path) -> Iterator[Finding]:
    """Yield every fault of the files in Slurm's configuration directory."""
    if not directory.is_dir():
        what = f"{directory} is not on this host"
        yield warning(
            "this host", what, "run gandiva check where slurmctld runs, to have its files checked too"
        )
        return
    yield from _plugstack(
        site, config, Path(site.config.get("PlugStackConfig") or directory / "plugstack.conf")
    )
    if "lua" in site.words("JobSubmitPlugins"):
        yield from _lua(site, config, directory)
    yield from _gres(directory / "gres.conf")


def _plugstack(site: Site, config: Config, path: Path) -> Iterator[Finding]:
    lines = [line for line in plugin_lines(path) if Path(line.path).name == PLUGIN]
    if not lines:
        what = f"no line loads {PLUGIN}: sbatch knows no --gandiva flags"
        yield error(str(path), what, f"add: optional /usr/lib/gandiva/{PLUGIN} socket={config.node.socket}")
    if len(lines) > 1:
        what = f"the plugin is loaded {len(lines)} times ({', '.join(line.where for line in lines)})"
        yield error(str(path), what, "keep one of the lines")
    for line in lines:
        yield from _plugin_line(config, line)
        yield from _plugin_file(site, line)


def _plugin_line(config: Config, line: PluginLine) -> Iterator[Finding]:
    if line.need != "optional":
        what = f"the plugin is {line.need}: without its file every sbatch fails and nodes are drained"
        yield error(line.where, what, "write optional")
    unknown = sorted(set(line.arguments) - set(PLUGIN_KEYS))
    if unknown:
        what = f"unknown argument {', '.join(unknown)}: the plugin disables itself"
        yield error(line.where, what, f"it takes {', '.join(PLUGIN_KEYS)}")
    socket = line.arguments.get("socket", config.node.socket)
    if socket != config.node.socket:
        what = f"socket={socket}, but gandivad listens at {config.node.socket} (gandiva.yaml: node.socket)"
        yield error(line.where, what, "make them equal")
    partitions = line.arguments.get("partitions")
    if partitions is not None and set(partitions.split(",")) != set(config.partitions):
        what = f"partitions={partitions}, but gandiva.yaml has {','.join(config.partitions)}"
        yield error(line.where, what, "make them equal")
    hook = line.arguments.get("hook")
    if hook is None:
        what = "no hook=: scripts without a gandiva line are frozen whole instead of parked"
        yield warning(line.where, what, "add hook= with the directory client/hook of the package")
    elif not Path(hook).is_dir():
        what = f"hook={hook} is no directory on this host"
        yield warning(line.where, what, "install the package's client/hook there, on every node")
    elif not (Path(hook).parent.parent / "wire/page.py").is_file():
        what = f"the package is not in {Path(hook).parent.parent}, above hook={hook}: jobs cannot import it"
        yield warning(line.where, what, "copy its __init__.py, client and wire there (no link)")


def _plugin_file(site: Site, line: PluginLine) -> Iterator[Finding]:
    cure = "build it (make -C spank) on this Slurm, copy it beside and rename it"
    try:
        release = elf.plugin_release(Path(line.path))
    except OSError as err:
        yield error(line.where, f"{line.path}: {err.strerror}", cure)
        return
    except elf.NotALibrary as err:
        yield error(line.where, f"{line.path}: {err}; a file cut short kills every sbatch", cure)
        return
    ours = "{}.{:02}".format(*release)
    running = site.config.get("SLURM_VERSION", "")
    if not running.startswith(ours + "."):
        what = f"{line.path} was built for Slurm {ours}, but {running} runs: Slurm does not load it"
        yield error(line.where, what, cure)


def plugin_lines(path: Path, depth: int = 0) -> Iterator[PluginLine]:
    """Yield the plugin lines of plugstack.conf and of the files it includes; a missing file has none."""
    for number, line in enumerate(_read(path).splitlines(), start=1):
        words = _split(line.partition("#")[0])
        if len(words) >= 2 and words[0].lower() == "include" and depth < MAX_INCLUDES:
            for name in sorted(glob.glob(str(path.parent / words[1]))):
                yield from plugin_lines(Path(name), depth + 1)
        elif len(words) >= 2 and words[0].lower() in ("required", "optional"):
            pairs = (word.partition("=") for word in words[2:])
            arguments = {key: value for key, _, value in pairs}
            yield PluginLine(words[0].lower(), words[1], arguments, f"{path}:{number}")


def _lua(site: Site, config: Config, directory: Path) -> Iterator[Finding]:
    script = directory / "job_submit.lua"
    text = re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", _read(script), flags=re.DOTALL)
    module = next(
        (name for name in re.findall(r"""["']([^"']+)["']""", text) if name.endswith(LUA_MODULE)), None
    )
    if module is None:
        what = f"it does not load {LUA_MODULE}" if text else "it cannot be read"
        cure = f'add: local gandiva = dofile("{directory / LUA_MODULE}"), and call it (slurm_conf/README.md)'
        yield error(str(script), what, cure)
        return
    if not Path(directory / module).exists():
        what = f"{module} does not exist: jobs for Gandiva are not held"
        yield error(str(script), what, f"install slurm_conf/{LUA_MODULE} there")
    else:
        for part in LUA_PARTS:
            if not Path(directory / module).with_name(part).exists():
                what = f"{part} does not lie beside {module}: jobs for Gandiva are refused"
                yield error(str(script), what, f"install slurm_conf/{part} there")
    for function in ("submit", "modify"):
        if not re.search(rf"\.{function}\s*\(", text):
            what = f"the module's {function} is never called"
            yield error(str(script), what, f"call it from slurm_job_{function} (slurm_conf/README.md)")
    yield from _lua_settings(site, config, script, text)


def _lua_settings(site: Site, config: Config, script: Path, text: str) -> Iterator[Finding]:
    """Compare what configure is told with gandiva.yaml and Slurm; only what is written as plain values."""
    partitions = _lua_table(text, "partitions")
    names = re.findall(r"""["']([^"']*)["']""", partitions or "")
    if partitions is not None and set(names) != set(config.partitions):
        what = f"configure has partitions {', '.join(names)}; gandiva.yaml has {', '.join(config.partitions)}"
        yield error(str(script), what, "make them equal")
    told = {
        name: int(count)
        for name, count in re.findall(r"(\w+)\s*=\s*(\d+)", _lua_table(text, "nodes_gpus") or "")
    }
    real = gpus_by_type(site, config)
    if told and real and told != real:
        what = f"configure has nodes_gpus {_counts(told)}, but the nodes have {_counts(real)}"
        yield error(
            str(script), what, "the most GPUs of one node, by type, as slots divided by slots_per_gpu"
        )


def gpus_by_type(site: Site, config: Config) -> dict[str, int]:
    """Return the most GPUs one node of our partitions has, by type."""
    most: dict[str, int] = {}
    for name in config.partitions:
        for node in site.nodes_of(name) if name in site.partitions else ():
            for kind, slots in site.gres.get(node, ()):
                most[kind] = max(most.get(kind, 0), slots // config.slots_per_gpu)
    return most


def _lua_table(text: str, name: str) -> str | None:
    match = re.search(rf"\b{name}\s*=\s*\{{([^{{}}]*)\}}", text)
    return match[1] if match else None


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {count}" for name, count in sorted(counts.items()))


def _gres(path: Path) -> Iterator[Finding]:
    for number, line in enumerate(_read(path).splitlines(), start=1):
        match = re.search(r"\bAutoDetect\s*=\s*(\w+)", line.partition("#")[0], re.IGNORECASE)
        if match and match[1].lower() != "off":
            what = f"AutoDetect={match[1]} counts cards, but Gandiva's nodes have slots: they would go INVAL"
            yield warning(f"{path}:{number}", what, "AutoDetect=off on the lines of Gandiva's nodes")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
