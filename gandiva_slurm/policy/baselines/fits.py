"""Optimus' two models, fitted: loss over epochs, speed over workers (EuroSys 2018).

All coefficients are at least zero. Of so few of them, every subset may be tried: the best non-negative fit
is the plain least-squares fit on its own support, and that is solved in fractions, so nothing is ill-
conditioned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

#: The floor of a loss curve is searched on so many points, then so often again around the best.
FLOOR_POINTS, FLOOR_ROUNDS = 32, 12


class Seen(NamedTuple):
    """A speed that was measured, in mini-batches a second."""

    servers: int
    workers: int
    speed: float


@dataclass(frozen=True, slots=True)
class SyncSpeed:
    """1 / (a·B/w + b + c·w/p + d·w + e·p): synchronous training, p servers, w workers, B its whole batch."""

    batch: float
    coefficients: tuple[float, ...]

    def at(self, servers: int, workers: int) -> float:
        """Mini-batches a second; 0 where the model says nothing."""
        step_s = _dot(self.coefficients, _sync_terms(self.batch, servers, workers))
        return 1 / step_s if step_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class AsyncSpeed:
    """w / (a + b·w/p + c·w + d·p): asynchronous training."""

    coefficients: tuple[float, ...]

    def at(self, servers: int, workers: int) -> float:
        """Mini-batches a second of all workers; 0 where the model says nothing."""
        step_s = _dot(self.coefficients, _async_terms(servers, workers))
        return workers / step_s if step_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class LossCurve:
    """1 / (b0·k + b1) + b2 after k epochs."""

    b0: float
    b1: float
    b2: float

    def at(self, epochs: float) -> float:
        """Tell the loss after so many epochs."""
        return 1 / (self.b0 * epochs + self.b1) + self.b2

    def converges_at(self, drop: float) -> float:
        """Epochs after which one more lowers the loss by less than `drop`."""
        if self.b0 <= 0:
            return 0.0
        if drop <= 0:
            return math.inf
        # 1/(x - b0) - 1/x = drop, with x = b0·k + b1 after the epoch
        x = (self.b0 + math.sqrt(self.b0**2 + 4 * self.b0 / drop)) / 2
        return max(0.0, (x - self.b1) / self.b0)


def fit_sync(seen: Sequence[Seen], batch: float = 1.0) -> SyncSpeed:
    """Fit synchronous speed so that relative errors are least."""
    rows = [[term * each.speed for term in _sync_terms(batch, each.servers, each.workers)] for each in seen]
    return SyncSpeed(batch, least_squares(rows, [1.0] * len(rows)))


def fit_workers(speeds: Sequence[tuple[int, float]]) -> SyncSpeed:
    """Fit synchronous speed by workers alone, each with a server: only a/w, b and d·w can be told apart."""
    rows = [[speed / workers, speed, speed * workers] for workers, speed in speeds]
    a, b, d = least_squares(rows, [1.0] * len(rows))
    return SyncSpeed(1.0, (a, b, 0.0, d, 0.0))


def fit_async(seen: Sequence[Seen]) -> AsyncSpeed:
    """Fit asynchronous speed so that relative errors are least."""
    rows = [
        [term * each.speed / each.workers for term in _async_terms(each.servers, each.workers)]
        for each in seen
    ]
    return AsyncSpeed(least_squares(rows, [1.0] * len(rows)))


def fit_loss(losses: Sequence[tuple[float, float]]) -> LossCurve:
    """Fit (epochs, loss) pairs, at least two: the floor by search, the rest is a line for each floor."""
    top = min(loss for _, loss in losses)
    low, high = 0.0, top
    for _ in range(FLOOR_ROUNDS):
        step = (high - low) / FLOOR_POINTS
        floors = [low + step * n for n in range(FLOOR_POINTS)]
        best = min(floors, key=lambda floor: _loss_error(losses, floor))
        low, high = max(0.0, best - step), min(top, best + step)
    return _line_for(losses, best)


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, ...]:
    """Find the coefficients, none below zero, of least squared error; the fewest of them where several do."""
    exact = [[Fraction(cell) for cell in row] for row in rows]
    wanted = [Fraction(value) for value in values]
    width = len(rows[0])
    best: tuple[Fraction, tuple[Fraction, ...]] | None = None
    for count in range(width + 1):
        for support in combinations(range(width), count):
            found = _solve_on(exact, wanted, support)
            if found is None or any(value < 0 for value in found):
                continue
            whole = tuple(found[support.index(n)] if n in support else Fraction(0) for n in range(width))
            error = sum(
                ((_dot_exact(whole, row) - value) ** 2 for row, value in zip(exact, wanted, strict=True)),
                Fraction(0),
            )
            if best is None or error < best[0]:
                best = (error, whole)
    assert best is not None  # the empty support always fits
    return tuple(float(value) for value in best[1])


def _sync_terms(batch: float, servers: int, workers: int) -> tuple[float, ...]:
    return (batch / workers, 1.0, workers / servers, float(workers), float(servers))


def _async_terms(servers: int, workers: int) -> tuple[float, ...]:
    return (1.0, workers / servers, float(workers), float(servers))


def _line_for(losses: Sequence[tuple[float, float]], floor: float) -> LossCurve:
    """Fit the curve with this floor: 1/(loss - floor) is a line; its errors weigh as they do in the loss."""
    total = mean_k = mean_y = 0.0
    points = [(epochs, 1 / (loss - floor), (loss - floor) ** 4) for epochs, loss in losses if loss > floor]
    for epochs, value, weight in points:
        total, mean_k, mean_y = total + weight, mean_k + weight * epochs, mean_y + weight * value
    mean_k, mean_y = mean_k / total, mean_y / total
    spread = sum(weight * (epochs - mean_k) ** 2 for epochs, _, weight in points)
    slant = sum(weight * (epochs - mean_k) * (value - mean_y) for epochs, value, weight in points)
    b0 = max(0.0, slant / spread) if spread > 0 else 0.0
    return LossCurve(b0, max(1e-12, mean_y - b0 * mean_k), floor)


def _loss_error(losses: Sequence[tuple[float, float]], floor: float) -> float:
    curve = _line_for(losses, floor)
    return sum((curve.at(epochs) - loss) ** 2 for epochs, loss in losses)


def _solve_on(
    rows: Sequence[Sequence[Fraction]], values: Sequence[Fraction], support: tuple[int, ...]
) -> list[Fraction] | None:
    """Solve the normal equations on these columns; None when the columns hang together."""
    size = len(support)
    system = [[sum((row[i] * row[j] for row in rows), Fraction(0)) for j in support] for i in support]
    for at, i in enumerate(support):
        system[at].append(sum((row[i] * value for row, value in zip(rows, values, strict=True)), Fraction(0)))
    for at in range(size):
        pivot = next((n for n in range(at, size) if system[n][at]), None)
        if pivot is None:
            return None
        system[at], system[pivot] = system[pivot], system[at]
        system[at] = [cell / system[at][at] for cell in system[at]]
        for n in range(size):
            if n != at:
                system[n] = [a - system[n][at] * b for a, b in zip(system[n], system[at], strict=True)]
    return [line[size] for line in system]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _dot_exact(one: Sequence[Fraction], other: Sequence[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(one, other, strict=True)), Fraction(0))
