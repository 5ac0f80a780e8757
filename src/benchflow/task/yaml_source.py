"""The one way YAML is read: safe, bounded, with lines on demand.

The C parser delivers events; values are built from them without recursion, so size, depth and the expansion of anchors are
limited while reading. Scalars mean what PyYAML's safe loader says they mean. Duplicate keys, keys that are not strings,
tags beyond the plain types and several documents in one text are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

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
    """Text that is not accepted as YAML, with the code, the dotted path and the line that say why."""

    default_code = "invalid-yaml"


class YamlSource:
    """A parsed YAML text: its `value`, and the `line` of each dotted path, found when first asked for."""

    __slots__ = ("_first_line", "_lines", "_text", "value")

    def __init__(self, text: str, *, first_line: int = 1) -> None:
        self._text = text
        self._first_line = first_line
        self._lines: dict[str, int] | None = None
        self.value: Any = _build(text, first_line, None)

    def line(self, path: str) -> int | None:
        """Where a path is written, or the nearest path above it."""
        if self._lines is None:
            self._lines = {"": self._first_line}
            _build(self._text, self._first_line, self._lines)
        while path not in self._lines:
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return self._lines[path]


class _Open:
    """A collection that is being read."""

    __slots__ = ("anchor", "before", "container", "height", "key", "merges", "path")

    def __init__(self, container: Any, anchor: str | None, before: int, path: str) -> None:
        self.container = container
        self.anchor = anchor
        self.before = before
        self.path = path
        self.height = 1
        self.key: str | None = None
        self.merges: list[dict[str, Any]] | None = None


_MERGE: Final = "<<"


class _Builder:
    """Builds one value from events."""

    def __init__(self, first_line: int, lines: dict[str, int] | None) -> None:
        self.first_line = first_line
        self.lines = lines
        self.nodes = 0
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Any, int, int] | None] = {}
        self.root: Any = None

    def run(self, next_event: Callable[[], Any]) -> Any:
        """Read a whole stream of at most one document."""
        scalar, alias = events.ScalarEvent, events.AliasEvent
        starts = (events.MappingStartEvent, events.SequenceStartEvent)
        ends = (events.MappingEndEvent, events.SequenceEndEvent)
        documents = 0
        while True:
            event = next_event()
            kind = type(event)
            if kind is scalar:
                self._scalar(event)
            elif kind in starts:
                self._start(event, {} if kind is events.MappingStartEvent else [])
            elif kind in ends:
                self._end(event)
            elif kind is alias:
                self._alias(event)
            elif kind is events.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise self._error(event, "holds more than one YAML document")
            elif kind is events.StreamEndEvent:
                return self.root

    def _scalar(self, event: Any) -> None:
        self._count(event, 1)
        text: str = event.value
        tag: str | None = event.tag
        stack = self.stack
        if tag is not None and tag != "!":
            value: Any = self._tagged(event, tag)
        elif event.implicit[0] and tag is None:
            if text == _MERGE and stack and stack[-1].key is None and type(stack[-1].container) is dict:
                stack[-1].key = _MERGE
                stack[-1].merges = stack[-1].merges or []
                return
            value = self._plain(event)
        else:
            value = text
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1, 0)
        self._place(event, value, 0)

    def _plain(self, event: Any) -> Any:
        try:
            return plain_scalar(event.value)
        except (ValueError, OverflowError) as problem:
            raise self._error(event, f"has a value that cannot be read: {problem}") from None

    def _tagged(self, event: Any, tag: str) -> Any:
        if tag not in _PLAIN_TAGS:
            raise self._error(event, f"has the tag '{tag[:60]}', which is not accepted")
        try:
            return _construct(tag, event.value)
        except (ValueError, OverflowError, KeyError, AttributeError, IndexError):
            # the constructors of PyYAML index into a failed match when a tag does not fit its text
            raise self._error(event, f"has a value that is no {tag.rpartition(':')[2]}") from None

    def _start(self, event: Any, container: Any) -> None:
        if event.tag is not None and event.tag not in _PLAIN_TAGS and event.tag != "!":
            raise self._error(event, f"has the tag '{event.tag[:60]}', which is not accepted")
        stack = self.stack
        if len(stack) >= MAX_DEPTH:
            raise self._error(event, f"is nested deeper than {MAX_DEPTH} levels", "too-complex")
        if stack and stack[-1].key is None and type(stack[-1].container) is dict:
            raise self._error(event, "has a key that is not a string", "invalid-key")
        before = self.nodes
        self._count(event, 1)
        path = self._path() if self.lines is not None else ""
        if self.lines is not None and stack and type(stack[-1].container) is list:
            self.lines.setdefault(path, event.start_mark.line + self.first_line)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        stack.append(_Open(container, event.anchor, before, path))

    def _end(self, event: Any) -> None:
        frame = self.stack.pop()
        container = frame.container
        if frame.merges:
            own = dict(container)
            container.clear()
            for merged in reversed(frame.merges):
                container.update(merged)
            container.update(own)
        if frame.anchor is not None:
            self.anchors[frame.anchor] = (container, self.nodes - frame.before, frame.height)
        self._place(event, container, frame.height)

    def _alias(self, event: Any) -> None:
        known = self.anchors.get(event.anchor, self)
        if known is self:
            raise self._error(event, f"uses the unknown anchor '{event.anchor[:60]}'")
        if known is None:
            raise self._error(event, f"uses the anchor '{event.anchor[:60]}' inside itself", "too-complex")
        value, nodes, height = known  # type: ignore[misc]  # the sentinel was handled above
        self._count(event, nodes)
        if len(self.stack) + height > MAX_DEPTH:
            raise self._error(event, f"is nested deeper than {MAX_DEPTH} levels", "too-complex")
        self._place(event, value, height)

    def _place(self, event: Any, value: Any, height: int) -> None:
        """Put a finished value where it belongs: as a key, under a key, into a list, or as the root."""
        if not self.stack:
            self.root = value
            return
        frame = self.stack[-1]
        if height >= frame.height:
            frame.height = height + 1
        container = frame.container
        if type(container) is list:
            if self.lines is not None:
                self.lines.setdefault(f"{frame.path}[{len(container)}]", event.start_mark.line + self.first_line)
            container.append(value)
        elif frame.key is None:
            self._key(event, frame, value)
        elif frame.key is _MERGE and frame.merges is not None:
            self._merge(event, frame, value)
        else:
            container[frame.key] = value
            frame.key = None

    def _key(self, event: Any, frame: _Open, value: Any) -> None:
        if type(value) is not str:
            raise self._error(event, f"has a key that is not a string ({str(value)[:40]}); put it in quotes", "invalid-key")
        if value in frame.container:
            path = f"{frame.path}.{value}" if frame.path else value
            raise self._error(event, f"has the key '{value[:60]}' twice", "duplicate-key", path)
        frame.key = value
        frame.container[value] = None
        if self.lines is not None:
            path = f"{frame.path}.{value}" if frame.path else value
            self.lines[path] = event.start_mark.line + self.first_line

    def _merge(self, event: Any, frame: _Open, value: Any) -> None:
        parts = value if type(value) is list else [value]
        if not all(type(part) is dict for part in parts):
            raise self._error(event, "has a merge key '<<' whose value is not a mapping")
        self._count(event, sum(len(part) for part in parts))
        frame.merges = [*(frame.merges or []), *parts]
        frame.key = None

    def _count(self, event: Any, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise self._error(event, f"has more than {MAX_NODES} nodes once its anchors are expanded", "too-complex")

    def _path(self) -> str:
        if not self.stack:
            return ""
        frame = self.stack[-1]
        if type(frame.container) is list:
            return f"{frame.path}[{len(frame.container)}]"
        key = frame.key or ""
        return f"{frame.path}.{key}" if frame.path else key

    def _error(self, event: Any, problem: str, code: str = "invalid-yaml", path: str | None = None) -> YamlError:
        line = event.start_mark.line + self.first_line
        return YamlError(f"line {line} {problem}", code=code, path=path or "", line=line)


def _build(text: str, first_line: int, lines: dict[str, int] | None) -> Any:
    if len(text) > MAX_CHARS:
        raise YamlError(f"is longer than {MAX_CHARS} characters of YAML", code="too-large", line=first_line)
    try:
        return _Builder(first_line, lines).run(CParser(text).get_event)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line = mark.line + first_line if mark is not None else first_line
        raise YamlError(f"line {line} is not valid YAML: {problem.problem}", line=line) from None
    except yaml.YAMLError as problem:
        # a reader error has a position in characters only
        reason = getattr(problem, "reason", None) or "unreadable text"
        line = first_line + text[: getattr(problem, "position", 0) or 0].count("\n")
        raise YamlError(f"line {line} is not valid YAML: {reason}", line=line) from None


_resolver: Final = yaml.resolver.Resolver()
_constructor: Final = yaml.constructor.SafeConstructor()


@lru_cache(maxsize=4096)
def plain_scalar(text: str) -> Any:
    """What an unquoted scalar means."""
    tag = _resolver.resolve(yaml.ScalarNode, text, (True, False))
    return text if tag == "tag:yaml.org,2002:str" else _construct(tag, text)


def _construct(tag: str, text: str) -> Any:
    if tag == "tag:yaml.org,2002:value":
        return text
    construct = _constructor.yaml_constructors[tag]
    return construct(_constructor, yaml.ScalarNode(tag, text))
