"""Why a model gave no answer, told apart by who has to do something about it."""

from __future__ import annotations

from typing import ClassVar, Final

from benchflow.errors import BenchflowError, Category

SETUP_CODES: Final = frozenset({"extra-missing", "key-missing", "key-refused", "model-unknown", "request-refused"})
"""The user has to change something; trying again does not help."""


class ModelFailure(BenchflowError):
    """A model that gave no answer. Whoever asked turns it into a failure of its own boundary.

    Codes: those of `SETUP_CODES`; `context-overflow`; and, of the provider or the way to it, `rate-limited`,
    `model-timeout`, `model-unreachable`, `bad-answer`.
    """

    category: ClassVar[Category] = "infrastructure"
    default_code: ClassVar[str] = "model-unreachable"

    def __init__(self, message: str, *, code: str, retry_after: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after
        """How long the provider asks to wait, in seconds."""

    @property
    def setup(self) -> bool:
        return self.code in SETUP_CODES

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later."""
        return not self.setup and self.code != "context-overflow"
