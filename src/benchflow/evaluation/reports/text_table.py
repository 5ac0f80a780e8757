"""Tables for a terminal, and numbers in their cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from benchflow.record import Estimate

_LARGE: Final = 1e9


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None, keep_last: bool = False
) -> Iterator[str]:
    """Columns as wide as they need to be, separated by two spaces; the last is cut where a row exceeds `width`.

    A last column without any content is left out, unless it is kept.
    """
    lines = [list(header), *(list(row) for row in rows)]
    if rows and not keep_last and not any(row[-1] for row in rows):
        lines = [line[:-1] for line in lines]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        row = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        room = None if width is None else max(width, sum(widths[:-1]) + 2 * len(widths) + 10)
        yield row if room is None or len(row) <= room else row[: room - 2].rstrip() + " …"


def number(value: float | None, sign: str = "") -> str:
    """A reward or mean for people: three decimals, a power of ten if it is very large, a dash if it is not known."""
    if value is None:
        return "–"
    return f"{value:{sign}.3f}" if abs(value) < _LARGE else f"{value:{sign}.3e}"


def estimate_cell(estimate: Estimate, sign: str = "") -> str:
    """A value with its interval, if that is known."""
    value = number(estimate.value, sign)
    return value if estimate.low is None else f"{value} [{number(estimate.low, sign)}, {number(estimate.high, sign)}]"
