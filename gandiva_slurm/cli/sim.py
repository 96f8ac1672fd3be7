"""`gandiva sim`: policies on workloads, in virtual time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gandiva_slurm.cli.number import Number
from gandiva_slurm.cli.sim_paper import paper
from gandiva_slurm.cli.table import Field, squeue_lines
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.output import opened, progress, require_folder, write_result
from gandiva_slurm.policy.port import Cluster, Policy, PolicySettings
from gandiva_slurm.policy.registry import make_policy
from gandiva_slurm.sim.clusters import read_cluster
from gandiva_slurm.sim.draw import draw, require_drawing
from gandiva_slurm.sim.faults import Chance, Fault, read_faults
from gandiva_slurm.sim.gavel_rounds import Together, gavel_policy
from gandiva_slurm.sim.immovable import immovable
from gandiva_slurm.sim.outcome import VERSION, EventLines, write_jobs
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import SLOTS, SlurmWorld
from gandiva_slurm.sim.timeline import Timeline
from gandiva_slurm.sim.truth import Oracle
from gandiva_slurm.sim.workloads.accounts import check_accounts, read_tree
from gandiva_slurm.sim.workloads.load import FORMATS, Source, load
from gandiva_slurm.sim.world import Costs

_S = 10**9
_FILE = click.Path(path_type=Path)


@click.group()
def sim() -> None:
    """Run scheduling policies on workloads, in virtual time."""


sim.add_command(paper)


def _column(name: str, key: str, form: str = "d") -> Field:
    return Field(name, 12, lambda row: format(row[key], form))


#: What `compare` prints of each policy; times in seconds.
_COLUMNS = (
    Field("Policy", 16, lambda row: str(row["policy"]), left=True),
    _column("AvgJct", "avg_jct_s", ".0f"),
    _column("P99Jct", "p99_jct_s", ".0f"),
    _column("Makespan", "makespan_s", ".0f"),
    _column("First100", "avg_first_100_minibatches_s", ".0f"),
    _column("MaxFtf", "max_ftf", ".2f"),
    _column("Jain", "jain", ".3f"),
    _column("Suspends", "suspends"),
    _column("Migrations", "migrations"),
    _column("Packs", "packs_kept"),
)
_SCENE = (
    click.option("--workload", type=_FILE, required=True, help="The jobs."),
    click.option("--format", "format_", type=click.Choice([*FORMATS]), required=True, help="Its format."),
    click.option("--throughputs", type=_FILE, help="Rates by model and GPU type (Gavel's JSON, or .xz)."),
    click.option("--cluster", required=True, metavar="TYPE:NODESxGPUS[,…]", help="As v100:3x4,k80:3x4."),
    click.option("--quantum", type=Number(0.001), default=60.0, help="Seconds; 60."),
    click.option("--switch-cost", type=Number(0), default=0.0, help="Seconds to stop and go on."),
    click.option("--restart-cost", type=Number(0), default=0.0, help="Seconds to go on elsewhere."),
    click.option("--slots", type=click.IntRange(1), help="Jobs a GPU has room for; any number (slurm: 4)."),
    click.option(
        "--world", type=click.Choice(["plan", "slurm"]), default="plan",
        help="Plans come true at once, or through the engine of the daemons and a small Slurm.",
    ),
    click.option("--users", type=click.IntRange(1), help="Deal the rows out to so many users."),
    click.option("--users-column", metavar="C", help="Users from a column: its name, or number from 1."),
    click.option("--limit", type=click.IntRange(1), help="Only the first so many jobs to arrive."),
    click.option("--tickets", type=_FILE, help="Account tree: sacctmgr -P show assoc format=Account,User,…"),
    click.option("--half-life", type=Number(0.001), help="Past use counts; seconds."),
    click.option("--rate-noise", type=Number(0, 1), default=0.0, help="Of each run's rate; 0.05."),
    click.option("--faults", type=_FILE, help="Nodes that fail: a CSV at_s,node,state."),
    click.option("--node-mtbf", type=Number(1), help="Nodes fail by chance: mean seconds up."),
    click.option("--node-repair", type=Number(1), help="And mean seconds down."),
    click.option("--immovable", type=Number(0, 1), default=0.0, help="Part of jobs that cannot be moved."),
    click.option("--seed", type=int, default=0, help="Of noise, failures and jobs that cannot be moved."),
    click.option("--check-invariants", is_flag=True, help="Check every event; exit 1 says what failed."),
    click.option("--json", "json_", metavar="FILE|-", help="Write the result as JSON."),
)


def _scene_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SCENE):
        command = option(command)
    return command


@sim.command()
@click.option("--policy", required=True, metavar="NAME", help="fifo, srtf, gandiva_fair, …")
@_scene_options
@click.option("--compat", type=click.Choice(["gavel"]), help="Rounds and leases as in Gavel's simulator.")
@click.option("--jobs", type=_FILE, help="Write a CSV row a job.")
@click.option("--events", type=_FILE, help="Write a JSON line an event.")
def run(**options: Any) -> None:
    """Run one policy on one workload."""
    scene, settings = _read(options)
    if options["compat"]:
        if options["world"] == "slurm":
            raise UsageError("--compat gavel has a world of its own: leave --world out")
        scene = replace(scene, truth=_together(scene), is_in_rounds=True)
        settings = replace(settings, oracle=scene.truth.rates)
        policy, is_told = gavel_policy(options["policy"], settings), True
    else:
        policy, is_told = _made(options["policy"], settings, options)
    with _lines(options["events"]) as events, progress("jobs ended", len(scene.specs)) as on_finish:
        outcome = simulate(scene, policy, is_told, events, on_finish)
    summary = outcome.summary()
    if options["jobs"]:
        with opened(options["jobs"]):
            write_jobs(options["jobs"], outcome.books)
    write_result(options["json_"], summary, _sentence(summary))


@sim.command()
@click.option("--policies", required=True, metavar="A,B,…", help="fifo,tiresias,gandiva_fair, …")
@_scene_options
@click.option("--draw", "picture", type=_FILE, help="Draw all of them: FILE.png or FILE.svg.")
def compare(**options: Any) -> None:
    """Run several policies on one workload, side by side."""
    scene, settings = _read(options)
    made = [_made(name.strip(), settings, options) for name in options["policies"].split(",")]
    if options["picture"]:
        require_drawing(options["picture"])
    runs = []
    for policy, is_told in made:
        timeline = Timeline()
        with progress("jobs ended", len(scene.specs)) as on_finish:
            outcome = simulate(scene, policy, is_told, timeline if options["picture"] else None, on_finish)
        runs.append((outcome, timeline))
    if options["picture"]:
        draw(options["picture"], scene.cluster, runs)
    summaries = [outcome.summary() for outcome, _ in runs]
    table = "\n".join(squeue_lines(_COLUMNS, summaries, header=True))
    write_result(options["json_"], {"version": VERSION, "runs": summaries}, table)


def _made(name: str, settings: PolicySettings, options: dict[str, Any]) -> tuple[Policy, bool]:
    """Make a policy, in `--world slurm` with the engine that carries its plans out."""
    if options["world"] == "plan":
        return make_policy(name, settings)
    policy, _ = make_policy(name, replace(settings, oracle=None))  # no cluster tells true rates
    return SlurmWorld(settings, policy, options["slots"] or SLOTS), False


def _read(options: dict[str, Any]) -> tuple[Scene, PolicySettings]:
    if options["users"] and options["users_column"]:
        raise UsageError("--users and --users-column: give one of them")
    for path in (options.get(name) for name in ("json_", "jobs", "events", "picture")):
        require_folder(path)
    cluster = read_cluster(options["cluster"])
    names = ("throughputs", "users", "users_column", "limit")
    source = Source(options["workload"], options["format_"], *(options[name] for name in names))
    specs, truth = load(source, cluster)
    specs = immovable(specs, options["immovable"], options["seed"])
    switch_ns, restart_ns = (round(options[name] * _S) for name in ("switch_cost", "restart_cost"))
    slots = 0 if options["world"] == "slurm" else options["slots"] or 0  # there the engine keeps to them
    costs = Costs(switch_ns, restart_ns, options["rate_noise"], options["seed"], slots)
    tree: tuple[Association, ...] = ()
    if options["tickets"]:
        tree = read_tree(options["tickets"])
        check_accounts(tree, specs, options["tickets"])
    scene = Scene(
        specs, cluster, truth, costs, associations=tree, faults=_faults(options, cluster),
        is_checked=options["check_invariants"],
    )  # fmt: skip
    quantum_ns, half_life_ns = (round((options[name] or 0) * _S) for name in ("quantum", "half_life"))
    settings = PolicySettings(
        quantum_ns, switch_ns, restart_ns, oracle=truth.rates, associations=tree, half_life_ns=half_life_ns
    )
    return scene, settings


def _faults(options: dict[str, Any], cluster: Cluster) -> Iterable[Fault]:
    """Nodes that fail, by a list or by chance."""
    up_s, down_s = options["node_mtbf"], options["node_repair"]
    if bool(up_s) != bool(down_s) or (up_s and options["faults"]):
        raise UsageError("failures: give --faults FILE, or both --node-mtbf S and --node-repair S")
    if options["faults"]:
        return read_faults(options["faults"], cluster)
    if not up_s:
        return ()
    return Chance(len(cluster.hosts), round(up_s * _S), round(down_s * _S), options["seed"])


def _together(scene: Scene) -> Together:
    """Gavel's simulator knows a table of rates, and neither costs nor anything that is drawn by chance."""
    costs = scene.costs
    is_plain = not (costs.switch_ns or costs.restart_ns or costs.noise or costs.slots or scene.faults)
    if not isinstance(scene.truth, Oracle) or not is_plain:
        raise UsageError("--compat gavel takes --throughputs; neither costs nor slots nor noise nor failures")
    return Together(scene.truth)


@contextlib.contextmanager
def _lines(path: Path | None) -> Iterator[EventLines | None]:
    if path is None:
        yield None
        return
    with opened(path) as file:
        yield EventLines(file, None)


def _sentence(summary: dict[str, Any]) -> str:
    return (
        f"{summary['policy']}: {summary['finished']} of {summary['jobs']} jobs, average JCT "
        f"{summary['avg_jct_s']:.4f} s, makespan {summary['makespan_s']:.0f} s, "
        f"{summary['suspends']} suspends, {summary['migrations']} migrations, {summary['wall_s']:.2f} s"
    )
