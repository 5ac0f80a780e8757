"""The changes of a running container: read from its layers if these are on this machine, else from the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import anyio.to_thread

from benchflow.sandbox.engine.box.running_container import EngineContainer
from benchflow.sandbox.engine.container_changes import make_changes, not_of_the_engine, parse_diff, with_touched
from benchflow.sandbox.engine.machine.engine_host import EngineHost
from benchflow.sandbox.engine.machine.written_layer import find_layers, written_changes
from benchflow.sandbox.protocol import Change, ChangeKind


@dataclass(frozen=True, slots=True)
class Listing:
    """Path and kind of what was changed, and what is already known of some of it."""

    kinds: dict[str, ChangeKind]
    known: Mapping[str, Change] = field(default_factory=dict)


async def changed_since_start(host: EngineHost, box: EngineContainer, mounted: Sequence[str] = ()) -> Listing:
    """What was changed in a container since it was started."""
    layers = await find_layers(host.client, box.id) if host.facts.reads_layers else None
    if layers is not None:
        with contextlib.suppress(OSError):  # of processes that write meanwhile; the engine has its own way with them
            found = {change.path: change for change in await anyio.to_thread.run_sync(written_changes, layers)}
            known = {path: found[path] for path in not_of_the_engine(found, mounted)}
            return Listing({path: change.kind for path, change in known.items()}, known)
    kinds = parse_diff(await box.diff(), mounted)
    return Listing(kinds if host.facts.exact_diff else with_touched(kinds, await box.touched(), mounted))


async def describe(host: EngineHost, box: EngineContainer, listing: Listing) -> list[Change]:
    """Changes with what the files are now, sorted by path."""
    unknown = {path: kind for path, kind in listing.kinds.items() if path not in listing.known}
    present = [path for path, kind in unknown.items() if kind != "deleted"]
    records = await box.stat(present) if present else []
    found = make_changes(unknown, records, same_clock=host.facts.same_kernel)
    found += [
        replace(change, kind=listing.kinds[path]) for path, change in listing.known.items() if path in listing.kinds
    ]
    return sorted(found, key=lambda change: change.path)
