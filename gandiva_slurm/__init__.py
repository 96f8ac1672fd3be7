"""Share GPUs between deep-learning training jobs on Slurm.

In a training script: `import gandiva_slurm as gandiva`, then `gandiva.steps(loader)` or `gandiva.step()`, or
`gandiva.attach(...)` for a training that can also be moved. Importing this package costs next to nothing: the
names below are fetched when they are first used.
"""

__version__ = "0.1.0"
__all__ = [
    "BadCheckpoint",
    "ElasticSampler",
    "attach",
    "checkpoint_dir",
    "on_load",
    "on_save",
    "restarted",
    "step",
    "steps",
]

#: As in typing, which is too dear to import here; type checkers know the names.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from gandiva_slurm.client.elastic import ElasticSampler
    from gandiva_slurm.client.errors import BadCheckpoint
    from gandiva_slurm.client.loop import step, steps
    from gandiva_slurm.client.run import attach, on_load, on_save

    checkpoint_dir: "str | None"
    restarted: bool

_HOMES = {
    "BadCheckpoint": "errors",
    "ElasticSampler": "elastic",
    "attach": "run",
    "on_load": "run",
    "on_save": "run",
    "step": "loop",
    "steps": "loop",
}


def __getattr__(name):  # type: ignore[no-untyped-def]
    """Fetch a name at its first use (PEP 562); `restarted` and `checkpoint_dir` at every use."""
    if name == "restarted":
        from gandiva_slurm.client import run

        return run.restarted()
    if name == "checkpoint_dir":
        from gandiva_slurm.client import start

        return start.checkpoint_dir()
    if name not in _HOMES:
        raise AttributeError(f"gandiva_slurm has no {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    home = import_module(f"gandiva_slurm.client.{_HOMES[name]}")
    value = globals()[name] = getattr(home, name)
    return value
