"""Whose failure it is when an action of a cube fails.

A `StepError` is an exception as data: the name of its class and its text. Lost connections, trouble of the machine or a
sandbox, and code that is broken whoever calls it, are not the agent's doing and never a reward. All else is: bad
arguments and actions that make no sense come as whatever the tool happens to raise.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Final

from benchflow.errors import Category, RuntimeFailure
from benchflow.rewards import Unscored
from benchflow.rewards.attribution import MAX_REASON
from cube.core import StepError

MACHINE: Final = frozenset(
    {
        "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError",
        "BrokenPipeError", "BlockingIOError", "MemoryError", "BrokenProcessPool", "gaierror", "herror",
        "URLError", "RemoteDisconnected", "BadStatusLine", "IncompleteRead", "IncompleteReadError",
        "ConnectError", "ConnectTimeout", "ReadError", "ReadTimeout", "WriteError", "WriteTimeout", "PoolTimeout",
        "NetworkError", "TransportError", "RemoteProtocolError", "ProtocolError", "MaxRetryError",
        "NewConnectionError", "NameResolutionError", "SSLError", "ClientConnectionError", "ClientConnectorError",
        "ClientOSError", "ServerDisconnectedError", "ServerTimeoutError", "ConnectionClosed", "ConnectionClosedError",
        "TargetClosedError",
    }
)  # fmt: skip
"""Connections and the machine, under the names that Python and the usual libraries have for them."""
BROKEN: Final = frozenset(
    {"ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError", "NotImplementedError", "SystemError"}
)
"""Code that no argument makes work."""
_PLAIN: Final = frozenset({"OSError", "TimeoutError"})
"""The machine's when they are Python's own; a browser calls it a TimeoutError when the agent clicks on nothing."""
_OF_ARGUMENTS: Final = frozenset(
    {errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTEMPTY, errno.EXDEV, errno.EBUSY, errno.ESPIPE}
)
"""What the system says of paths and values that it was given."""


def trouble_of(error: StepError) -> Unscored | None:
    """The verdict on a failed action that is not the agent's doing; None when it is."""
    category = _category(error)
    if category is None:
        return None
    code = "tool-crashed" if error.error_type in BROKEN else "tool-failed"
    reason = " ".join(f"An action of the cube failed: {error.error_type}: {error.exception_str}".split())
    return Unscored(category, "agent", code, reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 3]}...")


def _category(error: StepError) -> Category | None:
    name = error.error_type
    if name in MACHINE or (name in _PLAIN and not _from_library(error) and _errno(error) not in _OF_ARGUMENTS):
        return "infrastructure"
    if name in BROKEN:
        return "environment"
    return next((kind.category for kind in _kinds(RuntimeFailure) if kind.__name__ == name), None)


def _from_library(error: StepError) -> bool:
    """Whether the trace names the class with a module, as it does for all that are not built in."""
    return re.search(rf"^[\w.]+\.{re.escape(error.error_type)}(:|$)", error.stack_trace, re.MULTILINE) is not None


def _errno(error: StepError) -> int | None:
    found = re.match(r"\[Errno (\d+)\]", error.exception_str)
    return int(found[1]) if found else None


def _kinds(root: type[RuntimeFailure]) -> Iterator[type[RuntimeFailure]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)
