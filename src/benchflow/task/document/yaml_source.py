"""Reads YAML: safe, bounded, with lines on demand.

Values are built from the events of the C parser without recursion, so that size, depth and anchor expansion are limited
while reading. Scalars have the types that PyYAML's safe loader gives them. Duplicate keys, keys that are not strings,
tags other than the plain types, and several documents in one text are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan
from typing import Any, Final, NamedTuple

import yaml
from yaml import events
from yaml._yaml import CParser

from benchflow.errors import PackageError

MAX_CHARS: Final = 1 << 20
MAX_NODES: Final = 10_000
MAX_DEPTH: Final = 64

_PLAIN_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "timestamp", "seq", "map")
)


class YamlError(PackageError, ValueError):
    """Text that is rejected, with code, dotted path and line."""

    default_code = "invalid-yaml"


class YamlSource:
    """A parsed YAML text: its `value`, and the `line` of each dotted path, located on demand."""

    __slots__ = ("_first_line", "_lines", "_text", "value")

    def __init__(self, text: str, *, first_line: int = 1) -> None:
        self._text = text
        self._first_line = first_line
        self._lines: dict[str, int] | None = None
        self.value: Any = _read(text, first_line)

    def line(self, path: str) -> int | None:
        """The line of a path, or of the nearest path above it."""
        if self._lines is None:
            self._lines = _lines(self._text, self._first_line)
        while path not in self._lines:
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return self._lines[path]


_MERGE: Final = "<<"
_Scalar, _Alias = events.ScalarEvent, events.AliasEvent
_MapStart, _MapEnd = events.MappingStartEvent, events.MappingEndEvent
_ListStart, _ListEnd = events.SequenceStartEvent, events.SequenceEndEvent
_DocumentStart, _StreamEnd = events.DocumentStartEvent, events.StreamEndEvent


class _Merge:
    """A merge key in a mapping that is being read."""

    __slots__ = ("event",)

    def __init__(self, event: Any) -> None:
        self.event = event


class _Anchored(NamedTuple):
    """The value of an anchor, the number of nodes it expands to, and its depth."""

    value: Any
    nodes: int
    height: int


def _read(text: str, first_line: int) -> Any:
    if len(text) > MAX_CHARS:
        raise YamlError(f"has more than {MAX_CHARS} characters of YAML", code="too-large", line=first_line)
    try:
        return _build(CParser(text).get_event)
    except _RefusedError as problem:
        line = problem.event.start_mark.line + first_line
        raise YamlError(f"line {line} {problem}", code=problem.code, path=problem.path, line=line) from None
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line = mark.line + first_line if mark is not None else first_line
        raise YamlError(f"line {line} is not valid YAML: {problem.problem}", line=line) from None
    except yaml.YAMLError as problem:
        # a reader error has a position in characters only
        reason = getattr(problem, "reason", None) or "unreadable text"
        line = first_line + text[: getattr(problem, "position", 0) or 0].count("\n")
        raise YamlError(f"line {line} is not valid YAML: {reason}", line=line) from None


class _RefusedError(Exception):
    """A rejected event; the message continues a sentence that starts with its line."""

    def __init__(self, event: Any, problem: str, code: str = "invalid-yaml", path: str = "") -> None:
        super().__init__(problem)
        self.event = event
        self.code = code
        self.path = path


def _build(next_event: Callable[[], Any]) -> Any:  # noqa: C901  # the hot loop, kept in one piece
    """Read a stream of at most one document; rare cases are handled by the functions below."""
    known = _KNOWN.get
    anchors: dict[str, _Anchored | None] = {}
    # The collection that is being read: how a list is appended to (None for a mapping), the key whose value is
    # next, its anchor and the nodes before it. What the document holds becomes the one item of a list.
    root: list[Any] = []
    container: Any = root
    append: Callable[[Any], None] | None = root.append
    key: Any = None
    anchor: str | None = None
    before = nodes = documents = 0
    merging = False
    around: list[tuple[Any, ...]] = []
    while True:
        event = next_event()
        kind = type(event)
        if kind is _Scalar:
            nodes += 1
            if nodes > MAX_NODES:
                raise _too_many(event)
            value = event.value
            if event.implicit[0]:
                value = known(value, _KNOWN)
                if value is _KNOWN:
                    value = _plain(event)
            elif event.tag is not None:
                value = _tagged(event)
            if event.anchor is not None:
                anchors[event.anchor] = _Anchored(value, 1, 0)
        elif kind is _MapStart or kind is _ListStart:
            if event.tag is not None or len(around) >= MAX_DEPTH or nodes >= MAX_NODES or append is key:
                _check_start(event, len(around), nodes, is_key=append is key)
            around.append((container, append, key, anchor, before))
            anchor, before, key = event.anchor, nodes, None
            nodes += 1
            if anchor is not None:
                anchors[anchor] = None
            if kind is _MapStart:
                container, append = {}, None
            else:
                container = []
                append = container.append
            continue
        elif kind is _MapEnd or kind is _ListEnd:
            value = container
            if merging and kind is _MapEnd:
                nodes += _merge(value, nodes)
            if anchor is not None:
                anchors[anchor] = _Anchored(value, nodes - before, _height(value))
            container, append, key, anchor, before = around.pop()
        elif kind is _Alias:
            value, added, height = _anchored(event, anchors)
            nodes += added
            if nodes > MAX_NODES:
                raise _too_many(event)
            if len(around) + height > MAX_DEPTH:
                raise _too_deep(event)
        elif kind is _StreamEnd:
            return root[0] if root else None
        else:
            documents += kind is _DocumentStart
            if documents > 1:
                raise _RefusedError(event, "contains more than one YAML document")
            continue
        if append is not None:
            append(value)
        elif key is not None:
            container[key] = value
            key = None
        elif type(value) is str and value != _MERGE and value not in container:
            key = value
        else:
            key = _unusual_key(event, value, container, around)
            merging = True


def _check_start(event: Any, depth: int, nodes: int, *, is_key: bool) -> None:
    """Raise unless a collection may start here."""
    if event.tag is not None and event.tag not in _PLAIN_TAGS and event.tag != "!":
        raise _RefusedError(event, f"has the tag '{event.tag[:60]}', which is not allowed")
    if depth >= MAX_DEPTH:
        raise _too_deep(event)
    if is_key:
        raise _RefusedError(event, "has a key that is not a string", "invalid-key")
    if nodes >= MAX_NODES:
        raise _too_many(event)


def _unusual_key(event: Any, value: Any, container: dict[Any, Any], around: list[tuple[Any, ...]]) -> str | _Merge:
    """Handle a merge key, a quoted `<<`, or an invalid key."""
    if type(value) is not str:
        shown = f" ({str(value)[:40]})" if isinstance(value, (int, float)) else ""
        raise _RefusedError(event, f"has a key that is not a string{shown}; put it in quotes", "invalid-key")
    if value == _MERGE and type(event) is _Scalar and event.implicit[0]:
        return _Merge(event)
    if value in container:
        path = "".join(
            f"[{len(outer)}]" if append is not None else f".{_MERGE if type(key) is _Merge else key}"
            for outer, append, key, *_ in around[1:]
        )
        raise _RefusedError(event, f"has the key '{value[:60]}' twice", "duplicate-key", f"{path}.{value}"[1:])
    return value


def _merge(mapping: dict[Any, Any], nodes: int) -> int:
    """Apply merge keys below the mapping's own keys; returns the number of nodes added."""
    keys = [key for key in mapping if type(key) is _Merge]
    parts: list[dict[str, Any]] = []
    for key in keys:
        value = mapping.pop(key)
        parts += value if type(value) is list else [value]
        if not all(type(part) is dict for part in parts):
            raise _RefusedError(key.event, "has a merge key '<<' whose value is not a mapping")
        if nodes + sum(len(part) for part in parts) > MAX_NODES:
            raise _too_many(key.event)
    if parts:
        own = dict(mapping)
        mapping.clear()
        for part in reversed(parts):
            mapping.update(part)
        mapping.update(own)
    return sum(len(part) for part in parts)


def _anchored(event: Any, anchors: Mapping[str, _Anchored | None]) -> _Anchored:
    if event.anchor not in anchors:
        raise _RefusedError(event, f"uses the unknown anchor '{event.anchor[:60]}'")
    known = anchors[event.anchor]
    if known is None:
        raise _RefusedError(event, f"uses the anchor '{event.anchor[:60]}' inside itself", "too-complex")
    return known


def _height(value: Any) -> int:
    """How deeply collections are nested."""
    height, level = 0, [value]
    while level:
        height += 1
        inner = (item for outer in level for item in (outer.values() if type(outer) is dict else outer))
        level = [item for item in inner if type(item) in (dict, list)]
    return height


def _tagged(event: Any) -> Any:
    tag = event.tag
    if tag not in _PLAIN_TAGS:
        raise _RefusedError(event, f"has the tag '{tag[:60]}', which is not allowed")
    try:
        return _construct(tag, event.value)
    except (ValueError, OverflowError, KeyError, AttributeError, IndexError, TypeError):
        # PyYAML's constructors raise any of these for a text that does not match its tag
        raise _RefusedError(event, f"has a value that is not of type {tag.rpartition(':')[2]}") from None


def _plain(event: Any) -> Any:
    try:
        return _plain_scalar(event.value)
    except (ValueError, OverflowError) as problem:
        raise _RefusedError(event, f"has a value that cannot be read: {problem}") from None


def _too_many(event: Any) -> _RefusedError:
    return _RefusedError(event, f"has more than {MAX_NODES} nodes once its anchors are expanded", "too-complex")


def _too_deep(event: Any) -> _RefusedError:
    return _RefusedError(event, f"is nested deeper than {MAX_DEPTH} levels", "too-complex")


class _Place:
    """A collection that is being read: its path, the path of the next value, and the length of a list."""

    __slots__ = ("length", "next", "path")

    def __init__(self, path: str, length: int | None) -> None:
        self.path = path
        self.next: str | None = None
        self.length = length


def _lines(text: str, first_line: int) -> dict[str, int]:
    """The line of every dotted path of a text that is known to be valid."""
    lines = {"": first_line}
    words: dict[str, str] = {}
    around: list[_Place] = []
    next_event: Callable[[], Any] = CParser(text).get_event
    while type(event := next_event()) is not _StreamEnd:
        kind = type(event)
        if kind is _MapEnd or kind is _ListEnd:
            around.pop()
        if kind not in (_Scalar, _Alias, _MapStart, _ListStart):
            continue
        if kind is _Scalar and event.anchor is not None:
            words[event.anchor] = event.value
        line = event.start_mark.line + first_line
        path = ""
        if around:
            place = around[-1]
            if place.length is not None:
                path = f"{place.path}[{place.length}]"
                place.length += 1
                lines.setdefault(path, line)
            elif place.next is None:
                key = words[event.anchor] if kind is _Alias else event.value
                place.next = f"{place.path}.{key}" if place.path else key
                lines[place.next] = line
                continue
            else:
                path, place.next = place.next, None
        if kind is _MapStart or kind is _ListStart:
            around.append(_Place(path, None if kind is _MapStart else 0))
    return lines


_KNOWN: Final[dict[str, Any]] = {}
_KNOWN_LIMIT: Final = 4096
_KNOWN_LENGTH: Final = 32
_resolver: Final = yaml.resolver.Resolver()
_constructor: Final = yaml.constructor.SafeConstructor()


def _plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar, cached for short, frequent words."""
    tag = _resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # PyYAML has no types here
    value = text if tag == "tag:yaml.org,2002:str" else _construct(tag, text)
    if value != value:  # one `nan`, so that mappings with it are equal
        value = nan
    if len(text) <= _KNOWN_LENGTH and len(_KNOWN) < _KNOWN_LIMIT:
        _KNOWN[text] = value
    return value


def _construct(tag: str, text: str) -> Any:
    construct = _constructor.yaml_constructors.get(tag)
    return text if construct is None else construct(_constructor, yaml.ScalarNode(tag, text))
