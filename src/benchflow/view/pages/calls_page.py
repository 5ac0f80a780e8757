"""The model calls of a rollout: a table by pages, and the request and the answer of each, fetched when they are opened.

Of a request, messages and tools are shown one by one; what is large is a part by its digest, fetched by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchflow.record import ModelCall, RolloutFolder
from benchflow.record.reading.call_lines import CallsPage, call_at, calls_page, part_name, read_part
from benchflow.view.conversation_pages import place_of
from benchflow.view.known_jobs import Missing
from benchflow.view.page_addresses import Fields, address
from benchflow.view.page_rendering import duration
from benchflow.view.plain_text import one_line
from benchflow.view.viewer import Viewer

ITEMS: Final = 100
"""Messages or tools of a request on one page."""
_MOST_PARSED: Final = 4 << 20
"""A longer JSON text is shown as it was written."""


@dataclass(frozen=True, slots=True)
class Item:
    """A value of a request: shown here, or a part that is fetched."""

    name: str
    gist: str
    text: str = ""
    part: str | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """The values of one key of a request, or some of them."""

    name: str
    shown: tuple[Item, ...]
    total: int = 1
    first: int = 0
    earlier: int | None = None
    """Where the values before these begin."""


def calls_of(folder: RolloutFolder, fields: Fields) -> CallsPage:
    """The calls that the address asks for: `calls=OFFSET-NUMBER`."""
    return calls_page(folder, *place_of(fields.one("calls")))


def facts(call: ModelCall) -> Iterator[str]:
    """What is known of a call besides the columns of the table."""
    place = call.place
    where = {"step": place.step, "scene": place.scene, "turn": place.turn, "branch": place.branch}
    yield from (f"{name} {value}" for name, value in where.items() if value is not None)
    yield f"{call.provider} · {call.endpoint}"
    if call.message or call.code:
        yield ": ".join(filter(None, (call.code, call.message)))
    if call.finish_reason:
        yield f"finished: {call.finish_reason}"
    if call.removed_tools:
        yield f"tools taken out: {', '.join(call.removed_tools)}"
    yield from (
        f"retried after {retry.code}{f' ({retry.status})' if retry.status else ''}, {duration(retry.waited_sec)} later"
        for retry in call.retries
    )
    if call.timing.get("queued"):
        yield f"waited {duration(call.timing['queued'])} for others"
    if call.estimated:
        yield "tokens are estimated"
    if call.replayed:
        yield "answered from another rollout"


def call_page(viewer: Viewer, job_name: str, name: str, fields: Fields) -> str:
    """The request or the answer of one call (`at`, `what`), or one part of them (`part`)."""
    folder = viewer.jobs.get(job_name).rollout(name)
    at = fields.one("at")
    offset, number = place_of(at)
    call = call_at(folder, offset)
    if call is None:
        raise Missing("This model call does not exist.", "The record may have been replaced.")
    what = "answer" if fields.one("what") == "answer" else "request"
    part = fields.one("part")

    def url(**more: Any) -> str:
        return address("job", job_name, "rollout", name, "call", at=at, what=what, **more)

    items: tuple[Items, ...] = ()
    try:
        if part:
            _require_named(call, part)
            text = pretty(read_part(folder, part))
        elif what == "answer":
            text = _answer(folder, call)
        else:
            start = fields.number("from", 0) if fields.one("from") else None
            text, items = _request(call, fields.one("of"), start)
    except ValueError as error:
        raise Missing(f"The {what} of call {number} cannot be shown: {error}.", "") from error
    here = address("job", job_name, "rollout", name)
    crumbs = [("Jobs", "/"), (job_name, address("job", job_name)), (name, here)]
    title = f"Call {call.seq}, {what}"
    return viewer.page("call.html", title, [*crumbs, (title, None)], text=text, items=items, url=url)


def pretty(data: bytes) -> str:
    """JSON with its structure, one text as it is, anything else as it was written."""
    if len(data) <= _MOST_PARSED:
        try:
            return _shown(json.loads(data))
        except (ValueError, RecursionError):
            pass
    return data.decode(errors="replace")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _answer(folder: RolloutFolder, call: ModelCall) -> str:
    answer = call.answer
    if answer is None:
        raise ValueError("nothing came back")
    return pretty(read_part(folder, answer.part) if answer.part else (answer.text or "").encode(errors="replace"))


def _request(call: ModelCall, of: str, start: int | None) -> tuple[str, tuple[Items, ...]]:
    """The settings of a request as text, and what is listed or large one by one; the last of a list come first."""
    request = call.request
    if request is None:
        raise ValueError("it has none")
    if not isinstance(request, dict) or part_name(request):
        request = {"request": request}
    settings: dict[str, Any] = {}
    found: list[Items] = []
    for key, value in request.items():
        if part_name(value):
            found.append(Items(key, (_item(key, value),)))
        elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
            first = max(0, len(value) - ITEMS) if start is None or of != key else min(start, len(value))
            shown = [_item(f"{key}[{first + index}]", each) for index, each in enumerate(value[first : first + ITEMS])]
            found.append(Items(key, tuple(shown), len(value), first, max(0, first - ITEMS) if first else None))
        else:
            settings[key] = value
    return _shown(settings) if settings else "", tuple(found)


def _item(name: str, value: Any) -> Item:
    part = part_name(value)
    if part:
        return Item(name, part[:19], part=part)
    text = _shown(value)
    return Item(name, one_line(json.dumps(value, ensure_ascii=False)[:2000], 140), text)


def _require_named(call: ModelCall, part: str) -> None:
    """Only parts that belong to the call are shown with it."""
    request = call.request
    values = [request, *request.values()] if isinstance(request, dict) else [request]
    named = {part_name(each) for value in values for each in (value if isinstance(value, list) else [value])}
    if part not in named and not (call.answer is not None and call.answer.part == part):
        raise ValueError("it has no such part")
