"""The log of a server: one JSON object per line on standard error. Never headers, bodies or secret values."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from benchflow.files.redaction import make_redactor, secret_values

Log = Callable[..., None]
"""Called with the name of an event and its fields."""


class ServerLog:
    """Writes events; a reader that is gone never stops the server."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream: Final = stream if stream is not None else sys.stderr
        self._redactor: Final = make_redactor(secret_values(os.environ))

    def __call__(self, event: str, **fields: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps(self._redactor.data({"time": now, "event": event, **fields}), default=str)
        try:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            return


class LogHandler(logging.Handler):
    """What libraries say (the HTTP server, for instance) as lines of the same log: the message, never a traceback."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log: Final = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        cause = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
        self._log("warning", source=record.name, message=record.getMessage().splitlines()[0], **cause)


def silent(event: str, **fields: Any) -> None:
    """A log that nobody reads."""
    del event, fields
