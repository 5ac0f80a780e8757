"""`bench cache`: what is kept on disk to be used again, and how to free it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import click

from benchflow.cli.arguments import json_option
from benchflow.cli.failures import GOOD
from benchflow.cli.pull_lines import size as size_text
from benchflow.cli.terminal import emit, emit_json
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.sandbox.images.cached_layers import Entry
    from benchflow.sandbox.images.image_registry import ImageRegistry

_KINDS: Final = ("layers", "userland", "proofs", "gains", "downloads", "leftovers", "packages", "repositories")
_AGES: Final = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_SIZES: Final = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@click.group()
def cache() -> None:
    """Show and prune cached images, layers and packages.

    Kinds: images (layers of registered images; see `bench images remove`), layers (of environments built from
    Dockerfiles), userland (copies of this machine's userland and prepared users), proofs (of isolation), gains
    (baseline and ceiling scores), downloads (partial blobs of interrupted pulls), leftovers (of
    killed builds and imports), packages (taken from bundles and registries, and where gym tasks were
    listed), repositories (fetched for registries). Everything except images is recreated when needed.
    """


@cache.command(short_help="Show count, size and last use of each kind.")
@json_option
def show(as_json: bool) -> int:
    """Show count, size and last use of each kind, and how much of it running processes use."""
    from benchflow.sandbox.images.cached_layers import KINDS, entries

    registry = _registry()
    found = entries(registry)
    rows = []
    for kind in KINDS:
        own = [entry for entry in found if entry.kind == kind]
        last = max((entry.used for entry in own), default=None)
        size = sum(entry.size for entry in own)
        in_use = sum(entry.in_use for entry in own)
        rows.append({"kind": kind, "count": len(own), "size": size, "last_used": last, "in_use": in_use})
    if as_json:
        emit_json({"store": str(registry.store.root), "kinds": rows, "size": sum(entry.size for entry in found)})
        return GOOD
    for kind in KINDS:
        own = [entry for entry in found if entry.kind == kind]
        ages = [_age(entry.used) for entry in sorted(own, key=lambda entry: entry.used)]
        used = f"  used between {ages[0]} and {ages[-1]} ago" if ages else ""
        used += f", {busy} in use" if (busy := sum(entry.in_use for entry in own)) else ""
        emit(f"{kind:<12} {len(own):>6}  {size_text(sum(entry.size for entry in own)):>9}{used}")
    emit(f"{'total':<12} {len(found):>6}  {size_text(sum(entry.size for entry in found)):>9}  {registry.store.root}")
    return GOOD


@cache.command(short_help="Remove cached data that can be recreated.")
@click.option("--older-than", metavar="AGE", help="Remove data not used for this long: 12h, 30d, 2w.")
@click.option(
    "--max-size", metavar="SIZE", help="Remove the least recently used data until the rest fits: 500MB, 20GB."
)
@click.option("--unused", is_flag=True, help="Remove everything that no registered image and no process needs.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(_KINDS), help="Only this kind; repeatable.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
def prune(
    older_than: str | None, max_size: str | None, unused: bool, kinds: tuple[str, ...], dry_run: bool, as_json: bool
) -> int:
    """Remove cached data that can be recreated, except layers of registered images and data that running processes use.

    A layer is removed together with everything built on it. Safe to run beside sandboxes, builds and pulls.
    """
    import anyio

    from benchflow.sandbox.images.cached_layers import KINDS, entries, prunable, remove

    if older_than is None and max_size is None and not unused:
        raise UsageError("Specify what to remove: --older-than AGE, --max-size SIZE or --unused.")
    if unused and (older_than is not None or max_size is not None):
        raise UsageError("--unused removes everything; leave out --older-than and --max-size.")
    before = None if older_than is None else time.time() - _number(older_than, _AGES, "--older-than", "30d")
    limit = None if max_size is None else int(_number(max_size.upper(), _SIZES, "--max-size", "20GB"))
    registry = _registry()
    wanted = [kind for kind in KINDS if kind in (kinds or _KINDS)]
    found = entries(registry)
    chosen = prunable(found, kinds=wanted, before=before, max_size=limit)

    async def removed() -> list[Entry]:
        return [entry for entry in chosen if await remove(registry, entry)]

    gone = chosen if dry_run else anyio.run(removed)
    busy = [entry for entry in found if entry.kind in wanted and entry.kind != "images" and entry.in_use]
    busy += [entry for entry in chosen if entry not in gone]
    if as_json:
        emit_json({"dry_run": dry_run, **_summary(gone), "removed": _listed(gone), "in_use": _listed(busy)})
        return GOOD
    for entry in gone if dry_run else ():
        emit(f"{entry.kind:<9} {size_text(entry.size):>9}  {entry.path.name}")
    emit(f"{'would remove' if dry_run else 'removed'} {len(gone)} entries, {size_text(_summary(gone)['size'])}")
    if busy:
        emit(f"kept {len(busy)} entries that running processes use, {size_text(_summary(busy)['size'])}")
    return GOOD


def _summary(found: list[Entry]) -> dict[str, int]:
    return {"count": len(found), "size": sum(entry.size for entry in found)}


def _listed(found: list[Entry]) -> list[dict[str, object]]:
    return [{"kind": entry.kind, "name": entry.path.name, "size": entry.size} for entry in found]


def _registry() -> ImageRegistry:
    from benchflow.files.user_store import default_store
    from benchflow.sandbox.images import ImageRegistry, LayerStore
    from benchflow.sandbox.images.filework import own_file_work

    return ImageRegistry(LayerStore(default_store(), own_file_work()))


def _number(text: str, units: dict[str, int], option: str, example: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2] not in units:
        raise UsageError(f"{option} takes a value such as {example}, not {text!r}.")
    return float(match[1]) * units[match[2]]


def _age(used: float) -> str:
    seconds = max(time.time() - used, 0)
    unit = next((unit for unit in ("w", "d", "h") if seconds >= 2 * _AGES[unit]), "m")
    return f"{seconds / _AGES[unit]:.0f}{unit}"
