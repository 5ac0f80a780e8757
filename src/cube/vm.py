"""The contract of virtual machines with a screen: settings, who starts them, and how they are used.

`LocalInfraConfig` launches such machines on this machine. A package that starts them on other machines implements
`VMBackend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from cube.resource_handle import ResourceHandle
from cube.typed import TypedBaseModel


class VMError(RuntimeError):
    """Base class of errors of virtual machines, and of their disk images."""


class VMLaunchError(VMError):
    """The machine did not start, or did not become ready."""


class VMConfig(TypedBaseModel):
    """A virtual machine that a task needs."""

    image: str
    """The disk image: a path or an address."""
    cpu_cores: int = 4
    ram_gb: float = 4.0
    disk_gb: float = 40.0
    screen_width: int = 1920
    screen_height: int = 1080
    headless: bool = True


class VM(ResourceHandle, ABC):
    """A machine that runs. `endpoint` is the address of the program inside that controls it."""

    @abstractmethod
    def stop(self) -> None:
        """End the machine; safe to call again."""

    @abstractmethod
    def restore(self, snapshot: str) -> None:
        """Return to a saved state."""

    @abstractmethod
    def screenshot(self) -> bytes:
        """The screen, as PNG."""

    def close(self) -> None:
        self.stop()


class VMBackend(TypedBaseModel, ABC):
    """Starts machines; can be sent as JSON."""

    @abstractmethod
    def launch(self, config: VMConfig) -> VM:
        """A machine that is ready."""
