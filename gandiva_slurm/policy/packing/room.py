"""Whether trainings fit on one GPU at the same time, and how much of it each may take. Pure; all in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: What a process has on its GPU beside its tensors: the CUDA context, kernels, libraries. An estimate on the
#: safe side, not measured.
CONTEXT_BYTES = 1 << 30
#: Fragments: of what tensors take at their peak, one part in so many more is asked for.
FRAGMENTS = 16


def need(peak: int) -> int:
    """Return what a training takes of its GPU at most, whose tensors took `peak` so far."""
    return peak + peak // FRAGMENTS + CONTEXT_BYTES


def room(card: int, held: Iterable[int]) -> int:
    """Return what is left of a GPU by those who are parked on it; `held` is what each keeps there."""
    return card - sum(one + CONTEXT_BYTES for one in held)


def fits(card: int, peaks: Iterable[int], held: Iterable[int]) -> bool:
    """True when trainings of these peaks can have a GPU at the same time, beside those parked on it."""
    return sum(map(need, peaks)) <= room(card, held)


def caps(free: int, peaks: Sequence[int]) -> list[int]:
    """Share out what is free among those that run: each its peak, and the same part of what is left.

    Their contexts are no tensors, and are taken off first. Empty where not even the peaks fit.
    """
    spare = free - sum(peaks) - len(peaks) * CONTEXT_BYTES
    return [peak + spare // len(peaks) for peak in peaks] if peaks and spare >= 0 else []
