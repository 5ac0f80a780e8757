"""Decides which boundary is responsible for a failure.

Every exception becomes an `Unscored` of exactly one category: the errors in `benchflow.errors` have their own, failures
of the machine and cancellation are recognised, everything else belongs to the boundary whose code was running.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchflow.errors import BenchflowError, Category, RuntimeFailure
from benchflow.rewards.verdict import Phase, Unscored

MAX_REASON: Final = 2_000
CANCELLED: Final = "Cancelled before it finished."

_MACHINE: Final[Mapping[int, str]] = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.ENOMEM: "out-of-memory",
    errno.EMFILE: "out-of-descriptors",
    errno.ENFILE: "out-of-descriptors",
    errno.EAGAIN: "out-of-processes",
}


class Attributed(RuntimeFailure):
    """A failure that has been attributed; `verdict` is its record."""

    def __init__(self, verdict: Unscored) -> None:
        super().__init__(verdict.reason, code=verdict.code)
        self.verdict = verdict


@dataclass(eq=False, slots=True)
class attributed:  # noqa: N801 - used as a statement: with attributed("agent", "plan")
    """Attribute any failure in the block: it is raised as `Attributed`, with the failure as its cause.

    The innermost block takes precedence. Cancellation and interrupts pass through unchanged.
    """

    boundary: Category
    phase: Phase

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, Attributed):
            raise Attributed(attribute(error, self.boundary, self.phase)) from error


def attribute(error: BaseException, boundary: Category, phase: Phase) -> Unscored:
    """The verdict for an exception raised by `boundary` in `phase`; never raises."""
    if isinstance(error, Attributed):
        return error.verdict
    if isinstance(error, BaseExceptionGroup):
        return _attribute_group(error, boundary, phase)
    category, code = _boundary_of(error, boundary)
    return Unscored(category, phase, code, _reason(error))


def _attribute_group(group: BaseExceptionGroup[BaseException], boundary: Category, phase: Phase) -> Unscored:
    """The first failure that is not a cancellation, since the others were cancelled because of it."""
    verdicts = [attribute(error, boundary, phase) for error in group.exceptions]
    failures = [verdict for verdict in verdicts if verdict.category != "cancelled"]
    return (failures or verdicts)[0]


def _boundary_of(error: BaseException, boundary: Category) -> tuple[Category, str]:
    from asyncio import CancelledError

    match error:
        case BenchflowError():
            return error.category, error.code
        case CancelledError() | GeneratorExit():
            return "cancelled", "cancelled"
        case KeyboardInterrupt() | SystemExit():
            return "cancelled", "interrupted"
        case TimeoutError():
            return boundary, "timeout"
        case MemoryError():
            return "infrastructure", "out-of-memory"
        case ConnectionError():
            return boundary, "connection-lost"
        case OSError():
            return "infrastructure", _MACHINE.get(error.errno or 0, "os-error")
        case _:
            return boundary, "crashed"


def _reason(error: BaseException) -> str:
    """One line: the message of a `BenchflowError`, otherwise type and message."""
    from asyncio import CancelledError

    if isinstance(error, CancelledError | GeneratorExit):
        return CANCELLED  # the exception's own text is about scopes and tasks of the event loop
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an unknown exception may fail to print
        text = ""
    if not isinstance(error, BenchflowError) or not text:
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 3]}..."
