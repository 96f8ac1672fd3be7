"""Share GPUs between deep-learning training jobs on Slurm.

In a training script: `import gandiva_slurm as gandiva`, then `gandiva.steps(loader)` or `gandiva.step()`.
Importing this package costs next to nothing: the names below are fetched when they are first used.
"""

__version__ = "0.1.0"
__all__ = ["step", "steps"]

#: As in typing, which is too dear to import here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from gandiva_slurm.client.loop import step, steps


def __getattr__(name):  # type: ignore[no-untyped-def]
    """Fetch `step` or `steps` at its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"gandiva_slurm has no {name!r}; it has {' and '.join(__all__)}")
    from gandiva_slurm.client import loop

    value = globals()[name] = getattr(loop, name)
    return value
