"""Images for the local backend: builds RUN instructions in its sandboxes, on its store.

The commands of a build see this machine's certificates and proxies and, where the user allows it, its settings for
package mirrors (`benchflow.sandbox.machine_settings`). They are part of no layer and of no cache key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.errors import EnvironmentFailure, UsageError
from benchflow.files.redaction import make_redactor
from benchflow.sandbox.images.build.bases import HOST, Bases, Obtain, missing_image
from benchflow.sandbox.images.build.builder import BuildOptions, DockerfileBuilder
from benchflow.sandbox.images.build.run_step import RunStep
from benchflow.sandbox.images.distribution import ImageUnavailable, obtain_image
from benchflow.sandbox.images.filework import FileWork
from benchflow.sandbox.images.image_registry import ImageRecord, ImageRegistry, make_image
from benchflow.sandbox.images.layer_store import LayerStore
from benchflow.sandbox.images.layer_tree import Branch, FolderBranch, LayerBranch, LayerTree, is_opaque
from benchflow.sandbox.images.substitutes import lacking
from benchflow.sandbox.machine_settings.allowance import Laid, allows
from benchflow.sandbox.machine_settings.collected import Settings, current, lay, trust_and_proxies
from benchflow.sandbox.protocol import ExecResult, Image, OutputSink, SandboxSpec
from benchflow.sandbox.pulling import PullSettings

if TYPE_CHECKING:
    from benchflow.sandbox.local.local_backend import LocalBackend

_SCRIPT: Final = "/dev/shm/build-script"  # noqa: S108 (memory of the sandbox itself, outside every layer)
_APT_SOURCES: Final = "/etc/apt/sources.list"


@dataclass(frozen=True, slots=True)
class LocalImages:
    """What the local backend knows about images."""

    backend: LocalBackend

    async def registry(self) -> ImageRegistry:
        """The images of the backend's store, in the form its sandboxes take them."""
        mapped = os.geteuid() != 0 and (await self.backend.runtime()).launcher.identity == "range"
        return ImageRegistry(LayerStore(self.backend.store.root, FileWork(mapped), self.backend.store.use))

    async def resolve(self, name: str, pull: PullSettings | None = None) -> Image:
        """An image of the store, pulled as the policy says, or an `EnvironmentFailure` that says how to provide it."""
        registry = await self.registry()
        record = await self._obtain(pull)(registry, name)
        await registry.require_whole(record)
        return registry.image(record)

    def _obtain(self, pull: PullSettings | None) -> Obtain:
        settings = pull or self.backend.pulling

        async def obtain(registry: ImageRegistry, name: str) -> ImageRecord:
            try:
                return await obtain_image(registry, name, settings=settings)
            except ImageUnavailable as error:
                raise missing_image(name, str(error)) from error

        return obtain

    async def substitute(self, name: str, base_image: str | None) -> Image | None:
        """What replaces an image that is not available, with what it lacks; None if nothing does."""
        registry = await self.registry()
        stage = await Bases(registry, base_image, self._obtain(None)).substitute(name)
        if stage is None:
            return None
        host = await self._host_branches() if stage.on_host else ()
        branches: list[Branch | Path] = [*host, *(registry.store.path(key) for key in stage.layers)]
        lacks = await registry.store.work.look(lacking, name, (), LayerTree(branches))
        image = make_image(registry.store, stage.layers, stage.config, base=stage.base)
        digest = HOST if stage.on_host else image.digest
        return replace(image, digest=digest, fidelity="substituted", instead_of=stage.instead_of, lacks=lacks)

    async def build(self, context: Path, dockerfile: str, options: Mapping[str, object]) -> Image:
        """The environment of a Dockerfile; see `DockerfileBuilder.build`. `options` are fields of `BuildOptions`."""
        known = {item.name for item in fields(BuildOptions)}
        options = dict(options)
        pull = options.pop("pull", None)
        if unknown := sorted(set(options) - known):
            raise UsageError(f"Unknown build option {unknown[0]!r}.", code="build-option")
        chosen = BuildOptions(dockerfile=dockerfile, **options)  # type: ignore[arg-type]  # names checked above, values by the caller
        obtain = self._obtain(pull if isinstance(pull, PullSettings) else None)
        builder = DockerfileBuilder(await self.registry(), self._run_layer, self._host_branches, obtain)
        try:
            return await builder.build(context, chosen)
        except EnvironmentFailure as error:  # the last lines of a command may quote an address with its password
            error.args = (make_redactor(_settings().secrets).text(str(error)),)
            raise

    async def _host_branches(self) -> Sequence[Branch]:
        from benchflow.sandbox.local.beside import host_profile as hostprofile

        spec = SandboxSpec(image=Image(HOST, HOST))
        environment = await self.backend.environment(spec, "root", prepared=False)
        layer = self.backend.store.path(environment.host or "")
        return [LayerBranch(layer), *(FolderBranch(path, Path(path)) for path in hostprofile.IN_PLACE)]

    async def _run_layer(self, image: Image, step: RunStep, layer: Path, on_output: OutputSink) -> ExecResult:
        settings = await self._laid(image, step)
        spec = SandboxSpec(
            image=image,
            network=step.network,
            workdir=step.workdir,
            user="root",
            hostname="build",
            mounts=settings.mounts,
            labels={"benchflow.build": "run"},
        )
        sandbox = self.backend.create(spec, upper=layer)
        command: Sequence[str] = step.command
        try:
            await sandbox.start()
            if step.script is not None:
                await sandbox.write_file(_SCRIPT, step.script, mode=0o755)
                command = (_SCRIPT,)
            env: Mapping[str, str] = {**settings.env, **step.env}
            result = await sandbox.exec(
                command, user=step.user or "root", env=env, cwd=step.workdir, on_output=on_output, max_output=1 << 16
            )
            for request in () if result.ok else sandbox.unreached_addresses():
                port = "" if request.port is None else f" port {request.port}"
                on_output("stderr", f"\n[not reached: {request.host}{port}: {request.reason}]\n".encode())
        finally:
            with anyio.CancelScope(shield=True):
                await sandbox.stop()
        _tidy(layer)
        return result

    async def _laid(self, image: Image, step: RunStep) -> Laid:
        """What the command gets from this machine; apt's own list of sources is only known from the image."""
        settings = _settings()
        sources: Mapping[str, str] = {}
        if settings.apt_mirrors:
            below = await self._host_branches() if image.base == HOST else ()
            branches: list[Branch | Path] = [*below, *image.layers]
            sources = await (await self.registry()).store.work.look(read_apt_sources, branches)
        one_user = (await self.backend.runtime()).launcher.identity == "single"
        return lay(settings, step.network.mode, sources=sources, one_user=one_user)


def _settings() -> Settings:
    return current() if allows("build") else trust_and_proxies()


def read_apt_sources(branches: list[Branch | Path]) -> dict[str, str]:
    """The texts of apt's lists of sources in an environment, by path."""
    tree = LayerTree(branches)
    folder = f"{_APT_SOURCES}.d"
    found = tree.find(folder)
    names = tree.names(folder) if found is not None and found.is_directory else []
    paths = [_APT_SOURCES, *(f"{folder}/{name}" for name in names if name.endswith((".list", ".sources")))]
    return {path: text for path in paths if (text := tree.read_text(path)) is not None}


def _tidy(layer: Path) -> None:
    """Remove mount points of the command: empty files and folders that it did not write."""
    for place in ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev", "/proc", "/sys", "/usr"):
        _remove_if_empty(layer, place)


def _remove_if_empty(layer: Path, place: str) -> None:
    parts = [part for part in place.split("/") if part]
    while parts:
        # The command may have put a link anywhere; what is found here is reached through folders of the layer alone.
        entry, _ = LayerBranch(layer).find(parts)
        if entry is None:
            return
        try:
            if entry.is_directory and not is_opaque(entry.source, entry.status):
                entry.source.rmdir()
            elif entry.is_file and entry.status.st_size == 0:
                entry.source.unlink()
            else:
                return
        except OSError:
            return
        parts.pop()
