"""Write the configuration files of a mini cluster, from the templates in container/mini and slurm_conf."""

import json
import os
import pwd
import re
import secrets
import shutil
import subprocess
from pathlib import Path
from string import Template
from typing import Any

import yaml

from gandiva_slurm.mini import layout, mounts
from gandiva_slurm.mini.layout import CLONE, Layout
from gandiva_slurm.mini.spec import PLAIN_NODE, SLOTS_PER_GPU, USERS, MiniSpec
from gandiva_slurm.model.errors import GandivaError

SLOT_DIR = "/etc/slurm/gandiva-slots"
CPUS_PER_NODE = 32
MEMORY_PER_NODE_MIB = 65536
LUA_MODULE = "gandiva_job_submit.lua"
#: Stands in for the Lua module in a clone that has none: ordinary jobs pass, Gandiva's flags do nothing.
LUA_STUB = """\
local M = {}
function M.configure(_) end
function M.submit(_, _, _) return slurm.SUCCESS end
function M.modify(_, _, _, _) return slurm.SUCCESS end
return M
"""


def write_all(spec: MiniSpec, at: Layout) -> None:
    """Make the cluster's directory complete; nothing runs yet."""
    for path in (at.root, at.etc, at.log, at.pid, at.spool, at.root / "host", at.root / "lib"):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)
    _write_slurm(spec, at)
    _write_lua(spec, at)
    _write_plugstack(at)
    _write(at.etc / "gandiva.yaml", yaml.safe_dump(gandiva_yaml(spec, at), sort_keys=False))
    _write_host_files(at)
    _write_key(at)
    _make_spool(spec, at)
    plan = mounts.plan(at.root, *layout.python_trees())
    plan |= {"directories": run_directories(), "hostname": layout.HOSTNAME, "address": layout.ADDRESS}
    _write(at.root / "init.json", json.dumps(plan, indent=1))


def gandiva_yaml(spec: MiniSpec, at: Layout) -> dict[str, Any]:
    """gandiva.yaml with short deadlines, as a value."""
    addresses = {node.name: f"{layout.ADDRESS}:{layout.FIRST_GANDIVAD_PORT + i}"
                 for i, node in enumerate(spec.nodes)}
    return {
        "cluster": "mini",
        "partitions": ["gandiva"],
        "quantum_s": spec.quantum_s,
        "slots_per_gpu": SLOTS_PER_GPU,
        "controller": {
            "host": layout.ADDRESS, "port": layout.CONTROLLER_PORT,
            "state_dir": f"{at.spool}/gandivactld", "cycle_s": 0.5,
            "start_deadline_s": 15, "slurm_user": "slurm",
        },
        "node": {
            "port": layout.FIRST_GANDIVAD_PORT, "socket": "/run/gandiva/%n.sock",
            "state_dir": f"{at.spool}/gandivad/%n", "client_wait_s": 30, "park_deadline_s": 10,
            "max_park_s": 600, "freeze_bound_s": 300, "wake_grace_s": 60, "addresses": addresses,
        },
    }


def run_directories() -> list[tuple[str, int, int, int]]:
    """(path, mode, uid, gid) of what daemons and users expect below the private covers."""
    uid = {name: (pwd.getpwnam(name).pw_uid, pwd.getpwnam(name).pw_gid) for name in layout.SYSTEM_USERS}
    mysql, slurm = uid["mysql"], uid["slurm"]
    made = [
        ("/run/lock", 0o1777, 0, 0), ("/run/munge", 0o755, *uid["munge"]),
        ("/run/mysqld", 0o710, mysql[0], slurm[1]), ("/run/mysqld/data", 0o700, *mysql),
        ("/run/slurmctld", 0o755, *slurm), ("/run/slurmdbd", 0o755, *slurm), ("/run/gandiva", 0o755, 0, 0),
    ]
    return made + [(f"/home/{name}", 0o755, number, number) for name, number in USERS.items()]


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _fill(name: str, **words: object) -> str:
    return Template((CLONE / "container" / "mini" / name).read_text()).substitute(words)


def _node_lines(spec: MiniSpec) -> str:
    lines = []
    for i, node in enumerate(spec.all_nodes):
        gres = f" Gres=gpu:{node.gpu_type}:{node.slots}" if node.gpus else ""
        lines.append(f"NodeName={node.name} NodeHostname={layout.HOSTNAME} NodeAddr={layout.ADDRESS} "
                     f"Port={layout.FIRST_SLURMD_PORT + i} CPUs={CPUS_PER_NODE} "
                     f"RealMemory={MEMORY_PER_NODE_MIB}{gres} State=UNKNOWN")
    return "\n".join(lines)


def _write_slurm(spec: MiniSpec, at: Layout) -> None:
    words = {
        "root": at.root, "address": layout.ADDRESS, "slurmctld_port": layout.SLURMCTLD_PORT,
        "slurmdbd_port": layout.SLURMDBD_PORT, "nodes": _node_lines(spec), "plain_node": PLAIN_NODE,
        "gpu_nodes": ",".join(node.name for node in spec.nodes),
    }
    _write(at.etc / "slurm.conf", _fill("slurm.conf", **words))
    _write(at.etc / "slurmdbd.conf", _fill("slurmdbd.conf", **words), 0o600)
    shutil.chown(at.etc / "slurmdbd.conf", "slurm", "slurm")
    _write(at.etc / "my.cnf", _fill("my.cnf"))
    _write(at.etc / "slurm.conf.d/gandiva.conf", (CLONE / "slurm_conf/slurm.conf.d/gandiva.conf").read_text())
    _write(at.etc / "cgroup.conf", f"CgroupPlugin={_cgroup_plugin()}\n")
    gres = [f"NodeName={node.name} Name=gpu Type={node.gpu_type} File={SLOT_DIR}/slot[0-{node.slots - 1}]"
            for node in spec.nodes]
    _write(at.etc / "gres.conf", (CLONE / "slurm_conf/gres.conf").read_text() + "\n".join(gres) + "\n")
    (at.etc / "gandiva-slots").mkdir()
    for slot in range(max(node.slots for node in spec.nodes)):
        (at.etc / f"gandiva-slots/slot{slot}").symlink_to("/dev/null")


def _cgroup_plugin() -> str:
    """The plugin that touches no cgroup while nothing asks it to; older Slurm has no `disabled`."""
    told = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True,
                          env={"PATH": layout.system_path()}).stdout
    version = re.search(r"(\d+)\.(\d+)", told)
    new = version is not None and (int(version[1]), int(version[2])) >= (23, 11)
    return "disabled" if new else "cgroup/v1"


def _write_lua(spec: MiniSpec, at: Layout) -> None:
    _write(at.etc / LUA_MODULE, LUA_STUB)
    for module in (CLONE / "slurm_conf").glob("gandiva_*.lua"):
        _write(at.etc / module.name, module.read_text())
    gpus = ", ".join(f"{kind} = {count}" for kind, count in spec.gpus_by_type.items())
    script = (CLONE / "slurm_conf/job_submit.lua").read_text()
    script, count = re.subn(r"nodes_gpus = \{.*\}", f"nodes_gpus = {{{gpus}}}", script)
    if count != 1:
        raise GandivaError(f"{CLONE / 'slurm_conf/job_submit.lua'}: no line nodes_gpus; restore it")
    _write(at.etc / "job_submit.lua", script)


def _write_plugstack(at: Layout) -> None:
    """The plugin is copied in and renamed: a file cut short would kill sbatch."""
    made = subprocess.run(["make", "--no-print-directory", "-s", "-C", str(CLONE / "spank")],
                          capture_output=True, text=True)
    built = CLONE / "spank/gandiva.so"
    if made.returncode != 0 or not built.exists():
        told = made.stderr.strip()
        raise GandivaError(f"the SPANK plugin does not build (make -C {CLONE / 'spank'}): {told}")
    _write(at.etc / "plugstack.conf", "include /etc/slurm/plugstack.conf.d/*.conf\n")
    target = at.root / "lib/gandiva.so"
    shutil.copyfile(built, target.with_suffix(".new"))
    os.replace(target.with_suffix(".new"), target)
    text = (CLONE / "slurm_conf/plugstack.conf.d/gandiva.conf").read_text()
    text = text.replace("/usr/lib/gandiva/gandiva.so", str(target))
    text = text.replace("/usr/lib/gandiva/client/hook", str(CLONE / "gandiva_slurm/client/hook"))
    _write(at.etc / "plugstack.conf.d/gandiva.conf", text)


def _write_host_files(at: Layout) -> None:
    """/etc files of its own: the host's accounts with our users added, names without any network."""
    host = at.root / "host"
    _write(host / "hosts", f"127.0.0.1 localhost\n{layout.ADDRESS} {layout.HOSTNAME}\n")
    _write(host / "hostname", layout.HOSTNAME + "\n")
    _write(host / "nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    taken = re.compile("|".join([*(f"{name}:.*" for name in USERS),
                                 *(f"[^:]*:[^:]*:{uid}(:.*)?" for uid in USERS.values())]))
    ours = {
        "passwd": [f"{n}:x:{u}:{u}:{n}:/home/{n}:/bin/bash" for n, u in USERS.items()],
        "group": [f"{n}:x:{u}:" for n, u in USERS.items()],
        "shadow": [f"{n}:*:19000:0:99999:7:::" for n in USERS],
        "gshadow": [f"{n}:!::" for n in USERS],
    }
    for name, lines in ours.items():
        theirs = Path("/etc", name)
        known = theirs.read_text().splitlines() if theirs.exists() else []
        kept = [line for line in known if not taken.fullmatch(line)]
        _write(host / name, "\n".join([*kept, *lines]) + "\n", 0o640 if "shadow" in name else 0o644)


def _write_key(at: Layout) -> None:
    key = at.root / "munge.key"
    fd = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o400)
    with os.fdopen(fd, "wb") as file:
        file.write(secrets.token_bytes(1024))
    shutil.chown(key, "munge", "munge")


def _make_spool(spec: MiniSpec, at: Layout) -> None:
    """State directories, each owned by the account of its daemon."""
    slurm = [at.spool / "slurmctld", at.spool / "gandivactld"]
    for path in slurm + [at.spool / f"slurmd-{node.name}" for node in spec.all_nodes]:
        path.mkdir(exist_ok=True)
    (at.spool / "gandivad").mkdir(exist_ok=True)
    for path in slurm:
        shutil.chown(path, "slurm", "slurm")
        path.chmod(0o700)
    for name in ("slurmctld.log", "slurmdbd.log"):
        _write(at.log / name, "")
        shutil.chown(at.log / name, "slurm", "slurm")


def check_accounts() -> None:
    """The packages make these accounts; say so when one is gone."""
    for name in layout.SYSTEM_USERS:
        try:
            pwd.getpwnam(name)
        except KeyError:
            raise GandivaError(f"the account {name} does not exist on this host; "
                               "run 'make setup' in the clone as root") from None
