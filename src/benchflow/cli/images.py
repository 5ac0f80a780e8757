"""`bench images`: the base images of the local sandbox."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click

from benchflow.cli.arguments import PATH, json_option
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.pull_lines import PullLines, size
from benchflow.cli.terminal import emit, emit_json, note, printable
from benchflow.errors import EnvironmentFailure, InfrastructureFailure, UsageError
from benchflow.sandbox.backends import ENGINES

if TYPE_CHECKING:
    from benchflow.sandbox.images import ImageRecord, ImageRegistry
    from benchflow.sandbox.images.image_registry import Removal

AUTO: Final = "auto"
Add = Callable[["ImageRegistry"], Awaitable["ImageRecord"]]


@click.group()
def images() -> None:
    """Pull, register, list and remove images of the local sandbox.

    A Dockerfile's FROM and a package's docker_image refer to them by name.
    """


@images.command(short_help="Pull images from their registries.")
@click.argument("names", metavar="NAME[@DIGEST]...", nargs=-1, required=True)
@click.option("--platform", metavar="linux/ARCH", help="Platform of the images; default: that of this machine.")
@json_option
def pull(names: tuple[str, ...], platform: str | None, as_json: bool) -> int:
    """Pull images from their registries, replacing images of the same names.

    Names are those of Docker: `debian:12`, `ghcr.io/acme/base@sha256:...`. Exits with 1 if an image cannot be pulled.
    """
    from benchflow.sandbox.images.distribution import PullSettings, parse_reference, pull_image

    for name in names:
        parse_reference(name)
    if platform is not None and not re.fullmatch(r"linux(/[a-z0-9_]+){1,2}", platform):
        raise UsageError(f"{platform!r} is not a platform: linux/ARCHITECTURE, such as linux/arm64.", code="platform")
    settings = PullSettings("always", platform, on_progress=PullLines().show)
    pulled, failed = [], []
    for name in names:
        try:
            record = _registered(partial(pull_image, name=name, settings=settings))
        except EnvironmentFailure as error:
            failed.append({"name": name, **error.issue().to_dict()})
            if not as_json:
                note(f"error: {printable(str(error))}")
            continue
        pulled.append(record)
        if not as_json:
            emit(f"{record.name}  {record.pin}  {size(record.size)}, {_layers(record)}")
    if as_json:
        emit_json({"images": [record.to_dict() for record in pulled], "failed": failed})
    return FAILED if failed else GOOD


@images.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--rootfs", type=PATH, metavar="DIR|TAR", help="A root file system: a folder or a tar archive.")
@click.option("--oci", type=PATH, metavar="LAYOUT", help="An OCI layout or archive, or the output of docker save.")
@click.option("--debootstrap", metavar="SUITE", help="A minimal Debian or Ubuntu from the mirror of this machine.")
@click.option(
    "--engine",
    is_flag=False,
    flag_value="auto",
    metavar="[docker|podman]",
    help="The image NAME of this container engine.",
)
@click.option(
    "--recipe",
    metavar="RECIPE",
    help="A ready base from Debian's packages: debian, build, python, python-3.13, node, node-20, go, rust or java.",
)
@click.option(
    "--as",
    "stands_for",
    multiple=True,
    metavar="PATTERN",
    help="With --recipe: images that it replaces if they are not available, such as 'python:3.*'; repeatable.",
)
@json_option
def add(
    name: str | None,
    rootfs: Path | None,
    oci: Path | None,
    debootstrap: str | None,
    engine: str | None,
    recipe: str | None,
    stands_for: tuple[str, ...],
    as_json: bool,
) -> int:
    """Register an image as NAME, replacing any image of that name.

    Give its source with exactly one of --rootfs, --oci, --debootstrap, --engine and --recipe. A recipe has its own
    name, and is used as a substitute for images that public Dockerfiles name.
    """
    if stands_for and recipe is None:
        raise UsageError("--as needs --recipe.")
    with _Progress() as progress:
        record = _registered(_chosen(name, rootfs, oci, debootstrap, engine, (recipe, stands_for), progress))
    if as_json:
        emit_json(record.to_dict())
    else:
        emit(f"{record.name}  {record.digest}  {size(record.size)}, {_layers(record)}")
        if record.stands_for:
            emit(f"  substitute for {', '.join(record.stands_for)}")
    return GOOD


class _Progress:
    """What is done now and since when, on stderr: one line that changes on a terminal, else a line per phase."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._phase = ""

    def __call__(self, text: str) -> None:
        phase = text.partition(" (")[0]
        elapsed = f"{time.monotonic() - self._began:5.1f} s"
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{elapsed}  {text} …")
        elif phase != self._phase:
            sys.stderr.write(f"{elapsed}  {phase}\n")
        self._phase = phase
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._phase:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _chosen(
    given: str | None,
    rootfs: Path | None,
    oci: Path | None,
    suite: str | None,
    engine: str | None,
    recipe: tuple[str | None, tuple[str, ...]],
    progress: _Progress,
) -> Add:
    from benchflow.sandbox.images import image_sources as sources
    from benchflow.sandbox.images import recipes
    from benchflow.sandbox.images.image_registry import canonical_name

    made, stands_for = recipe
    if given is None and made is None:
        raise UsageError("Give the image a NAME.")
    if given is not None:
        canonical_name(given)
    name = given or ""
    ways: list[Add] = []
    if made is not None:
        if made not in recipes.RECIPES:
            raise UsageError(f"Unknown recipe {made!r}; available: {', '.join(recipes.RECIPES)}.")
        ways.append(
            lambda registry: recipes.add_recipe(registry, made, given, stands_for=stands_for, on_progress=progress)
        )
    if rootfs is not None:
        ways.append(lambda registry: sources.add_rootfs(registry, name, rootfs))
    if oci is not None:
        ways.append(lambda registry: sources.add_oci(registry, name, oci))
    if suite is not None:
        source = f"debootstrap {suite}"
        ways.append(lambda registry: recipes.add_debian(registry, name, suite, source=source, on_progress=progress))
    if engine is not None:
        if engine not in (AUTO, *ENGINES):
            raise UsageError(f"Unknown engine {engine!r}; available: {', '.join(ENGINES)}.")
        ways.append(lambda registry: _add_from_engine(registry, name, engine))
    if len(ways) != 1:
        raise UsageError("Give exactly one of --rootfs, --oci, --debootstrap, --engine and --recipe.")
    return ways[0]


async def _add_from_engine(registry: ImageRegistry, name: str, engine: str) -> ImageRecord:
    """From the named engine, or from the first one that works on this machine."""
    from benchflow.sandbox.backends import load_backend
    from benchflow.sandbox.images.image_sources import add_from_engine

    reasons = []
    for candidate in ENGINES if engine == AUTO else (engine,):
        backend = load_backend(candidate)
        try:
            status = await backend.status()
        finally:
            await backend.close()
        if status.usable:
            return await add_from_engine(registry, name, candidate)
        reasons.append(status.reason or f"{candidate} does not work on this machine.")
    raise InfrastructureFailure(f"No container engine is usable: {' '.join(reasons)}", code="tool-missing")


def _registered(add_image: Add) -> ImageRecord:
    import anyio

    async def work() -> ImageRecord:
        return await add_image(_registry())

    return anyio.run(work)


def _registry() -> ImageRegistry:
    from benchflow.files.user_store import default_store
    from benchflow.sandbox.images import ImageRegistry, LayerStore
    from benchflow.sandbox.images.filework import own_file_work

    return ImageRegistry(LayerStore(default_store(), own_file_work()))


@images.command("list")
@json_option
def list_images(as_json: bool) -> int:
    """List the registered images."""
    records = _registry().all()
    if as_json:
        emit_json({"images": [record.to_dict() for record in records]})
        return GOOD
    width = max((len(record.name) for record in records), default=0)
    for record in records:
        emit(f"{record.name:<{width}}  {size(record.size):>9}  {_layers(record)}  {printable(record.source)}")
    if not records:
        emit("No images are registered; `bench images pull` and `bench images add` register some.")
    return GOOD


@images.command(short_help="Remove images, and layers that nothing else uses.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@json_option
def remove(names: tuple[str, ...], as_json: bool) -> int:
    """Remove images, and the layers that no other image and no running process uses.

    Reports what is kept: layers of other images, layers in use, and environments built from Dockerfiles.
    """
    import anyio

    registry = _registry()
    missing = [name for name in names if registry.get(name) is None]
    if missing:
        raise UsageError(f"Unknown image {missing[0]}; `bench images list` shows the registered ones.")
    removals = [removal for name in names if (removal := anyio.run(registry.remove, name)) is not None]
    if as_json:
        emit_json({"removed": [_removal(registry, removal) for removal in removals], "cache": _cached(registry)})
        return GOOD
    for removal in removals:
        report = _removal(registry, removal)
        emit(f"removed {removal.record.name}  {size(report['freed'])} freed")
        for kept in report["shared"]:
            emit(f"  kept {kept['layers']} layers, {size(kept['size'])}, that {kept['image']} uses")
        if removal.busy:
            emit(f"  kept {len(removal.busy)} layers, {size(report['in_use'])}, that running processes use")
    left = _cached(registry)
    if left["count"]:
        emit(f"{left['count']} layers that no image needs are left, {size(left['size'])}: {left['command']} frees them")
    return GOOD


def _removal(registry: ImageRegistry, removal: Removal) -> dict[str, Any]:
    """What was freed and what stays, in bytes."""
    from benchflow.sandbox.images.cached_layers import size_of

    sizes = {key: size_of(registry.store.path(key)) for key in (*removal.shared, *removal.busy)}
    images = dict.fromkeys(name for users in removal.shared.values() for name in users)
    shared = []
    for image in images:
        keys = [key for key, users in removal.shared.items() if image in users]
        shared.append({"image": image, "layers": len(keys), "size": sum(sizes[key] for key in keys)})
    freed = max(removal.record.size - sum(sizes.values()), 0)
    in_use = sum(sizes[key] for key in removal.busy)
    return {"name": removal.record.name, "freed": freed, "shared": shared, "in_use": in_use}


def _cached(registry: ImageRegistry) -> dict[str, Any]:
    """The layers that no image needs, and the command that removes them."""
    from benchflow.sandbox.images.cached_layers import entries

    found = [entry for entry in entries(registry) if entry.kind in ("layers", "userland")]
    command = "bench cache prune --unused --kind layers --kind userland"
    return {"count": len(found), "size": sum(entry.size for entry in found), "command": command}


def _layers(record: ImageRecord) -> str:
    return f"{len(record.layers)} layer{'' if len(record.layers) == 1 else 's'}"
