"""Write the configuration files of a mini cluster, from the templates in container/mini and slurm_conf."""

import os
import re
import secrets
from pathlib import Path
from string import Template
from typing import Any

import yaml

from gandiva_slurm.mini import layout, own_gpus
from gandiva_slurm.mini.layout import CLONE, Layout
from gandiva_slurm.mini.site import Site
from gandiva_slurm.mini.spec import PLAIN_NODE, SLOTS_PER_GPU, MiniSpec
from gandiva_slurm.model.errors import GandivaError

SLOT_DIR = "/etc/slurm/gandiva-slots"
CPUS_PER_NODE = 32
MEMORY_PER_NODE_MIB = 65536
#: Fake GPUs have no memory; so much is said of each.
GPU_MEMORY_MIB = 16384
#: What a policy takes a move for, seconds: light trainings are saved and started again within two or three.
POLICY_MOVE_S = 1
#: cgroup.conf by `--cgroups`. Fake nodes say they have more processors than there are: cores are not
#: constrained; nor is memory where version 2 has no controller for it, as beside version 1.
CGROUP_CONF = {
    "hybrid": "CgroupPlugin=cgroup/v1\nConstrainDevices=no\nConstrainCores=no\nConstrainRAMSpace=yes\n",
    "v2": "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nConstrainDevices=no\nConstrainCores=no\n"
          "ConstrainRAMSpace=no\n",
}
#: Put before the last line of the site's script: where a job's files go is looked at first.
LUA_PATHS = """\
local paths, submit = dofile("/etc/slurm/paths.lua"), slurm_job_submit
function slurm_job_submit(job_desc, part_list, submit_uid)
    pcall(paths.tell, job_desc)
    return submit(job_desc, part_list, submit_uid)
end

"""
LUA_MODULE = "gandiva_job_submit.lua"
#: Stands in for the Lua module in a clone that has none: ordinary jobs pass, Gandiva's flags do nothing.
LUA_STUB = """\
local M = {}
function M.configure(_) end
function M.submit(_, _, _) return slurm.SUCCESS end
function M.modify(_, _, _, _) return slurm.SUCCESS end
return M
"""


def write_all(spec: MiniSpec, site: Site) -> None:
    """Make the cluster's directory complete; nothing runs yet."""
    at = site.at
    for path in (at.root, at.etc, at.log, at.pid, at.spool, at.root / "host", at.root / "lib"):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)
    _write_slurm(spec, site)
    _write_lua(spec, at)
    _write_plugstack(site)
    write(at.etc / "gandiva.yaml", yaml.safe_dump(gandiva_yaml(spec, site), sort_keys=False))
    _write_key(site)
    _make_spool(site)


def gandiva_yaml(spec: MiniSpec, site: Site) -> dict[str, Any]:
    """gandiva.yaml with short deadlines, as a value."""
    at = site.at
    addresses = {node.name: f"{site.nodes[node.name].ip}:{site.nodes[node.name].gandivad_port}"
                 for node in spec.nodes}
    return {
        "cluster": "mini",
        "partitions": ["gandiva"],
        "quantum_s": spec.quantum_s,
        "slots_per_gpu": SLOTS_PER_GPU,
        "controller": {
            "host": site.controller.ip, "port": layout.CONTROLLER_PORT,
            "state_dir": f"{at.spool}/gandivactld", "cycle_s": 0.5,
            "start_deadline_s": 15, "silent_after_s": 5, "slurm_user": "slurm",
        },
        "node": {
            "port": layout.FIRST_GANDIVAD_PORT, "socket": "/run/gandiva/%n.sock",
            "state_dir": f"{at.spool}/gandivad/%n",
            "client_wait_s": spec.client_wait_s, "park_deadline_s": 10,
            "max_park_s": 600, "freeze_bound_s": 300, "wake_grace_s": 60, "addresses": addresses,
            # Of real GPUs NVML tells, and those of others are closed to a job.
            "gpu_memory_mib": 0 if spec.real_gpus else GPU_MEMORY_MIB,
            "gpu_files": "auto" if spec.real_gpus else "none",
            **({"process_images": True, "image_dir": f"{at.root}/images"} if spec.process_images else {}),
        },
        "packing": {"enabled": spec.packing},
        # Policies weigh moves by their cost, which is little here.
        # As long as SlurmdTimeout there.
        "isolation": 15, "policy": spec.policy, "moves": {"cost_s": POLICY_MOVE_S},
    }


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file and what leads to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _fill(name: str, **words: object) -> str:
    return Template((CLONE / "container" / "mini" / name).read_text()).substitute(words)


def _node_lines(spec: MiniSpec, site: Site) -> str:
    lines = []
    for node in spec.all_nodes:
        gres = f" Gres=gpu:{node.gpu_type}:{node.slots}" if node.gpus else ""
        place = site.nodes[node.name]
        lines.append(f"NodeName={node.name} NodeHostname={place.host} NodeAddr={place.ip} "
                     f"Port={place.slurmd_port} CPUs={CPUS_PER_NODE} "
                     f"RealMemory={MEMORY_PER_NODE_MIB}{gres} State=UNKNOWN")
    return "\n".join(lines)


def _write_slurm(spec: MiniSpec, site: Site) -> None:
    at = site.at
    words = {
        "root": at.root, "slurmd_spool": site.slurmd_spool, "slurmctld_port": layout.SLURMCTLD_PORT,
        "controller": site.controller.host, "controller_ip": site.controller.ip,
        "database": site.database.host, "database_ip": site.database.ip,
        "slurmdbd_port": layout.SLURMDBD_PORT, "nodes": _node_lines(spec, site), "plain_node": PLAIN_NODE,
        "gpu_nodes": ",".join(node.name for node in spec.nodes),
        "proctrack": "proctrack/cgroup" if spec.cgroups else "proctrack/linuxproc",
        "task": "task/cgroup" if spec.cgroups else "task/none",
    }
    write(at.etc / "slurm.conf", _fill("slurm.conf", **words))
    write(at.etc / "slurmdbd.conf", _fill("slurmdbd.conf", **words), 0o600)
    os.chown(at.etc / "slurmdbd.conf", *site.owners["slurm"])
    write(at.etc / "my.cnf", _fill("my.cnf"))
    write(at.etc / "slurm.conf.d/gandiva.conf", (CLONE / "slurm_conf/slurm.conf.d/gandiva.conf").read_text())
    write(at.etc / "cgroup.conf", CGROUP_CONF.get(spec.cgroups, f"CgroupPlugin={site.cgroup_plugin}\n"))
    gres = [f"NodeName={node.name} Name=gpu Type={node.gpu_type} File={SLOT_DIR}/slot[0-{node.slots - 1}]"
            for node in spec.nodes]
    write(at.etc / "gres.conf", (CLONE / "slurm_conf/gres.conf").read_text() + "\n".join(gres) + "\n")
    (at.etc / "gandiva-slots").mkdir()
    slots = max(node.slots for node in spec.nodes)
    for slot, file in enumerate(own_gpus.slot_files() if spec.real_gpus else ["/dev/null"] * slots):
        (at.etc / f"gandiva-slots/slot{slot}").symlink_to(file)


def cgroup_plugin(version: str) -> str:
    """The plugin that touches no cgroup while nothing asks it to; Slurm before 23.11 has no `disabled`."""
    found = re.search(r"(\d+)\.(\d+)", version)
    new = found is not None and (int(found[1]), int(found[2])) >= (23, 11)
    return "disabled" if new else "cgroup/v1"


def _write_lua(spec: MiniSpec, at: Layout) -> None:
    write(at.etc / LUA_MODULE, LUA_STUB)
    for module in (CLONE / "slurm_conf").glob("gandiva_*.lua"):
        write(at.etc / module.name, module.read_text())
    gpus = ", ".join(f"{kind} = {count}" for kind, count in spec.gpus_by_type.items())
    script = (CLONE / "slurm_conf/job_submit.lua").read_text()
    script, count = re.subn(r"nodes_gpus = \{.*\}", f"nodes_gpus = {{{gpus}}}", script)
    if count != 1:
        raise GandivaError(f"{CLONE / 'slurm_conf/job_submit.lua'}: no line nodes_gpus; restore it")
    head, last, _ = script.rpartition("return slurm.SUCCESS")
    write(at.etc / "job_submit.lua", head + LUA_PATHS + last + "\n")
    write(at.etc / "paths.lua", (CLONE / "container/mini/paths.lua").read_text())


def _write_plugstack(site: Site) -> None:
    etc = site.at.etc
    write(etc / "plugstack.conf", "include /etc/slurm/plugstack.conf.d/*.conf\n")
    text = (CLONE / "slurm_conf/plugstack.conf.d/gandiva.conf").read_text()
    text = text.replace("/usr/lib/gandiva/gandiva.so", site.plugin)
    text = text.replace("/usr/lib/gandiva/client/hook", site.hook)
    write(etc / "plugstack.conf.d/gandiva.conf", text)


def _write_key(site: Site) -> None:
    key = site.at.root / "munge.key"
    fd = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o400)
    with os.fdopen(fd, "wb") as file:
        file.write(secrets.token_bytes(1024))
    os.chown(key, *site.owners["munge"])


def _make_spool(site: Site) -> None:
    """State directories, each owned by the account of its daemon."""
    at, slurm = site.at, site.owners["slurm"]
    for name in ("slurmctld", "gandivactld"):
        (at.spool / name).mkdir(exist_ok=True)
        os.chown(at.spool / name, *slurm)
        (at.spool / name).chmod(0o700)
    (at.spool / "gandivad").mkdir(exist_ok=True)
    for name in ("slurmctld.log", "slurmdbd.log"):
        write(at.log / name, "")
        os.chown(at.log / name, *slurm)
