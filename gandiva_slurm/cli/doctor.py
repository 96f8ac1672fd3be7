"""`gandiva doctor -- python train.py`: run some steps of it here, and tell what Gandiva could do with it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from gandiva_slurm.cli import gang_told, image_told, script_ways, ways_told
from gandiva_slurm.cli.client import to_json
from gandiva_slurm.cli.lone import LoneNode, facts_of, is_a_try, way_of, why_unmoved
from gandiva_slurm.cli.number import Number
from gandiva_slurm.cli.runs import slurm_env
from gandiva_slurm.cli.script_ways import Script
from gandiva_slurm.node.pages import error_text
from gandiva_slurm.wire.page import (
    KIND_HOOK,
    KIND_RUN,
    KIND_STEP,
    KIND_STEPS,
    TIER_NAMES,
    W_FIRST_NS,
    W_HELD,
    W_KIND,
    W_LAST_NS,
    W_TIER_USED,
)

KINDS = {
    KIND_HOOK: "the return of the outermost Optimizer.step, found by the hook",
    KIND_STEPS: "gandiva.steps() in the script",
    KIND_STEP: "gandiva.step() in the script",
    KIND_RUN: "run.steps() of gandiva.attach(), or a framework's own loop: it can be saved there",
}
NO_BOUNDARY = (
    "none: no optimizer of torch was seen to step, or its Python does not heed PYTHONPATH (python -I, or the "
    "script sets it anew); next: `for batch in gandiva.steps(loader)` in it, or `gandiva hook install`"
)
NO_MOVE = "no: {}; so it is parked where it is, and not moved"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True})
@click.option(
    "--steps", type=click.IntRange(1), default=20, show_default=True,
    help="So many mini-batches; then the script is ended.",
)  # fmt: skip
@click.option("--deadline", type=Number(1, 86400), default=300.0, show_default=True, help="Seconds at most.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def doctor(steps: int, deadline: float, as_json: bool, command: tuple[str, ...]) -> int:
    """Run COMMAND for some mini-batches and tell what Gandiva could do with it, and what is in the way.

    COMMAND is a command, or a script as sbatch or Python takes it. How it would be moved is told for each
    --gandiva-checkpoint that would suit it, with the line that says so, and what to add.

    Exit 0: it can be parked. 1: it cannot.
    """
    script = script_ways.read(command)
    with tempfile.TemporaryDirectory(prefix="gandiva-doctor-") as path, LoneNode(Path(path), "it") as node:
        node.start(script.command, env=slurm_env(script) if script.is_batch else {})
        node.wait(lambda: node.is_training() and min(node.seqs()) >= steps and not is_a_try(node), deadline)
        found = diagnose(node, script, deadline)
    if as_json:
        click.echo(to_json(found))
    else:
        for name, text in found.items():
            click.echo(f"{name + ':':<12} {text}")
    return int(found["parked"].startswith("no"))


def diagnose(node: LoneNode, script: Script, deadline_s: float) -> dict[str, str]:
    """Return what is found, a line a subject; park and save it once on the way."""
    log = Path(f"{node.run}.log").read_text(errors="replace").splitlines()
    if not node.is_training():
        ended = f"; the script ended with exit code {node.status}"
        if node.status is None:
            ended = f"; it still ran after --deadline {deadline_s:g} s"
        last = f": {log[-1]}" if log and node.status else ""
        found = {"boundary": NO_BOUNDARY + ended + last, "parked": "no", "moved": "not known without one"}
        return {**found, **ways_told.ways(script, "")}
    view, facts, by = node.views()[0], facts_of(node.run), way_of(node)
    found = {
        "boundary": KINDS.get(view[W_KIND], "of an unknown kind"),
        "ranks": str(len(node.pages)),
        "boundaries": f"{_step_ms(view, node.seqs()[0]):.3g} ms from one to the next",
        "optimizers": "; ".join(map(_optimizer, facts.get("optimizers", []))) or "none seen",
        "memory": _memory(facts),
        **dict(gang_told.told(facts)),
        "parked": _park(node, deadline_s),
        "image": image_told.told(node, script, by or ways_told.own_way(script)),
        "moved": _move(node, script, deadline_s),
        **ways_told.ways(script, by),
    }
    warnings = "; ".join(_warnings(facts))
    return {**found, "mind": warnings} if warnings else found


def _step_ms(view: tuple[int, ...], seq: int) -> float:
    return (view[W_LAST_NS] - view[W_FIRST_NS]) / max(1, seq - 1) / 1e6


def _size(count: int) -> str:
    mib = count / 2**20
    return (
        f"{mib / 1024:.1f} GiB"
        if mib >= 1024
        else f"{mib:.1f} MiB"
        if mib >= 1
        else f"{count / 1024:.1f} KiB"
    )


def _optimizer(one: dict[str, Any]) -> str:
    weights, state = _size(one["parameter_bytes"]), _size(one["state_bytes"])
    return f"{one['name']} of {one['tensors']} tensors, {weights} of parameters, {state} of state"


def _memory(facts: dict[str, Any]) -> str:
    if not facts.get("device"):
        return "no GPU in use here: what it holds and what it peaks at is not known"
    live, peak = facts["live"], facts["peak"]
    return f"{facts['device']}: {_size(live)} live at a boundary, {_size(peak)} at the peak"


def _park(node: LoneNode, deadline_s: float) -> str:
    start = time.monotonic()
    if node.is_over() or node.status is not None:
        return "not tried: the script was over; next: fewer --steps"
    if not node.park(False, deadline_s):
        return f"no: {node.gang.last_error if node.gang else 'it ended'}"
    spent_ms = (time.monotonic() - start) * 1e3
    held = sum(view[W_HELD] for view in node.views())
    tier = TIER_NAMES[max(view[W_TIER_USED] for view in node.views())]
    node.resume(deadline_s)
    return f"yes, within {spent_ms:.0f} ms; {_size(held)} stay on the GPU meanwhile (tier {tier})"


def _move(node: LoneNode, script: Script, deadline_s: float) -> str:
    start, by = time.monotonic(), way_of(node)
    never, own = script_ways.why_never(script), ways_told.own_way(script)
    if never or (not by and not own):
        return NO_MOVE.format(never or why_unmoved(node))
    if not by:
        return f"yes: {own}, where it saves itself as it says; next: `gandiva try` proves it"
    if node.is_over() or node.status is not None:
        return "not tried: the script was over; next: fewer --steps"
    if not node.park(True, deadline_s):
        errors = [text for text in map(error_text, node.views()) if text]
        return f"no: {errors[0] if errors else node.gang.last_error if node.gang else 'it ended'}"
    spent_s = time.monotonic() - start
    total = sum(file.stat().st_size for file in Path(f"{node.run}.checkpoints").rglob("*.data"))
    return f"yes: {by}, {_size(total)} saved within {spent_s:.2g} s; next: `gandiva try` compares its losses"


def _warnings(facts: dict[str, Any]) -> Iterable[str]:
    if facts.get("benchmark"):
        yield "cudnn.benchmark is on: the last bits may differ where it goes on elsewhere"
    if facts.get("torch_threads", 0) > 0:
        yield f"at a step {facts['torch_threads']} other threads were inside torch: its memory stays there"
