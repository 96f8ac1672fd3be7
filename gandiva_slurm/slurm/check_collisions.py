"""Rules of `gandiva check` on what else a site runs on its GPUs, and would collide with slices."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

from gandiva_slurm.config import Config
from gandiva_slurm.model.errors import SlurmUnreachable
from gandiva_slurm.slurm.check_site import Site
from gandiva_slurm.slurm.finding import Finding, error, warning
from gandiva_slurm.slurm.jobs import node_names

#: Scripts that Slurm runs around a job on its node.
SCRIPTS = ("Prolog", "Epilog", "TaskProlog", "TaskEpilog")
#: What is read of a script at most, in bytes, and how many scripts.
_MOST_BYTES, _MOST_SCRIPTS = 1 << 18, 64
#: What a script has in it that tells which job a GPU was given: the tool, its key of gandiva.yaml.
WRITERS = {
    r"gpustat": ("jobstats' GPU exporters", "gpustat_dir"),
    r"DCGM_HPC_JOB_MAPPING_DIR|hpc-job-mapping|dcgm-job-map": ("dcgm-exporter", "dcgm_mapping_dir"),
}
#: Where job_container/tmpfs gives each job directories of its own, unless Dirs= says otherwise.
_PRIVATE = ("/tmp", "/dev/shm")


def check(site: Site, config: Config, directory: Path) -> Iterator[Finding]:
    """Yield every collision that Slurm's configuration and its files on this host show."""
    for path in scripts(site):
        yield from _writers(config, path)
    yield from _gres_conf(site, config, directory / "gres.conf")
    yield from _containers(site, config, directory / "job_container.conf")


def scripts(site: Site) -> list[Path]:
    """Return the prologs and epilogs that lie on this host; Slurm takes patterns and, of late, lists."""
    found: list[Path] = []
    for key, value in sorted(site.config.items()):
        if key.partition("[")[0] in SCRIPTS:
            for pattern in value.split(","):
                found += map(Path, sorted(glob.glob(pattern.strip())) if pattern.startswith("/") else ())
    return [path for path in dict.fromkeys(found) if path.is_file()][:_MOST_SCRIPTS]


def _writers(config: Config, path: Path) -> Iterator[Finding]:
    text = re.sub(r"(?m)^\s*#.*$", "", _read(path))
    for pattern, (tool, key) in WRITERS.items():
        if not re.search(pattern, text):
            continue
        what = f"it tells {tool} which job a GPU was given: of jobs in turns on a GPU, the last that started"
        cure = f"leave Gandiva's nodes out there, and set node.{key} in gandiva.yaml"
        if getattr(config.node, key):
            what = f"it writes what gandivad writes, too (node.{key}), with the slots' numbers"
            cure = "leave Gandiva's nodes out there"
        yield warning(str(path), what, cure)


def _gres_conf(site: Site, config: Config, path: Path) -> Iterator[Finding]:
    ours = {node for name in config.partitions if name in site.partitions for node in site.nodes_of(name)}
    for number, line in enumerate(_read(path).splitlines(), start=1):
        words = dict(re.findall(r"(?i)\b(\w+)\s*=\s*(\S+)", line.partition("#")[0]))
        keys = {key.lower(): value for key, value in words.items()}
        nodes = keys.get("nodename")
        if not keys or (nodes is not None and not ours.intersection(_nodes(nodes))):
            continue
        where = f"{path}:{number}"
        if keys.get("name", "").lower() in ("mps", "shard"):
            what = f"Name={keys['name']}: a job that asks for it is given a GPU that others hold in turns"
            yield error(where, what, "leave Gandiva's nodes out: what fits together shares a GPU by packing:")
        if "multiplefiles" in keys:
            what = "MultipleFiles is of MIG: Gandiva binds whole GPUs, as NVML numbers them"
            yield error(where, what, "switch MIG off on Gandiva's nodes, or leave them out of its partitions")


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return node_names(text)
    except SlurmUnreachable:
        return ()


def _containers(site: Site, config: Config, path: Path) -> Iterator[Finding]:
    if "tmpfs" not in site.config.get("JobContainerType", ""):
        return
    lists = re.findall(r"(?i)\bDirs\s*=\s*(\S+)", re.sub(r"(?m)#.*$", "", _read(path)))
    private = [word for words in lists for word in words.split(",") if word] or _PRIVATE
    socket = Path(config.node.socket)
    hidden = next((name for name in private if Path(name) in socket.parents), None)
    if hidden is not None:
        what = f"{socket} lies in {hidden}, of which each job has its own (JobContainerType)"
        yield error("gandiva.yaml: node.socket", what, "name a path elsewhere: no job reaches gandivad there")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
