"""A named image: from the local store or from its registry, as the policy says.

A command asks a registry that gives no answer once, a process that keeps running again after a while (`ask_again_sec`).
What talks to registries is imported when one has to be asked.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.distribution.manifests import machine_platform
from benchflow.sandbox.images.distribution.reference import Reference, parse_reference
from benchflow.sandbox.images.image_registry import ImageRecord, ImageRegistry
from benchflow.sandbox.pulling import PullSettings

if TYPE_CHECKING:
    from benchflow.sandbox.images.distribution.registries import Endpoint

Learned = TypeVar("Learned")
UnavailableReason = Literal["not-pulled", "not-found", "refused", "unreachable", "failed"]
"""The policy forbids it; the registry does not have it, refuses it, gives no answer, or fails."""


class ImageUnavailable(EnvironmentFailure):
    """The image cannot be had, so that what comes next in order may be used in its place.

    Its code is `image-missing`. An image that exists and is not what it should be is an `EnvironmentFailure` with
    another code (`image-invalid`, `image-digest-differs`), and nothing replaces it.
    """

    def __init__(self, message: str, reason: UnavailableReason) -> None:
        super().__init__(message, code="image-missing", path="environment")
        self.reason: Final = reason


@dataclass(slots=True)
class _Learned:
    """What this process knows about registries, and since when, so that each is asked once in a while."""

    unreachable: dict[Endpoint, tuple[str, float]] = field(default_factory=dict)
    unavailable: dict[tuple[object, ...], tuple[ImageUnavailable, float]] = field(default_factory=dict)
    pulled: set[tuple[object, ...]] = field(default_factory=set)
    contacts: dict[Endpoint, threading.Lock] = field(default_factory=dict)

    def clear(self) -> None:
        for part in (self.unreachable, self.unavailable, self.pulled, self.contacts):
            part.clear()


LEARNED: Final = _Learned()


def pinned_reference(name: str, settings: PullSettings) -> Reference:
    """The image that `name` means: with the digest that is pinned for it, if there is one."""
    reference = parse_reference(name)
    pins = {parse_reference(pinned): digest for pinned, digest in settings.pins.items()}
    return reference.pinned(pins.get(reference))


async def obtain_image(images: ImageRegistry, name: str, *, settings: PullSettings | None = None) -> ImageRecord:
    """The image of that name: from the store or, where the policy says so, from its registry.

    Raises `ImageUnavailable`, or an `EnvironmentFailure` for an image that must not be used.
    """
    settings = settings or PullSettings()
    reference = pinned_reference(name, settings)
    record = images.get(str(reference))
    if record is not None and not _is_for(record, settings):
        record = None
    if record is not None and (settings.policy != "always" or _key(images, reference, settings) in LEARNED.pulled):
        await images.require_whole(record)
        return record
    if settings.policy == "never":
        message = f"The image {reference} is not in the store of this machine, and `--pull never` forbids to pull it."
        raise ImageUnavailable(message, "not-pulled")
    return await pull_image(images, name, settings=settings)


async def pull_image(images: ImageRegistry, name: str, *, settings: PullSettings | None = None) -> ImageRecord:
    """The image as its registry has it now, registered under its name; asked for once per process. Errors as above."""
    from benchflow.sandbox.images.distribution.transfer import Transfer

    settings = settings or PullSettings()
    reference = pinned_reference(name, settings)
    key = _key(images, reference, settings)
    images.store.prepare()
    async with images.store.locked(f"pull-{hashlib.sha256(str(reference).encode()).hexdigest()[:24]}"):
        if (learned := recent(LEARNED.unavailable.get(key), settings)) is not None:
            raise learned
        known = images.get(str(reference))
        if key in LEARNED.pulled and known is not None and _is_for(known, settings):
            return known
        try:
            record = await Transfer(images, reference, settings).run()
        except ImageUnavailable as error:
            if error.reason != "failed":  # a busy server or a broken connection may be better next time
                LEARNED.unavailable[key] = (error, time.monotonic())
            raise
        LEARNED.pulled.add(key)
        return record


def recent(learned: tuple[Learned, float] | None, settings: PullSettings) -> Learned | None:
    """What was learned, unless it is time to ask again."""
    if learned is None:
        return None
    fact, since = learned
    limit = settings.ask_again_sec
    return fact if limit is None or time.monotonic() - since < limit else None


def _key(images: ImageRegistry, reference: Reference, settings: PullSettings) -> tuple[object, ...]:
    secrets = hashlib.sha256(repr(sorted(settings.credentials.items())).encode()).hexdigest()
    return (images.store.root, reference, settings.platform, secrets)


def _is_for(record: ImageRecord, settings: PullSettings) -> bool:
    return record.platform in (None, settings.platform or machine_platform())
