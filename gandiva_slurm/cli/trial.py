"""`gandiva try -- python train.py`: park and move it at random, without Slurm, and compare its losses."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import click

from gandiva_slurm.cli import image_told, image_trial, own_trial, script_ways
from gandiva_slurm.cli.lone import LoneNode, is_a_try, way_of, why_unmoved
from gandiva_slurm.cli.number import Number
from gandiva_slurm.cli.runs import BEHIND, Losses, Trial, check_end, run_alone, train_on
from gandiva_slurm.cli.script_ways import Script
from gandiva_slurm.model.errors import GandivaError, UsageError
from gandiva_slurm.model.snapshot import JobOptions
from gandiva_slurm.node.pages import error_text

#: Boundaries between two parks, and how long one lasts.
STRIDE, PARK_S = (1, 8), 0.05
MOVES = 2
#: A job that is being moved must have trained so many boundaries since its start.
MOVE_AFTER = (2, 12)
#: A script that refuses to be parked is asked so often.
REFUSALS = 5


@click.command(
    "try", context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True}
)
@click.option(
    "--steps", type=click.IntRange(1), default=100, show_default=True,
    help="Compare so many losses; then end the script.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of where it is parked and moved.")
@click.option(
    "--deadline", type=Number(1, 86400), default=600.0, show_default=True,
    help="Seconds for each run of the script.",
)  # fmt: skip
@click.option(
    "--checkpoint", type=script_ways.Checkpoint(),
    help=f"As --gandiva-checkpoint: {script_ways.TAKES}; by default as the script says, else auto.",
)  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def try_(steps: int, seed: int, deadline: float, checkpoint: str | None, command: tuple[str, ...]) -> int:
    """Run COMMAND alone, parked at random, and moved, where it can be; compare its losses bit for bit.

    COMMAND is a command, or a script as sbatch or Python takes it. It is moved by what its ranks save
    (gandiva.attach, or a framework), else by its own checkpoint: upon its signal, or killed (self).
    Root has it run by the user who called sudo, else by the owner of this directory.

    Exit 0: the losses are the same. 1: they are not, it cannot be parked, or its own checkpoint would not
    move it; the sentence says which rule.
    """
    script = script_ways.read(command)
    options = own_way(script, checkpoint)
    if who := image_trial.user():
        words = ["--steps", str(steps), "--seed", str(seed), "--deadline", str(deadline)]
        words += ["--checkpoint", checkpoint] if checkpoint else []
        config = click.get_current_context().obj
        words = [*(["-f", config] if config else []), "try", *words, "--", *command]
        return image_trial.by_root(who, words, script, deadline)
    with tempfile.TemporaryDirectory(prefix="gandiva-try-") as path:
        trial = Trial(script, Path(path), steps, deadline, random.Random(seed), options)
        verdict = prove(trial)
    click.echo(verdict or "the losses are identical, bit for bit")
    return int(bool(verdict))


def own_way(script: Script, asked: str | None) -> JobOptions:
    """Return how the script saves itself where its ranks do not, as it would be at submission."""
    options = script_ways.settle(script, asked)
    if options.saves_by == "submitit":
        raise UsageError(
            "--checkpoint=submitit is not tried: what submitit runs writes its results beside those of the "
            "real job; next: try its function in a script of its own, with --checkpoint=signal:USR2"
        )
    return options


def prove(trial: Trial) -> str:
    """Run it alone, parked and moved, and say how far each came; return the verdict, "" for the same."""
    is_own = bool(trial.options.saves_by)
    run_alone(trial, "alone", 2 * trial.steps + BEHIND if is_own else 0)
    click.echo(f"alone:   {_count(trial.losses('alone'))}")
    run_parked(trial)
    click.echo(f"parked:  {_count(trial.losses('parked'))}, {trial.parks} parks")
    if trial.image:
        click.echo(f"image:   {trial.image}")
    verdict = compare(trial, "parked")
    stays = script_ways.why_never(trial.script)
    if not stays and not trial.by:
        stays = script_ways.why_not_tried(trial.script) if is_own else trial.unmoved + _ADD
    if stays:
        click.echo(f"moved:   no: {stays}")
        return verdict
    if verdict or not trial.by:
        return verdict or own_trial.run_own(trial)
    run_moved(trial)
    click.echo(f"moved:   {trial.by}: {_count(trial.losses('moved'))}, {trial.moves} moves")
    return compare(trial, "moved")


_ADD = (
    "; next: gandiva.attach() in it, or --checkpoint=self where it goes on from its own newest file whenever "
    "it is started, or --checkpoint=signal:USR1 where it saves and requeues itself upon a signal"
)


def run_parked(trial: Trial) -> None:
    """Run it again, parked every few boundaries."""
    with LoneNode(trial.path, "parked") as node:
        trial.start(node, "parked")
        node.wait(node.is_training, trial.deadline_s)
        if not node.is_training():
            check_end(trial, node, "parked")
            raise GandivaError(
                "no boundary was found: no optimizer of torch steps here; next: write "
                "`for batch in gandiva.steps(loader)` or `gandiva.step()` at the end of a mini-batch"
            )
        while node.status is None and not node.is_over() and not _is_parked_enough(trial):
            train_on(trial, node, STRIDE)
            if node.is_over() or not node.park(False, trial.deadline_s):
                _note_refusal(trial, node)
                continue
            trial.parks += 1
            if trial.parks == 1:
                trial.compare_behind("parked")
            trial.by = way_of(node) or trial.by
            trial.unmoved, trial.is_a_try = why_unmoved(node), is_a_try(node)
            if not trial.image and not trial.is_a_try:
                trial.image = image_told.told(node, trial.script, trial.by or trial.options.saves_by)
            _pause(node, trial.chance.random() * PARK_S)
            node.resume(trial.deadline_s)
        node.wait(lambda: trial.is_enough("parked"), trial.deadline_s)
        check_end(trial, node, "parked")


def _is_parked_enough(trial: Trial) -> bool:
    return (
        not trial.is_a_try
        and trial.is_enough("parked")
        and (trial.parks > 0 or len(trial.refused) >= REFUSALS)
    )


def run_moved(trial: Trial) -> None:
    """Run it again; let it save itself, kill it, and start it anew, a few times."""
    for life in range(MOVES + 1):
        with LoneNode(trial.path, "moved", restart=life) as node:
            trial.start(node, "moved")
            node.wait(lambda: node.is_training() and bool(way_of(node)), trial.deadline_s)
            train_on(trial, node, MOVE_AFTER)
            if life < MOVES and _save(trial, node):
                trial.moves += 1
                trial.compare_behind("moved")
                continue
            node.wait(lambda: trial.is_enough("moved"), trial.deadline_s)
            check_end(trial, node, "moved")
            return


def _save(trial: Trial, node: LoneNode) -> bool:
    """Let it save itself, its ranks asked as often as it takes; False when it ends before."""
    while not node.is_over() and node.status is None:
        if node.park(True, trial.deadline_s):
            return True
        errors = [text for text in map(error_text, node.views()) if text]
        if errors:
            raise GandivaError(f"it could not save itself: {errors[0]}")
    return False


def compare(trial: Trial, name: str) -> str:
    """Return "" when a run computed what the script computes alone; else which rule is broken."""
    got = trial.losses(name)
    _run_alone_as_far(trial, name, got)
    want = trial.losses(trial.alone)
    place = first_difference(want, got, trial.steps)
    if not place:
        if name == "parked" and not trial.parks:
            return f"it could not be parked: {trial.refused[-1] if trial.refused else 'it ended too soon'}"
        return ""
    if name == "moved":  # Alone and parked were the same: it is deterministic.
        return f"moved it computes something else ({place}): {_WHY_MOVED}"
    run_alone(trial, "again")
    again = trial.losses("again")
    for earlier, later in ((want, got), (got, again)):
        began = own_trial.find_place(earlier, later, trial.steps)
        if isinstance(began, own_trial.Place) and began.at > 0:
            return (
                f"a run went on behind mini-batch {began.at} of the run before, from a file of its own; "
                "next: --checkpoint=self, and that file within the directory it is started in"
            )
    if first_difference(want, again, trial.steps):
        return (
            f"the script is not deterministic: two runs alone differ too ({place}); "
            "next: seed its generators, torch.use_deterministic_algorithms(True); where it reads a file, "
            "--checkpoint=self, and that file within the directory it is started in"
        )
    return f"parked it computes something else ({place}): does it train by the clock, or in other threads?"


def _run_alone_as_far(trial: Trial, name: str, got: Losses) -> None:
    """Run it alone once more where it was ended before what is to be compared now."""
    alone = trial.losses(trial.alone)
    if any(len(alone.get(rank, ())) < min(trial.steps, len(values)) for rank, values in got.items()):
        trial.alone = f"alone-{name}"
        run_alone(trial, trial.alone)
        click.echo(f"alone:   {_count(trial.losses(trial.alone))}, for the comparison")


_WHY_MOVED = (
    "something that it trains on is not saved; next: give attach() every model, optimizer, scheduler and "
    "loader, on_save() the rest, and count by run.batch; a Trainer's train() wants last_checkpoint()"
)


def first_difference(want: Losses, got: Losses, steps: int) -> str:
    """Where two runs part, in words; "" where they do not within the first `steps` losses."""
    if want.keys() != got.keys():
        return f"ranks {sorted(want)} and {sorted(got)}"
    for rank in sorted(want):
        ours, theirs = want[rank][:steps], got[rank][:steps]
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                return f"loss {number} of rank {rank}: {float.fromhex(one)!r}, {float.fromhex(other)!r}"
        if len(ours) != len(theirs):
            return f"rank {rank}: {len(ours)} losses, {len(theirs)}"
    return ""


def _pause(node: LoneNode, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        node.look()


def _note_refusal(trial: Trial, node: LoneNode) -> None:
    if node.gang is not None and node.gang.last_error:
        trial.refused.append(node.gang.last_error)


def _count(losses: Losses) -> str:
    counts = sorted({len(values) for values in losses.values()})
    return f"{counts[-1] if counts else 0} losses on {len(losses)} rank{'s' * (len(losses) != 1)}"
