"""Containers that are launched in this process, and whether they were stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

from cube.container import Container, ContainerBackend


@contextmanager
def watched_launches() -> Iterator[list[Container]]:
    """The containers that any known backend launches while the block runs."""
    launched: list[Container] = []
    changed: list[tuple[type, Any]] = []
    for kind in _kinds(ContainerBackend):  # type: ignore[type-abstract]  # the root of the backends
        own = kind.__dict__.get("launch")
        if own is not None and not getattr(own, "__isabstractmethod__", False):
            changed.append((kind, own))
            type.__setattr__(kind, "launch", _recording(own, launched))
    try:
        yield launched
    finally:
        for kind, own in changed:
            type.__setattr__(kind, "launch", own)


def _recording(launch: Callable[..., Container], launched: list[Container]) -> Callable[..., Container]:
    @wraps(launch)
    def record(*arguments: Any, **options: Any) -> Container:
        container = launch(*arguments, **options)
        if all(container is not known for known in launched):  # a backend may call the launch of its base
            launched.append(container)
        return container

    return record


def _kinds(root: type[ContainerBackend]) -> Iterator[type[ContainerBackend]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def stop_running(containers: Iterable[Container]) -> list[str]:
    """Stop those that still run, and return their ids."""
    running: list[str] = []
    for container in containers:
        try:
            if not container.get_status().running:
                continue
            running.append(str(container.id))
        except Exception:  # noqa: BLE001, S112  # what cannot be asked any more is gone
            continue
        with suppress(Exception):  # it is reported as running, whatever becomes of this
            container.stop()
    return running
