"""What a mini cluster in namespaces of this host has of its own: addresses, accounts, mounts, the plugin."""

import json
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

from gandiva_slurm.mini import conffiles, layout, mounts, shares, trees
from gandiva_slurm.mini.daemons import ONLY_V2
from gandiva_slurm.mini.layout import CLONE, Layout
from gandiva_slurm.mini.site import Address, NodeAddress, Owner, Site
from gandiva_slurm.mini.spec import USERS, MiniSpec
from gandiva_slurm.model.errors import GandivaError


def site_of(spec: MiniSpec, at: Layout) -> Site:
    """One machine; every daemon has a port of its own there."""
    here = Address(layout.HOSTNAME, layout.ADDRESS)
    nodes = {
        node.name: NodeAddress(here.host, here.ip, layout.FIRST_SLURMD_PORT + i,
                               layout.FIRST_GANDIVAD_PORT + i)
        for i, node in enumerate(spec.all_nodes)
    }
    return Site(
        at, here, here, nodes, slurmd_spool=f"{at.spool}/slurmd-%n", plugin=f"{at.root}/lib/gandiva.so",
        hook=str(CLONE / "gandiva_slurm/client/hook"), cgroup_plugin=conffiles.cgroup_plugin(_slurm_here()),
        programs=layout.bin_dir(), owners={name: _owner(name) for name in layout.SYSTEM_USERS},
    )


def write_all(spec: MiniSpec, site: Site) -> None:
    """Everything the namespaces and the daemons in them need."""
    conffiles.write_all(spec, site)
    at = site.at
    for node in spec.all_nodes:
        (at.spool / f"slurmd-{node.name}").mkdir(exist_ok=True)
    _install_plugin(site)
    if spec.cgroups == "v2":
        _build_only_v2(site)
    _write_host_files(at)
    plan = mounts.plan(at.root, *trees.python_trees(), shares.pin(spec))
    plan |= {"directories": run_directories(site), "hostname": layout.HOSTNAME, "address": layout.ADDRESS,
             "cgroups": spec.cgroups, "group": group_of(at)}
    conffiles.write(at.root / "init.json", json.dumps(plan, indent=1))


def group_of(at: Layout) -> str:
    """The control group, below the root of each hierarchy, that is the root of them all inside."""
    return f"gandiva-mini.{at.root.name}"


def run_directories(site: Site) -> list[tuple[str, int, int, int]]:
    """(path, mode, uid, gid) of what daemons and users expect below the private covers."""
    mysql, slurm = site.owners["mysql"], site.owners["slurm"]
    made = [
        ("/run/lock", 0o1777, 0, 0), ("/run/munge", 0o755, *site.owners["munge"]),
        ("/run/mysqld", 0o710, mysql[0], slurm[1]), ("/run/mysqld/data", 0o700, *mysql),
        ("/run/slurmctld", 0o755, *slurm), ("/run/slurmdbd", 0o755, *slurm), ("/run/gandiva", 0o755, 0, 0),
    ]
    return made + [(f"/home/{name}", 0o755, number, number) for name, number in USERS.items()]


def _owner(name: str) -> Owner:
    """The packages make these accounts; say so when one is gone."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise GandivaError(f"the account {name} does not exist on this host; "
                           "run 'make setup' in the clone as root") from None
    return found.pw_uid, found.pw_gid


def _slurm_here() -> str:
    return subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True,
                          env={"PATH": layout.system_path()}).stdout


def _install_plugin(site: Site) -> None:
    """The plugin is copied in and renamed: a file cut short would kill sbatch."""
    made = subprocess.run(["make", "--no-print-directory", "-s", "-C", str(CLONE / "spank")],
                          capture_output=True, text=True)
    built = CLONE / "spank/gandiva.so"
    if made.returncode != 0 or not built.exists():
        told = made.stderr.strip()
        raise GandivaError(f"the SPANK plugin does not build (make -C {CLONE / 'spank'}): {told}")
    target = Path(site.plugin)
    shutil.copyfile(built, target.with_suffix(".new"))
    os.replace(target.with_suffix(".new"), target)


def _build_only_v2(site: Site) -> None:
    """What slurmd of a cluster with version 2 is started behind (container/mini/only_v2.c)."""
    source, target = CLONE / "container/mini/only_v2.c", site.at.root / "lib" / ONLY_V2
    words = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(target), str(source)]
    made = subprocess.run(words, capture_output=True, text=True, env={"PATH": layout.system_path()})
    if made.returncode != 0:
        raise GandivaError(f"{source} does not build: {made.stderr.strip()}")


def _write_host_files(at: Layout) -> None:
    """/etc files of its own: the host's accounts with our users added, names without any network."""
    host = at.root / "host"
    conffiles.write(host / "hosts", f"127.0.0.1 localhost\n{layout.ADDRESS} {layout.HOSTNAME}\n")
    conffiles.write(host / "hostname", layout.HOSTNAME + "\n")
    conffiles.write(host / "nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
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
        conffiles.write(host / name, "\n".join([*kept, *lines]) + "\n", 0o640 if "shadow" in name else 0o644)
