"""A named image into the local store: from the store itself, or from its registry, as the policy says.

Nothing is registered unless the whole image is there and every blob is what its digest says.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.error import HTTPError

import anyio
import anyio.to_thread

from benchflow.errors import BenchflowError, EnvironmentFailure
from benchflow.sandbox.images.distribution.blobs import Stopped, download
from benchflow.sandbox.images.distribution.credentials import Found, find_credentials
from benchflow.sandbox.images.distribution.manifests import (
    ACCEPTED,
    Descriptor,
    Manifest,
    choose_platform,
    image_manifest,
    invalid,
    is_index,
    machine_platform,
    read_manifest,
)
from benchflow.sandbox.images.distribution.reference import Reference, parse_reference
from benchflow.sandbox.images.distribution.registries import Endpoint, read_registries
from benchflow.sandbox.images.distribution.registry_client import NETWORK_ERRORS, Refused, RegistryClient, Unreachable
from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.images.image_registry import ImageRecord, ImageRegistry
from benchflow.sandbox.images.image_sources import register, tree_size, unpack_blob
from benchflow.sandbox.pulling import Credentials, PullProgress, PullSettings

_AT_ONCE: Final = 4
_DOWNLOADS: Final = "downloads"
"""In the store: the beginnings of blobs, by digest."""
ANY_IMAGE: Final = "*"


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
    """What this process knows about registries, so that each is asked once."""

    unreachable: dict[Endpoint, str] = field(default_factory=dict)
    unavailable: dict[tuple[object, ...], ImageUnavailable] = field(default_factory=dict)
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
    settings = settings or PullSettings()
    reference = pinned_reference(name, settings)
    key = _key(images, reference, settings)
    images.store.prepare()
    async with images.store.locked(f"pull-{hashlib.sha256(str(reference).encode()).hexdigest()[:24]}"):
        if key in LEARNED.unavailable:
            raise LEARNED.unavailable[key]
        known = images.get(str(reference))
        if key in LEARNED.pulled and known is not None and _is_for(known, settings):
            return known
        try:
            record = await _Pull(images, reference, settings).run()
        except ImageUnavailable as error:
            LEARNED.unavailable[key] = error
            raise
        LEARNED.pulled.add(key)
        return record


def _key(images: ImageRegistry, reference: Reference, settings: PullSettings) -> tuple[object, ...]:
    return (images.store.root, reference, settings.platform, *sorted(settings.credentials))


def _is_for(record: ImageRecord, settings: PullSettings) -> bool:
    return record.platform in (None, settings.platform or machine_platform())


@dataclass(frozen=True, slots=True)
class _Answer:
    """A manifest or index, with its digest and the server that has it."""

    client: RegistryClient
    digest: str
    values: Mapping[str, Any]


class _Pull:
    """One image on its way."""

    def __init__(self, images: ImageRegistry, reference: Reference, settings: PullSettings) -> None:
        self._images = images
        self._reference = reference
        self._settings = settings
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done = self._total = 0

    async def run(self) -> ImageRecord:
        top = await anyio.to_thread.run_sync(self._find, abandon_on_cancel=True)
        answer = top
        if is_index(top.values):
            digest = choose_platform(top.values, self._settings.platform)
            answer = await anyio.to_thread.run_sync(self._manifest, top.client, digest, abandon_on_cancel=True)
        manifests = tuple(dict.fromkeys((top.digest, answer.digest)))
        known = self._images.get(str(self._reference))
        if known is not None and known.manifests == manifests:
            await self._images.require_whole(known)
            return known
        manifest = image_manifest(answer.values)
        config = await anyio.to_thread.run_sync(self._config, answer.client, manifest.config, abandon_on_cancel=True)
        size = await self._layers(answer.client, manifest)
        return register(
            self._images,
            str(self._reference),
            [layer.digest.removeprefix("sha256:") for layer in manifest.layers],
            ImageConfig.from_oci(config.get("config") or {}),
            f"registry {answer.client.registry}",
            size,
            manifests=manifests,
            platform=f"{config.get('os', 'linux')}/{config.get('architecture', '')}",
        )

    def _find(self) -> _Answer:
        """The image from the first server that has it."""
        failures: list[tuple[UnavailableReason, str]] = []
        endpoints = read_registries().endpoints(self._reference.registry)
        for endpoint in endpoints:
            client = RegistryClient(endpoint, self._reference.repository, partial(self._credentials, endpoint))
            try:
                self._reach(client, endpoint)
                return self._manifest(client, self._reference.target)
            except Unreachable as error:
                failures.append(("unreachable", f"{endpoint.registry} cannot be reached: {error}"))
            except Refused as error:
                failures.append(("refused", str(error)))
            except HTTPError as error:
                error.close()
                if error.code == 404:
                    self._refuse_other_digest(client)
                    failures.append(("not-found", f"{endpoint.registry} does not have it"))
                else:
                    failures.append(("failed", f"{endpoint.registry} answered {error.code} {error.reason}"))
            except NETWORK_ERRORS as error:
                failures.append(("failed", f"the connection to {endpoint.registry} broke ({error})"))
        reasons = "; ".join(reason for _, reason in failures)
        message = f"The image {self._reference} cannot be pulled: {reasons}."
        raise ImageUnavailable(message, failures[-1][0])

    def _credentials(self, endpoint: Endpoint) -> Found:
        """The package's for the registry it names; for mirrors only the user's own."""
        own = self._settings.credentials
        if own and endpoint.registry == self._reference.registry:
            by_image = {parse_reference(name): value for name, value in own.items() if name != ANY_IMAGE}
            untagged = replace(self._reference, digest=None)
            given = by_image.get(self._reference) or by_image.get(untagged) or own.get(ANY_IMAGE)
            if given is not None and given != Credentials():
                return Found(given)
        return find_credentials(self._reference, endpoint.registry)

    def _reach(self, client: RegistryClient, endpoint: Endpoint) -> None:
        with LEARNED.contacts.setdefault(endpoint, threading.Lock()):
            if endpoint in LEARNED.unreachable:
                raise Unreachable(LEARNED.unreachable[endpoint])
            try:
                client.contact()
            except Unreachable as error:
                LEARNED.unreachable[endpoint] = str(error)
                raise

    def _manifest(self, client: RegistryClient, target: str) -> _Answer:
        data, _ = client.read(f"manifests/{target}", {"Accept": ACCEPTED})
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if target.startswith("sha256:") and digest != target:
            raise _differs(f"{client.registry} sent {digest} for {target} of {self._reference}")
        return _Answer(client, digest, read_manifest(data))

    def _refuse_other_digest(self, client: RegistryClient) -> None:
        """Where the tag exists with another content, that is what has to be said."""
        reference = self._reference
        if reference.digest is None or reference.tag is None:
            return
        try:
            found = self._manifest(client, reference.tag).digest
        except HTTPError as error:
            error.close()
            return
        raise _differs(
            f"{client.registry} has {replace(reference, digest=None)} as {found}, but {reference.digest} is required"
        )

    def _config(self, client: RegistryClient, blob: Descriptor) -> Mapping[str, Any]:
        try:
            data, _ = client.read(f"blobs/{blob.digest}", {})
        except (HTTPError, Refused, *NETWORK_ERRORS) as error:
            raise self._broke(client, blob, error) from error
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != blob.digest:
            raise invalid(f"the blob {blob.digest} does not match its digest")
        values = json.loads(data)
        system, architecture = values.get("os", "linux"), values.get("architecture", "")
        wanted = (self._settings.platform or machine_platform()).split("/")
        if [system, architecture] != wanted[:2]:
            raise invalid(f"it is for {system}/{architecture}, not for {'/'.join(wanted)}")
        return dict(values)

    async def _layers(self, client: RegistryClient, manifest: Manifest) -> int:
        """Every layer in the store, several at a time; gives the bytes of their files."""
        layers = list({layer.digest: layer for layer in manifest.layers}.values())
        sizes: dict[str, int] = {}
        self._total = sum(layer.size for layer in layers)
        self._report(0)
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def one(layer: Descriptor) -> None:
            sizes[layer.digest] = await self._layer(client, layer, limiter)

        await _all([partial(one, layer) for layer in layers], self._stop)
        self._report(0, finished=True)
        return sum(sizes[layer.digest] for layer in manifest.layers)

    async def _layer(self, client: RegistryClient, layer: Descriptor, limiter: anyio.CapacityLimiter) -> int:
        store = self._images.store
        key = layer.digest.removeprefix("sha256:")
        size = 0

        async def make(target: Path) -> None:
            nonlocal size
            folder = store.root / _DOWNLOADS
            folder.mkdir(exist_ok=True)
            path = folder / key
            async with limiter:
                await anyio.to_thread.run_sync(self._download, client, layer, path)
            size = (await store.work.run(unpack_blob, path, target)).size
            path.unlink()

        path, existed = await store.layer(key, make)
        if existed:
            self._report(layer.size)
            size = await store.work.run(tree_size, path)
        return size

    def _download(self, client: RegistryClient, layer: Descriptor, path: Path) -> None:
        try:
            download(client, layer, path, on_bytes=self._report, stop=self._stop)
        except (HTTPError, Refused) as error:
            raise self._broke(client, layer, error) from error

    def _broke(self, client: RegistryClient, blob: Descriptor, error: Exception) -> EnvironmentFailure:
        message = (
            f"The image {self._reference} cannot be pulled: {client.registry} gave no blob {blob.digest} ({error})."
        )
        return EnvironmentFailure(message, code="pull-failed", path="environment")

    def _report(self, count: int, *, finished: bool = False) -> None:
        with self._lock:
            self._done += count
            if self._settings.on_progress is not None:
                self._settings.on_progress(PullProgress(str(self._reference), self._done, self._total, finished))


def _differs(reason: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"The image is refused: {reason}.", code="image-digest-differs", path="environment")


async def _all(works: Sequence[Callable[[], Awaitable[None]]], stop: threading.Event) -> None:
    """Run all at once; the first failure ends the others, whose threads `stop` ends, and is raised."""
    failures: list[BenchflowError] = []

    async def watch() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stop.set()

    async with anyio.create_task_group() as outer:
        outer.start_soon(watch)
        async with anyio.create_task_group() as group:

            async def run(work: Callable[[], Awaitable[None]]) -> None:
                try:
                    await work()
                except Stopped:
                    pass
                except BenchflowError as error:
                    failures.append(error)
                    stop.set()
                    group.cancel_scope.cancel()

            for work in works:
                group.start_soon(run, work)
        outer.cancel_scope.cancel()
    if failures:
        raise failures[0]
