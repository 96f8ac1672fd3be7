"""Numbers as options take them."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A number in a range, and a number: click lets nan through everywhere."""

    def __init__(self, least: float, most: float = 1e9) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it; BadParameter says the range."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number in the range {self._describe_range()}.", param, ctx)
        return number
