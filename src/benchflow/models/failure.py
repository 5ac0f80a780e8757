"""Why a model gave no reply, classified by who has to act."""

from __future__ import annotations

from typing import ClassVar, Final

from benchflow.errors import BenchflowError, Category

SETUP_CODES: Final = frozenset({"extra-missing", "key-missing", "key-refused", "model-unknown", "request-refused"})
"""The user has to change something; retrying does not help."""


class ModelFailure(BenchflowError):
    """A model gave no reply. The caller turns it into a failure of its own boundary.

    Codes: those of `SETUP_CODES`; `context-overflow`; and, for the provider or the connection, `rate-limited`,
    `model-timeout`, `model-unreachable`, `bad-answer`.
    """

    category: ClassVar[Category] = "infrastructure"
    default_code: ClassVar[str] = "model-unreachable"

    def __init__(self, message: str, *, code: str, retry_after: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after
        """The delay that the provider requests, in seconds."""

    @property
    def setup(self) -> bool:
        return self.code in SETUP_CODES

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later."""
        return not self.setup and self.code != "context-overflow"
