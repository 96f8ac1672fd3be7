"""What `gandiva doctor` says of the ways to move a script: which suit it, by which lines, what to add."""

from __future__ import annotations

from gandiva_slurm.cli import script_ways
from gandiva_slurm.cli.script_ways import Line, Script
from gandiva_slurm.model.snapshot import JobOptions

_AGAIN = "it goes on from its own newest file whenever it is started; what it did since is done again"
_NOTHING = (
    "gandiva.attach() in it, by which nothing is lost; or let it save itself now and then, and go on from "
    "its newest file whenever it is started, with --gandiva-checkpoint=self"
)


def own_way(script: Script) -> str:
    """Return how it would be moved by its own checkpoint as it is, in a word; "" not at all."""
    return "" if script_ways.why_never(script) else script_ways.settle(script).saves_by


def ways(script: Script, by: str) -> dict[str, str]:
    """Say of each --gandiva-checkpoint what it would do; `by`: how its ranks save it, where they do."""
    never = script_ways.why_never(script)
    if never:
        return {"auto": f"not: {never}"}
    if by:
        seen = _seen(script.marks.get("attach"), script.marks.get("trainer"))
        return {"auto": f"by {by}: its ranks save it, nothing is lost{seen}"}
    choices = {"signal": _signal(script), "submitit": _submitit(script), "self": _self(script)}
    found = {name: text for name, text in choices.items() if text and name != own_way(script)}
    return {"auto": _auto(script, bool(found)), **found}


def _auto(script: Script, has_choice: bool) -> str:
    """What becomes of it without another word, or by its own --gandiva-checkpoint."""
    _, asked = script.flags.get("checkpoint", ("", None))
    if own_way(script):
        said = asked or script.marks.get("--requeue") or script.marks.get("requeues")
        options = script_ways.settle(script)
        if options.own_signal is None:
            return _told(options) + _seen(said)
        return _told(options) + _seen(script.signal, said) + _to_add(script)
    if asked:
        return f"not, as it asks{_seen(asked)}"
    found = _seen(script.marks.get("attach"), script.marks.get("trainer"))
    though = f", though this was found, see `moved`{found}" if found else ""
    return f"not{though}; next: {'one of these' if has_choice else _NOTHING}"


def _signal(script: Script) -> str:
    """What --gandiva-checkpoint=signal would do; "" where nothing says that it heeds one."""
    marks, own = script.marks, script_ways.own_signal(script)
    catches = marks.get("traps") or marks.get("catches")
    if own is None and script.signal is not None:
        return f"not: no signal that is known here{_seen(script.signal)}"
    if "submitit" in marks or (own is None and catches is None):
        return ""
    if own is None:
        to = "B:" if "traps" in marks else ""
        caught = catches.caught if catches else ""
        by = "" if to else ", srun before the training"
        add = f"#SBATCH --signal={to}{caught}@90 and --requeue{by}"
        return f"it handles SIG{caught}{_seen(catches)}; next: {add}"
    told = _told(script_ways.settle(script, "signal")) + _seen(script.signal, catches) + _to_add(script)
    return f"{told}; next: --gandiva-checkpoint=signal, or #SBATCH --requeue, then auto does it"


def _to_add(script: Script) -> str:
    """What a script that has a --signal lacks to be moved by it."""
    marks, own = script.marks, script_ways.own_signal(script)
    text = ""
    if "traps" not in marks and "catches" not in marks:
        text += "; no handler was seen: without one the signal ends it, as by self"
    if own and not own.to_batch and "srun" not in marks:
        text += f"; it starts no step by srun, so nobody hears it; next: --signal=B:{own.name}@{own.grace_s}"
    return text


def _submitit(script: Script) -> str:
    line = script.marks.get("submitit")
    if line is None:
        return ""
    told = _told(script_ways.settle(script, "submitit")) + _seen(line, script.marks.get("checkpoint()"))
    add = "--gandiva-checkpoint=submitit, if its function has a checkpoint(): else it begins anew"
    return f"{told}; next: {add}"


def _self(script: Script) -> str:
    line = script.marks.get("loads")
    return f"--gandiva-checkpoint=self, if {_AGAIN}{_seen(line)}" if line else ""


def _told(options: JobOptions) -> str:
    own = options.own_signal
    if own is None:
        return f"by self: {_AGAIN}"
    to, how = "its batch shell" if own.to_batch else "its steps", options.saves_by
    return f"by {how}: upon SIG{own.name} to {to} it saves and requeues itself, within {own.grace_s} s"


def _seen(*lines: Line | None) -> str:
    shown = "; ".join(str(line) for line in lines if line is not None)
    return f" ({shown})" if shown else ""
