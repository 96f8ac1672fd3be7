"""Rules of `gandiva check` on what slurmctld runs with: slurm.conf, partitions, nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gandiva_slurm.config import Config
from gandiva_slurm.slurm.finding import Finding, error, warning
from gandiva_slurm.slurm.jobs import node_names

SLURM_CONF = "slurm.conf"
#: The oldest Slurm that prints the JSON we read.
OLDEST = (22, 5)
#: Slurm keeps a requeued job back for AuthInfo=cred_expire (120 s unless set): in that time it is held.
CRED_EXPIRE_S, MIN_CRED_EXPIRE_S = 120, 5
#: Slurm's default of batch_sched_delay, in seconds.
DEFAULT_BATCH_SCHED_DELAY_S = 3
OPERATORS = {"Operator", "Administrator"}


@dataclass(frozen=True)
class Site:
    """What Slurm says of itself. `gres` is (type, count) of each node's gres/gpu."""

    config: Mapping[str, str]
    partitions: Mapping[str, Mapping[str, str]]
    gres: Mapping[str, tuple[tuple[str, int], ...]]
    client_version: str
    admin_level: str | None

    def words(self, key: str) -> list[str]:
        """Return the parts of a comma list."""
        return [word for word in self.config.get(key, "").split(",") if word]

    def parameters(self, key: str) -> dict[str, str]:
        """Return the parts of a list such as a=1,b."""
        return {name: value for name, _, value in (word.partition("=") for word in self.words(key))}

    def user(self, key: str) -> str:
        """Return a user without his number: slurm of slurm(64030)."""
        return self.config.get(key, "").partition("(")[0]

    def nodes_of(self, partition: str) -> tuple[str, ...]:
        """Return the names of a partition's nodes."""
        text = self.partitions[partition].get("Nodes", "")
        return node_names(text) if text not in ("", "(null)") else ()


def check(site: Site, config: Config) -> Iterator[Finding]:
    """Yield every fault."""
    for rule in RULES:
        yield from rule(site, config)


def _users(site: Site, config: Config) -> Iterator[Finding]:
    slurm_user, ours = site.user("SlurmUser"), config.controller.slurm_user
    if slurm_user == "root":
        yield error(
            f"{SLURM_CONF}: SlurmUser", "slurmctld runs as root", "set SlurmUser=slurm, a user of its own"
        )
    if ours == "root":
        cure = f"name {slurm_user if slurm_user != 'root' else 'slurm'}, and run gandivactld as that user"
        yield error("gandiva.yaml: controller.slurm_user", "gandivactld must not run as root", cure)
    elif ours != slurm_user and site.admin_level not in OPERATORS:
        what = f"{ours} is not SlurmUser ({slurm_user}) and has no AdminLevel=Operator: it may not start jobs"
        cure = f"sacctmgr modify user {ours} set AdminLevel=Operator, or name {slurm_user}"
        yield error("gandiva.yaml: controller.slurm_user", what, cure)


def _versions(site: Site, _: Config) -> Iterator[Finding]:
    server = site.config.get("SLURM_VERSION", "")
    if _release(server) < OLDEST:
        yield error("slurmctld", f"Slurm {server} is too old", "22.05 is the oldest that works")
    if _release(server) != _release(site.client_version):
        what = f"the commands are of Slurm {site.client_version}, slurmctld of {server}"
        yield warning("this host", what, "install the same release on both")


def _cluster(site: Site, config: Config) -> Iterator[Finding]:
    name = site.config.get("ClusterName", "")
    if name != config.cluster:
        what = f"cluster is {config.cluster}, but Slurm's ClusterName is {name}"
        yield error("gandiva.yaml: cluster", what, f"write {name}")


def _partitions(site: Site, config: Config) -> Iterator[Finding]:
    for name in config.partitions:
        where = f"{SLURM_CONF}: PartitionName={name}"
        if name not in site.partitions:
            known = ", ".join(sorted(site.partitions)) or "none"
            what = f"Slurm has no partition {name} (it has {known})"
            yield error("gandiva.yaml: partitions", what, "name one of these, or add it to slurm.conf")
            continue
        settings = site.partitions[name]
        sharing = settings.get("OverSubscribe", "NO")
        if not sharing.startswith("FORCE"):
            what = f"OverSubscribe={sharing}: a second job waits until the first one's CPUs are free"
            yield error(where, what, f"set OverSubscribe=FORCE:{2 * config.slots_per_gpu}")
        if settings.get("State", "UP") != "UP":
            yield warning(
                where, f"it is {settings['State']}", f"scontrol update PartitionName={name} State=UP"
            )
        yield from _neighbours(site, config, name)
        yield from _slots(site, config, name)


def _neighbours(site: Site, config: Config, name: str) -> Iterator[Finding]:
    """The jobs of another partition on our nodes would be given slots Gandiva knows nothing of."""
    ours = set(site.nodes_of(name))
    for other in sorted(site.partitions):
        shared = sorted(ours.intersection(site.nodes_of(other)))
        if shared and other not in config.partitions:
            what = f"it shares {_some(shared)} with the Gandiva partition {name}"
            cure = f"take them out of {other}: a Gandiva partition owns its nodes"
            yield error(f"{SLURM_CONF}: PartitionName={other}", what, cure)


def _slots(site: Site, config: Config, name: str) -> Iterator[Finding]:
    per_gpu = config.slots_per_gpu
    for node in site.nodes_of(name):
        where = f"{SLURM_CONF}: NodeName={node}"
        slots = site.gres.get(node, ())
        count = sum(number for _, number in slots)
        if not count:
            what = "it is in a Gandiva partition and has no gres/gpu"
            yield error(where, what, f"add Gres=gpu:TYPE:{per_gpu}*GPUs here and in gres.conf")
        elif len({kind for kind, _ in slots}) > 1:
            what = f"it has GPUs of several types ({', '.join(kind or 'none' for kind, _ in slots)})"
            yield error(where, what, "give one node one type; jobs cannot be placed on half of it")
        elif count % per_gpu:
            what = f"{count} slots are no multiple of slots_per_gpu={per_gpu}"
            yield error(where, what, f"GPUs x {per_gpu} slots here and in gres.conf, or mend gandiva.yaml")
        elif not slots[0][0]:
            what = "its gres/gpu has no type"
            yield warning(where, what, "add Type= in gres.conf: jobs and fairness go by GPU type")


def _gres(site: Site, _: Config) -> Iterator[Finding]:
    if "gpu" not in site.words("GresTypes"):
        yield error(f"{SLURM_CONF}: GresTypes", "gpu is not in it", "set GresTypes=gpu")
    if "gres/gpu" not in site.words("AccountingStorageTRES"):
        what = "gres/gpu is not in it: sacct and sreport know of no GPUs"
        yield warning(f"{SLURM_CONF}: AccountingStorageTRES", what, "add gres/gpu")


def _accounting(site: Site, _: Config) -> Iterator[Finding]:
    kind = site.config.get("AccountingStorageType", "")
    if kind != "accounting_storage/slurmdbd":
        what = f"{kind or 'nothing'}: there are no associations, so every user has the same tickets"
        yield warning(f"{SLURM_CONF}: AccountingStorageType", what, "set accounting_storage/slurmdbd")


def _selection(site: Site, config: Config) -> Iterator[Finding]:
    kind = site.config.get("SelectType", "")
    if kind != "select/cons_tres":
        what = f"{kind}: Slurm does not count gres/gpu by job"
        yield error(f"{SLURM_CONF}: SelectType", what, "set select/cons_tres")
    if "MEMORY" not in site.config.get("SelectTypeParameters", "").upper():
        what = "memory is not counted, but parked jobs keep theirs: a node can run out of it"
        yield error(f"{SLURM_CONF}: SelectTypeParameters", what, "set CR_Core_Memory")
    elif not _has_default_memory(site, config):
        what = "unset: a job that names no memory takes its whole node's, and nothing can share with it"
        yield error(f"{SLURM_CONF}: DefMemPerCPU", what, "set it, as in DefMemPerCPU=4000")


def _has_default_memory(site: Site, config: Config) -> bool:
    """True when slurm.conf, or else each of our partitions, bounds the memory of a job that names none."""
    keys = ("DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU")
    parts = [site.partitions.get(name, {}) for name in config.partitions]
    places = [[site.config], parts]
    return any(all(any(_is_set(place.get(key, "")) for key in keys) for place in group) for group in places)


def _slicers(site: Site, _: Config) -> Iterator[Finding]:
    if "GANG" in site.config.get("PreemptMode", ""):
        what = "GANG: Slurm would suspend and resume jobs against Gandiva"
        yield error(f"{SLURM_CONF}: PreemptMode", what, "take GANG out of it")
    if site.config.get("SchedulerType") == "sched/builtin":
        what = "sched/builtin: one job that cannot start blocks all behind it"
        yield warning(f"{SLURM_CONF}: SchedulerType", what, "set sched/backfill")


def _submission(site: Site, _: Config) -> Iterator[Finding]:
    if "lua" not in site.words("JobSubmitPlugins"):
        what = "lua is not in it: no job is checked, held or recorded for Gandiva"
        yield error(f"{SLURM_CONF}: JobSubmitPlugins", what, "add lua, and restart slurmctld")


def _requeue(site: Site, _: Config) -> Iterator[Finding]:
    if site.config.get("JobRequeue") == "0":
        what = "0: a job that loses its node is not placed again, unless submitted with --requeue"
        yield warning(f"{SLURM_CONF}: JobRequeue", what, "set JobRequeue=1")
    expire_s = _cred_expire(site)
    if not expire_s.isdecimal() or int(expire_s) < MIN_CRED_EXPIRE_S:
        what = f"cred_expire={expire_s}: Slurm may restart a requeued job before Gandiva holds it"
        yield warning(f"{SLURM_CONF}: AuthInfo", what, "leave it out, or set AuthInfo=cred_expire=30")
    delay_s = site.parameters("SchedulerParameters").get(
        "batch_sched_delay", str(DEFAULT_BATCH_SCHED_DELAY_S)
    )
    if delay_s != "0":
        what = f"batch_sched_delay={delay_s}: each start waits up to so many seconds"
        yield warning(
            f"{SLURM_CONF}: SchedulerParameters", what, "add batch_sched_delay=0,sched_min_interval=0"
        )


def _cred_expire(site: Site) -> str:
    return site.parameters("AuthInfo").get("cred_expire", str(CRED_EXPIRE_S))


def _isolation(site: Site, config: Config) -> Iterator[Finding]:
    """Slurm gives a node up no sooner than two thirds of SlurmdTimeout after it was cut off (ADR 0048)."""
    timeout, expire_s = re.match(r"[1-9][0-9]*", site.config.get("SlurmdTimeout", "")), _cred_expire(site)
    if config.isolation == "never" or timeout is None or not expire_s.isdecimal():
        return
    third_s = int(timeout[0]) / 3
    most_s = min(2 * third_s + int(expire_s), 4 * third_s)
    if config.isolation > most_s:
        what = f"{config.isolation:g}: Slurm may start a node's jobs elsewhere after {most_s:g} s"
        yield warning("gandiva.yaml: isolation", what, f"set it to {int(2 * third_s)} or so, or never")


def _processes(site: Site, _: Config) -> Iterator[Finding]:
    kind = site.config.get("ProctrackType", "")
    if kind != "proctrack/cgroup":
        what = f"{kind}: Slurm itself does not find a process that leaves its session (gandivad freezes it)"
        yield warning(f"{SLURM_CONF}: ProctrackType", what, "set proctrack/cgroup")
    if site.config.get("ConstrainDevices", "no").lower() in ("yes", "true"):
        what = "yes: Gandiva's slots are placeholder files, so it isolates nothing and logs an error a job"
        yield warning("cgroup.conf: ConstrainDevices", what, "set ConstrainDevices=no on Gandiva's nodes")


#: Every rule, in the order of a reader's interest.
RULES: tuple[Callable[[Site, Config], Iterator[Finding]], ...] = (
    _users,
    _versions,
    _cluster,
    _partitions,
    _gres,
    _submission,
    _selection,
    _slicers,
    _accounting,
    _requeue,
    _isolation,
    _processes,
)


def _release(version: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _is_set(value: str) -> bool:
    return value not in ("", "0", "UNLIMITED")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
