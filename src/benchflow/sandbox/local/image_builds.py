"""Images for the local backend: builds RUN instructions in its sandboxes, on its store.

The commands of a build see this machine's certificates and proxies, taken from the variables that programs here use
themselves. They are part of no layer and of no cache key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.errors import UsageError
from benchflow.sandbox.images.build.bases import HOST, Bases, Obtain, missing_image
from benchflow.sandbox.images.build.builder import BuildOptions, DockerfileBuilder
from benchflow.sandbox.images.build.run_step import RunStep
from benchflow.sandbox.images.distribution import ImageUnavailable, obtain_image
from benchflow.sandbox.images.filework import FileWork
from benchflow.sandbox.images.image_registry import ImageRecord, ImageRegistry, make_image
from benchflow.sandbox.images.layer_store import LayerStore
from benchflow.sandbox.images.layer_tree import Branch, FolderBranch, LayerBranch, LayerTree, is_opaque
from benchflow.sandbox.images.substitutes import lacking
from benchflow.sandbox.protocol import ExecResult, Image, OutputSink, SandboxSpec
from benchflow.sandbox.pulling import PullSettings

if TYPE_CHECKING:
    from benchflow.sandbox.local.local_backend import LocalBackend

from benchflow.files import write_atomic
from benchflow.sandbox.protocol import Mount

_SCRIPT: Final = "/dev/shm/build-script"  # noqa: S108 (memory of the sandbox itself, outside every layer)
_TRUST: Final = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_INSIDE: Final = "/dev/benchflow/ca-certificates.crt"
_APT: Final = "/dev/benchflow/apt.conf"
"""In the sandbox's own `/dev`, which is part of no layer."""


@dataclass(frozen=True, slots=True)
class LocalImages:
    """What the local backend knows about images."""

    backend: LocalBackend

    async def registry(self) -> ImageRegistry:
        """The images of the backend's store, in the form its sandboxes take them."""
        mapped = os.geteuid() != 0 and (await self.backend.runtime()).launcher.identity == "range"
        return ImageRegistry(LayerStore(self.backend.store.root, FileWork(mapped)))

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
        return await builder.build(context, chosen)

    async def _host_branches(self) -> Sequence[Branch]:
        from benchflow.sandbox.local.beside import host_profile as hostprofile

        spec = SandboxSpec(image=Image(HOST, HOST))
        environment = await self.backend.environment(spec, "root", prepared=False)
        layer = self.backend.store.path(environment.host or "")
        return [LayerBranch(layer), *(FolderBranch(path, Path(path)) for path in hostprofile.IN_PLACE)]

    async def _run_layer(self, image: Image, step: RunStep, layer: Path, on_output: OutputSink) -> ExecResult:
        settings = machine_settings() if step.network.mode != "none" else MachineSettings({})
        if (await self.backend.runtime()).launcher.identity == "single":
            settings = with_one_user(settings, self.backend.store.root)
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
        finally:
            with anyio.CancelScope(shield=True):
                await sandbox.stop()
        _tidy(layer)
        return result


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


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Variables and read-only files for the commands of a build."""

    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()


def with_one_user(settings: MachineSettings, folder: Path) -> MachineSettings:
    """`settings` for a sandbox whose users are all the same one: apt must not try to become another.

    The settings for apt are in a file below `folder`.
    """
    file = folder / "apt.conf"
    if not file.exists():
        write_atomic(file, 'APT::Sandbox::User "root";\n')
    env = {**settings.env, "APT_CONFIG": _APT}
    return MachineSettings(env, (*settings.mounts, Mount(file, _APT)))


def machine_settings(environment: Mapping[str, str] | None = None) -> MachineSettings:
    """This machine's certificates and proxies; certificates only where a variable here names a bundle."""
    given = os.environ if environment is None else environment
    env = {name: given[name] for lower in _PROXIES for name in (lower, lower.upper()) if name in given}
    named = [name for name in _TRUST if given.get(name)]
    bundle = next((Path(given[name]) for name in named if Path(given[name]).is_file()), None)
    if bundle is None:
        return MachineSettings(env)
    env |= dict.fromkeys(_TRUST, _INSIDE)
    return MachineSettings(env, (Mount(bundle.resolve(), _INSIDE),))
