"""Where the files of a mini cluster lie, and what this host must have to run one."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import gandiva_slurm
from gandiva_slurm.model.errors import GandivaError

BASE = Path("/run/gandiva-mini")
#: The clone: slurm_conf/, spank/ and container/ lie beside the package.
CLONE = Path(gandiva_slurm.__file__).resolve().parent.parent
ADDRESS = "10.99.0.1"
HOSTNAME = "mini"
CONTROLLER_PORT = 7321
SLURMCTLD_PORT = 6817
SLURMDBD_PORT = 6819
FIRST_SLURMD_PORT = 17001
FIRST_GANDIVAD_PORT = 7401

#: Program a mini cluster runs -> Debian package that brings it.
PROGRAMS = {
    "slurmctld": "slurmctld", "slurmd": "slurmd", "slurmdbd": "slurmdbd", "sbatch": "slurm-client",
    "munged": "munge", "mariadbd": "mariadb-server", "ip": "iproute2", "setpriv": "util-linux",
    "unshare": "util-linux", "nsenter": "util-linux", "make": "make",
}
#: Accounts the Debian packages make.
SYSTEM_USERS = ("slurm", "munge", "mysql")


@dataclass(frozen=True)
class Layout:
    """Paths of one cluster; the same inside and outside, for its directory is bound at its own path."""

    root: Path

    @classmethod
    def of(cls, name: str) -> "Layout":
        """The layout of the cluster called `name`."""
        return cls(BASE / name)

    @property
    def etc(self) -> Path:
        """Bound over /etc/slurm inside."""
        return self.root / "etc"

    @property
    def log(self) -> Path:
        """One NAME.log a daemon."""
        return self.root / "log"

    @property
    def pid(self) -> Path:
        """One file a daemon: its pid inside."""
        return self.root / "pid"

    @property
    def spool(self) -> Path:
        """State of slurmctld, slurmd and our daemons."""
        return self.root / "spool"

    @property
    def record(self) -> Path:
        """cluster.json: what `up` was asked and made."""
        return self.root / "cluster.json"

    @property
    def maker(self) -> Path:
        """While `up` works: its pid and start time."""
        return self.root / "up.pid"

    @property
    def outer_pid(self) -> Path:
        """Pid of the unshare process; killing it ends everything inside."""
        return self.root / "outer.pid"


def system_path() -> str:
    """PATH with the directories of administrators' programs, which a plain user's PATH may lack."""
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"


def missing() -> str:
    """Why no mini cluster can run here, as one sentence with the next step; "" when one can."""
    if os.geteuid() != 0:
        return "a mini cluster needs root, for its private namespaces: run the command as root (sudo)"
    absent = sorted({pkg for prog, pkg in PROGRAMS.items() if not shutil.which(prog, path=system_path())})
    if absent:
        return f"Debian packages missing: {' '.join(absent)}; run 'make setup' in the clone as root"
    if not (CLONE / "slurm_conf").is_dir() or not (CLONE / "container").is_dir():
        return f"no slurm_conf/ and container/ in {CLONE}: run it from a clone, after 'make setup' there"
    return ""


def require_host() -> None:
    """Raise unless this host can run a mini cluster."""
    if why := missing():
        raise GandivaError(f"{why}")


def bin_dir() -> Path:
    """Directory of the interpreter that runs us and of the commands installed beside it."""
    return Path(sys.executable).parent
