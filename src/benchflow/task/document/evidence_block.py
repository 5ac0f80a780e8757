"""Writes the key `benchflow.evidence` into a `task.md`; every byte outside it stays as it is.

A document whose evidence shares a line with something else, or whose namespace is written as `{…}`, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

from benchflow.errors import PackageError
from benchflow.task.document.markdown import decode, split_frontmatter
from benchflow.task.document.yaml_source import YamlSource
from benchflow.task.document.yaml_text import dump_yaml

NAMESPACE: Final = "benchflow"
EVIDENCE: Final = "evidence"
_INDENT: Final = 2
_OPENING: Final = 1
"""The line that opens the frontmatter."""


class NotDeclarableError(PackageError):
    """A document that evidence cannot be written into; the message continues the sentence `task.md …`."""

    default_code = "evidence-not-declarable"


def with_evidence(data: bytes, evidence: dict[str, Any]) -> bytes:
    """The bytes of a valid `task.md` with this evidence, in place of what it declares so far."""
    front = split_frontmatter(decode(data))
    lines = data.splitlines(keepends=True)  # of bytes: ends lines where `decode` does
    ending = b"\r\n" if lines[0].endswith(b"\r\n") else b"\n"
    first, last, indent, opens = _place(front.yaml)
    block = dump_yaml({EVIDENCE: evidence})
    text = f"{NAMESPACE}:\n" if opens else ""
    text += "".join(f"{' ' * indent}{line}\n" if line else "\n" for line in block.split("\n")[:-1])
    made = b"".join(lines[:first]) + text.encode().replace(b"\n", ending) + b"".join(lines[last:])
    _require_same(data, made, evidence)
    return made


def _place(text: str) -> tuple[int, int, int, bool]:
    """The lines to replace (first, and the one after the last), the indentation, and whether the namespace is new."""
    root = yaml.compose(text, Loader=yaml.CSafeLoader)
    end = _OPENING + text.count("\n")
    if root is None:
        return end, end, _INDENT, True
    namespace = _entry(root, NAMESPACE)
    if namespace is None:
        if isinstance(root, yaml.CollectionNode) and root.flow_style:
            raise NotDeclarableError("is written as {…}, so evidence cannot be added to it")
        return end, end, _INDENT, True
    value = namespace[1]
    if isinstance(value, yaml.ScalarNode) and value.value == "":
        after = _line(text, namespace[0].start_mark.index) + 1
        return after, after, namespace[0].start_mark.column + _INDENT, False
    if not isinstance(value, yaml.MappingNode) or value.flow_style:
        raise NotDeclarableError(f"has '{NAMESPACE}' in a form that evidence cannot be added to; write it as a block")
    entry = _entry(value, EVIDENCE)
    if entry is None:
        after = _last_line(text, namespace) + 1
        return after, after, value.value[0][0].start_mark.column, False
    key = entry[0].start_mark
    if text[key.index - key.column : key.index].strip():
        raise NotDeclarableError(f"has '{EVIDENCE}' on a line with another key")
    return _line(text, key.index), _last_line(text, entry) + 1, key.column, False


def _entry(node: Any, key: str) -> tuple[Any, Any] | None:
    found = [(name, value) for name, value in node.value if isinstance(name, yaml.ScalarNode) and name.value == key]
    return found[0] if found else None


def _last_line(text: str, entry: tuple[Any, Any]) -> int:
    key, value = entry
    return max(_line(text, index) for index in (key.start_mark.index, *_ends(value)))


def _line(text: str, index: int) -> int:
    """Counted by line feeds: YAML knows other line breaks too."""
    return _OPENING + text.count("\n", 0, index)


def _ends(node: Any) -> Iterator[int]:
    """Where scalars and flow collections end; block collections end where the next key begins."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        yield max(node.start_mark.index, node.end_mark.index - 1)
        return
    for item in node.value:
        for part in item if isinstance(item, tuple) else (item,):
            yield from _ends(part)


def _require_same(before: bytes, after: bytes, evidence: dict[str, Any]) -> None:
    """Refuse a result that says anything else than the document with this evidence."""
    old, new = split_frontmatter(decode(before)), split_frontmatter(decode(after))
    try:
        was, now = YamlSource(old.yaml).value or {}, YamlSource(new.yaml).value
        was = {**was, NAMESPACE: {**(was.get(NAMESPACE) or {}), EVIDENCE: evidence}}
        same = was == now and old.body == new.body
    except (PackageError, TypeError):
        same = False
    if not same:
        raise NotDeclarableError("has a form that evidence cannot be written into without changing the rest")
