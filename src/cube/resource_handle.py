"""`ResourceHandle`: something that an infrastructure has started, and how to reach and stop it.

It exists in this process only and is never sent. Containers are handles too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from cube.resource import InfraConfig, ResourceConfig


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(eq=False)
class ResourceHandle(ABC):
    """A started resource. `with handle:` closes it at the end."""

    run_id: str = ""
    resource: ResourceConfig | None = None
    infra: InfraConfig | None = None
    endpoint: str | None = None
    """The address of its main service."""
    endpoints: dict[str, str] = field(default_factory=dict)
    """The addresses of all its services, by name."""
    created_at: datetime = field(default_factory=_now)
    expires_at: datetime | None = None

    @abstractmethod
    def close(self) -> None:
        """End the resource; safe to call again, and from several threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
