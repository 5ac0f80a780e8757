"""One image from a registry into the local store, verified on the way.

Nothing is registered unless the whole image is there and every blob is what its digest says.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

import anyio
import anyio.to_thread

from benchflow.errors import BenchflowError, EnvironmentFailure
from benchflow.sandbox.images.distribution.blobs import Stopped, download
from benchflow.sandbox.images.distribution.credentials import Found, find_credentials, parse_secret, secret_for
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
from benchflow.sandbox.images.distribution.pull import LEARNED, ImageUnavailable, UnavailableReason, recent
from benchflow.sandbox.images.distribution.reference import Reference
from benchflow.sandbox.images.distribution.registries import Endpoint, read_registries
from benchflow.sandbox.images.distribution.registry_client import NETWORK_ERRORS, Refused, RegistryClient, Unreachable
from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.images.image_registry import ImageRecord, ImageRegistry
from benchflow.sandbox.images.image_sources import register, tree_size, unpack_blob
from benchflow.sandbox.pulling import PullProgress, PullSettings

_AT_ONCE: Final = 4
_DOWNLOADS: Final = "downloads"
"""In the store: the beginnings of blobs, by digest."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """A manifest or index, with its digest and the server that has it."""

    client: RegistryClient
    digest: str
    values: Mapping[str, Any]


class Transfer:
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
            answer = await anyio.to_thread.run_sync(self._listed, top.client, digest, abandon_on_cancel=True)
        manifests = tuple(dict.fromkeys((top.digest, answer.digest)))
        known = self._images.get(str(self._reference))
        if known is not None and known.manifests == manifests and await self._is_complete(known):
            return known
        manifest = image_manifest(answer.values)
        config = await anyio.to_thread.run_sync(self._config, answer.client, manifest.config, abandon_on_cancel=True)
        settings = _settings(config)
        size = await self._layers(answer.client, manifest)
        return register(
            self._images,
            str(self._reference),
            [layer.digest.removeprefix("sha256:") for layer in manifest.layers],
            settings,
            f"registry {answer.client.registry}",
            size,
            manifests=manifests,
            platform=f"{config.get('os', 'linux')}/{config.get('architecture', '')}",
        )

    async def _is_complete(self, known: ImageRecord) -> bool:
        """Whether a registered image is for the platform and all its layers are as they were made."""
        if known.platform != "/".join(self._platform()):
            return False
        return all([await self._images.store.is_whole(key) for key in known.layers])

    def _platform(self) -> list[str]:
        """System and architecture that are wanted."""
        return (self._settings.platform or machine_platform()).split("/")[:2]

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
                    if endpoint == endpoints[-1]:
                        self._refuse_other_digest(client)
                    failures.append(("not-found", f"{endpoint.registry} does not have it"))
                else:
                    failures.append(("failed", f"{endpoint.registry} answered {error.code} {error.reason}"))
            except NETWORK_ERRORS as error:
                failures.append(("failed", f"the connection to {endpoint.registry} broke ({error})"))
            except EnvironmentFailure as error:
                if endpoint == endpoints[-1]:
                    raise
                failures.append(("failed", f"the mirror {endpoint.registry} is of no use: {error}"))
        reasons = "; ".join(reason for _, reason in failures)
        message = f"The image {self._reference} cannot be pulled: {reasons}."
        raise ImageUnavailable(message, failures[-1][0])

    def _credentials(self, endpoint: Endpoint) -> Found:
        """The package's for the registry it names; for mirrors only the user's own."""
        own = self._settings.credentials
        if own and endpoint.registry == self._reference.registry:
            value = secret_for(self._reference, own)
            given = parse_secret(value, self._reference) if value is not None else None
            if given is not None:
                return Found(given)
        found = find_credentials(self._reference, endpoint.registry)
        if found.credentials is None and self._settings.unset:
            names = ", ".join(self._settings.unset)
            return Found(problem=f"the package takes them from {names}, which is not set on this machine")
        return found

    def _reach(self, client: RegistryClient, endpoint: Endpoint) -> None:
        with LEARNED.contacts.setdefault(endpoint, threading.Lock()):
            if (reason := recent(LEARNED.unreachable.get(endpoint), self._settings)) is not None:
                raise Unreachable(reason)
            try:
                client.contact()
            except Unreachable as error:
                LEARNED.unreachable[endpoint] = (str(error), time.monotonic())
                raise

    def _manifest(self, client: RegistryClient, target: str) -> _Answer:
        data, _ = client.read(f"manifests/{target}", {"Accept": ACCEPTED})
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if target.startswith("sha256:") and digest != target:
            raise _differs(f"{client.registry} sent {digest} for {target} of {self._reference}")
        return _Answer(client, digest, read_manifest(data))

    def _listed(self, client: RegistryClient, digest: str) -> _Answer:
        """A manifest that an index of the same server lists."""
        try:
            return self._manifest(client, digest)
        except (Refused, Unreachable, *NETWORK_ERRORS) as error:
            if isinstance(error, HTTPError) and error.code == 404:
                raise invalid(f"its index lists {digest}, which {client.registry} does not have") from error
            message = (
                f"The image {self._reference} cannot be pulled: {client.registry} did not send the manifest "
                f"{digest} ({error})."
            )
            raise ImageUnavailable(message, "refused" if isinstance(error, Refused) else "failed") from error

    def _refuse_other_digest(self, client: RegistryClient) -> None:
        """Where the tag exists with another content, that is what has to be said."""
        reference = self._reference
        if reference.digest is None or reference.tag is None:
            return
        try:
            found = self._manifest(client, reference.tag).digest
        except (Refused, Unreachable, *NETWORK_ERRORS):  # `HTTPError` among them
            return
        raise _differs(
            f"{client.registry} has {replace(reference, digest=None)} as {found}, but {reference.digest} is required"
        )

    def _config(self, client: RegistryClient, blob: Descriptor) -> Mapping[str, Any]:
        try:
            data, _ = client.read(f"blobs/{blob.digest}", {})
        except (Refused, Unreachable, *NETWORK_ERRORS) as error:
            raise self._broke(client, blob, error) from error
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != blob.digest:
            raise invalid(f"the blob {blob.digest} does not match its digest")
        try:
            values = json.loads(data)
        except ValueError as error:
            raise invalid(f"its configuration {blob.digest} is not JSON") from error
        if not isinstance(values, dict):
            raise invalid(f"its configuration {blob.digest} is not an object")
        system, architecture = values.get("os", "linux"), values.get("architecture", "")
        wanted = self._platform()
        if [system, architecture] != wanted:
            raise invalid(f"it is for {system}/{architecture}, not for {'/'.join(wanted)}")
        return values

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


def _settings(config: Mapping[str, Any]) -> ImageConfig:
    try:
        return ImageConfig.from_oci(config.get("config") or {})
    except (AttributeError, TypeError, ValueError) as error:
        raise invalid(f"its configuration is malformed ({error})") from error


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
