"""The one way YAML is read: safe, bounded, with lines on demand.

The C parser delivers events; values are built from them without recursion, so size, depth and the expansion
of anchors are limited while reading. Scalars mean what PyYAML's safe loader says they mean. Duplicate keys,
keys that are not strings, tags beyond the plain types and several documents in one text are refused.
"""

from __future__ import annotations

from collections.abc import Callable
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


_MERGE: Final = "<<"
_Scalar, _Alias = events.ScalarEvent, events.AliasEvent
_MapStart, _MapEnd = events.MappingStartEvent, events.MappingEndEvent
_ListStart, _ListEnd = events.SequenceStartEvent, events.SequenceEndEvent
_DocumentStart, _StreamEnd = events.DocumentStartEvent, events.StreamEndEvent


class _Frame:
    """A collection that is being read."""

    __slots__ = ("anchor", "before", "container", "height", "is_map", "key", "merges", "path")

    def __init__(self, container: Any, is_map: bool, anchor: str | None, before: int, path: str) -> None:
        self.container = container
        self.is_map = is_map
        self.anchor = anchor
        self.before = before
        self.path = path
        self.height = 1
        self.key: str | None = None
        self.merges: list[dict[str, Any]] | None = None

    def child(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def next_path(self) -> str:
        return self.child(self.key or "") if self.is_map else f"{self.path}[{len(self.container)}]"


class _Builder:
    """Builds one value from events, counting what it costs."""

    def __init__(self, first_line: int, lines: dict[str, int] | None) -> None:
        self.first_line = first_line
        self.lines = lines
        self.nodes = 0
        self.stack: list[_Frame] = []
        self.anchors: dict[str, tuple[Any, int, int] | None] = {}
        self.root: Any = None

    def run(self, next_event: Callable[[], Any]) -> Any:  # noqa: C901  # the hot loop, kept in one piece
        """Read a whole stream of at most one document; scalars, most of what there is, are placed here."""
        stack = self.stack
        quick = self.lines is None
        known = _KNOWN.get
        documents = 0
        while True:
            event = next_event()
            kind = type(event)
            if kind is _Scalar:
                self.nodes += 1
                if self.nodes > MAX_NODES:
                    raise self._too_many(event)
                value = event.value
                if event.tag is not None or event.anchor is not None:
                    value = self._scalar(event)
                elif event.implicit[0]:
                    value = known(value, _KNOWN)
                    if value is _KNOWN:
                        value = self._plain(event)
                if not quick or not stack:
                    self._place(event, value, 0)
                    continue
                frame = stack[-1]
                if not frame.is_map:
                    frame.container.append(value)
                elif frame.key is None:
                    if type(value) is not str or value == _MERGE or value in frame.container:
                        self._key(event, frame, value)
                    else:
                        frame.key = value
                        frame.container[value] = None
                elif frame.merges is None:
                    frame.container[frame.key] = value
                    frame.key = None
                else:
                    self._place(event, value, 0)
            elif kind is _MapStart or kind is _ListStart:
                self._start(event, kind is _MapStart)
            elif kind is _MapEnd or kind is _ListEnd:
                self._end(event)
            elif kind is _Alias:
                self._alias(event)
            elif kind is _DocumentStart:
                documents += 1
                if documents > 1:
                    raise self._error(event, "holds more than one YAML document")
            elif kind is _StreamEnd:
                return self.root

    def _scalar(self, event: Any) -> Any:
        """A scalar with a tag or an anchor."""
        tag = event.tag
        if tag is None or tag == "!":
            value = self._plain(event) if tag is None and event.implicit[0] else event.value
        elif tag not in _PLAIN_TAGS:
            raise self._error(event, f"has the tag '{tag[:60]}', which is not accepted")
        else:
            try:
                value = _construct(tag, event.value)
            except (ValueError, OverflowError, KeyError, AttributeError, IndexError, TypeError):
                # the constructors of PyYAML take a text apart that does not fit its tag
                raise self._error(event, f"has a value that is no {tag.rpartition(':')[2]}") from None
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1, 0)
        return value

    def _plain(self, event: Any) -> Any:
        try:
            return _plain_scalar(event.value)
        except (ValueError, OverflowError) as problem:
            raise self._error(event, f"has a value that cannot be read: {problem}") from None

    def _start(self, event: Any, is_map: bool) -> None:
        if event.tag is not None and event.tag not in _PLAIN_TAGS and event.tag != "!":
            raise self._error(event, f"has the tag '{event.tag[:60]}', which is not accepted")
        stack = self.stack
        if len(stack) >= MAX_DEPTH:
            raise self._error(event, f"is nested deeper than {MAX_DEPTH} levels", "too-complex")
        if stack and stack[-1].key is None and stack[-1].is_map:
            raise self._error(event, "has a key that is not a string", "invalid-key")
        path = ""
        if self.lines is not None and stack:
            path = stack[-1].next_path()
            self.lines.setdefault(path, event.start_mark.line + self.first_line)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        stack.append(_Frame({} if is_map else [], is_map, event.anchor, self.nodes, path))
        self.nodes += 1

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
        if event.anchor not in self.anchors:
            raise self._error(event, f"uses the unknown anchor '{event.anchor[:60]}'")
        known = self.anchors[event.anchor]
        if known is None:
            raise self._error(event, f"uses the anchor '{event.anchor[:60]}' inside itself", "too-complex")
        value, nodes, height = known
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise self._too_many(event)
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
        if not frame.is_map:
            if self.lines is not None:
                self.lines.setdefault(frame.next_path(), event.start_mark.line + self.first_line)
            frame.container.append(value)
        elif frame.key is None:
            self._key(event, frame, value)
        elif frame.key is _MERGE:
            self._merge(event, frame, value)
        else:
            frame.container[frame.key] = value
            frame.key = None

    def _key(self, event: Any, frame: _Frame, value: Any) -> None:
        if type(value) is not str:
            shown = f" ({str(value)[:40]})" if isinstance(value, (int, float)) else ""
            raise self._error(event, f"has a key that is not a string{shown}; put it in quotes", "invalid-key")
        if value == _MERGE and type(event) is _Scalar and event.implicit[0]:
            frame.key = _MERGE
            frame.merges = frame.merges or []
            return
        if value in frame.container:
            path = frame.child(value) if self.lines is not None else ""
            raise self._error(event, f"has the key '{value[:60]}' twice", "duplicate-key", path)
        frame.key = value
        frame.container[value] = None
        if self.lines is not None:
            self.lines[frame.child(value)] = event.start_mark.line + self.first_line

    def _merge(self, event: Any, frame: _Frame, value: Any) -> None:
        parts = value if type(value) is list else [value]
        if not all(type(part) is dict for part in parts):
            raise self._error(event, "has a merge key '<<' whose value is not a mapping")
        self.nodes += sum(len(part) for part in parts)
        if self.nodes > MAX_NODES:
            raise self._too_many(event)
        frame.merges = [*(frame.merges or []), *parts]
        frame.key = None

    def _too_many(self, event: Any) -> YamlError:
        return self._error(event, f"has more than {MAX_NODES} nodes once its anchors are expanded", "too-complex")

    def _error(self, event: Any, problem: str, code: str = "invalid-yaml", path: str = "") -> YamlError:
        line = event.start_mark.line + self.first_line
        return YamlError(f"line {line} {problem}", code=code, path=path, line=line)


def _build(text: str, first_line: int, lines: dict[str, int] | None) -> Any:
    if len(text) > MAX_CHARS:
        raise YamlError(f"is longer than {MAX_CHARS} characters of YAML", code="too-large", line=first_line)
    try:
        return _Builder(first_line, lines).run(CParser(text).get_event)
    except YamlError as problem:
        if lines is None and problem.code == "duplicate-key":
            return _build(text, first_line, {})  # paths are known only when lines are kept
        raise
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line = mark.line + first_line if mark is not None else first_line
        raise YamlError(f"line {line} is not valid YAML: {problem.problem}", line=line) from None
    except yaml.YAMLError as problem:
        # a reader error has a position in characters only
        reason = getattr(problem, "reason", None) or "unreadable text"
        line = first_line + text[: getattr(problem, "position", 0) or 0].count("\n")
        raise YamlError(f"line {line} is not valid YAML: {reason}", line=line) from None


_KNOWN: Final[dict[str, Any]] = {}
_KNOWN_LIMIT: Final = 4096
_KNOWN_LENGTH: Final = 32
_resolver: Final = yaml.resolver.Resolver()
_constructor: Final = yaml.constructor.SafeConstructor()


def _plain_scalar(text: str) -> Any:
    """What an unquoted scalar means; remembered for the words that come again and again."""
    tag = _resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # PyYAML has no types here
    value = text if tag == "tag:yaml.org,2002:str" else _construct(tag, text)
    if len(text) <= _KNOWN_LENGTH and len(_KNOWN) < _KNOWN_LIMIT:
        _KNOWN[text] = value
    return value


def _construct(tag: str, text: str) -> Any:
    construct = _constructor.yaml_constructors.get(tag)
    return text if construct is None else construct(_constructor, yaml.ScalarNode(tag, text))
