"""`bench cache`: what the local sandbox keeps on disk, and how to free it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import click

from benchflow.cli.arguments import json_option
from benchflow.cli.failures import GOOD
from benchflow.cli.terminal import emit, emit_json
from benchflow.errors import InfrastructureFailure, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchflow.sandbox.images.cached_layers import Entry
    from benchflow.sandbox.images.image_registry import ImageRegistry

_KINDS: Final = ("layers", "userland", "proofs", "gains")
_AGES: Final = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_SIZES: Final = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@click.group()
def cache() -> None:
    """Show and free what the local sandbox keeps on disk.

    Kinds: images (layers of registered images; see `bench images remove`), layers (of environments built from
    Dockerfiles), userland (copies of this machine's userland and prepared users), proofs (of isolation), gains
    (baseline and ceiling scores). Everything but images is made again when it is needed.
    """


@cache.command()
@json_option
def show(as_json: bool) -> int:
    """Show count, size and last use of each kind."""
    from benchflow.sandbox.images.cached_layers import KINDS, entries

    registry = _registry()
    found = entries(registry)
    rows = []
    for kind in KINDS:
        own = [entry for entry in found if entry.kind == kind]
        last = max((entry.used for entry in own), default=None)
        rows.append({"kind": kind, "count": len(own), "size": sum(entry.size for entry in own), "last_used": last})
    if as_json:
        emit_json({"store": str(registry.store.root), "kinds": rows, "size": sum(entry.size for entry in found)})
        return GOOD
    for kind in KINDS:
        own = [entry for entry in found if entry.kind == kind]
        ages = [_age(entry.used) for entry in sorted(own, key=lambda entry: entry.used)]
        used = f"  used between {ages[0]} and {ages[-1]} ago" if ages else ""
        emit(f"{kind:<9} {len(own):>6}  {_size(sum(entry.size for entry in own)):>9}{used}")
    emit(f"{'total':<9} {len(found):>6}  {_size(sum(entry.size for entry in found)):>9}  {registry.store.root}")
    return GOOD


@cache.command()
@click.option("--older-than", metavar="AGE", help="Remove what was not used for this long: 12h, 30d, 2w.")
@click.option("--max-size", metavar="SIZE", help="Remove what was used least recently until all fits: 500MB, 20GB.")
@click.option("--unused", is_flag=True, help="Remove everything that no registered image needs.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(_KINDS), help="Only this kind; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
def prune(
    older_than: str | None, max_size: str | None, unused: bool, kinds: tuple[str, ...], dry_run: bool, as_json: bool
) -> int:
    """Remove what can be made again. Layers of registered images stay.

    Refused while sandboxes or pulls use the store, except with --dry-run or for proofs and gains alone.
    """
    import anyio

    from benchflow.sandbox.images.cached_layers import prunable, remove

    if older_than is None and max_size is None and not unused:
        raise UsageError("Say what to remove: --older-than AGE, --max-size SIZE or --unused.")
    if unused and (older_than is not None or max_size is not None):
        raise UsageError("--unused removes everything; leave out --older-than and --max-size.")
    before = None if older_than is None else time.time() - _number(older_than, _AGES, "--older-than", "30d")
    limit = None if max_size is None else int(_number(max_size.upper(), _SIZES, "--max-size", "20GB"))
    registry = _registry()
    from benchflow.sandbox.images.cached_layers import KINDS, entries

    wanted = [kind for kind in KINDS if kind in (kinds or _KINDS)]
    chosen = prunable(entries(registry), kinds=wanted, before=before, max_size=limit)
    if not dry_run:
        _require_idle(registry, chosen)
        for entry in chosen:
            _require_idle(registry, [entry])
            anyio.run(remove, registry, entry)
    freed = sum(entry.size for entry in chosen)
    if as_json:
        parts = [{"kind": entry.kind, "name": entry.path.name, "size": entry.size} for entry in chosen]
        emit_json({"dry_run": dry_run, "count": len(chosen), "size": freed, "removed": parts})
    else:
        emit(f"{'would remove' if dry_run else 'removed'} {len(chosen)} entries, {_size(freed)}")
    return GOOD


def _require_idle(registry: ImageRegistry, chosen: Iterable[Entry]) -> None:
    """Layers go only while nothing can need them, which is asked again before each: a run or a pull may just begin."""
    if any(entry.kind in ("layers", "userland") for entry in chosen) and registry.store.in_use():
        message = "Sandboxes or pulls are using this store; prune after they have ended, or only `--kind proofs`."
        raise InfrastructureFailure(message, code="store-busy")


def _registry() -> ImageRegistry:
    from benchflow.sandbox.images import ImageRegistry, LayerStore
    from benchflow.sandbox.images.filework import own_file_work
    from benchflow.sandbox.local.layers.sandbox_store import default_store

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


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
