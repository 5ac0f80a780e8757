"""The digest of what a package is, without what is known about it.

`digest` covers every file; the content digest leaves out `evidence/` and the key `benchflow.evidence`, so that proving
a package does not make another package of it. What lies beside a package and belongs to it counts in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import yaml

from benchflow.task.document.markdown import MarkdownError, decode, split_frontmatter
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.filemap import FileMap, digest_of

EVIDENCE: Final = "evidence"
_NAMESPACE: Final = "benchflow"


def content_digest(files: FileMap, outside: Mapping[str, str]) -> str:
    """The content digest of a package; `outside` are hashes of files that lie beside it and belong to it."""
    hashes = {path: entry.sha256 for path, entry in files.files.items() if not path.startswith(f"{EVIDENCE}/")}
    document = files.files.get(TASK_MD)
    if document is not None and document.data is not None and EVIDENCE.encode() in document.data:
        hashes[TASK_MD] = sha256(without_evidence(document.data)).hexdigest()
    return digest_of({**hashes, **outside})


def without_evidence(data: bytes) -> bytes:
    """The bytes of a `task.md` without the lines of `benchflow.evidence`, all others as they are.

    A text that cannot be read, or that writes the namespace in one line, is taken as it is.
    """
    try:
        root = yaml.compose(split_frontmatter(decode(data)).yaml, Loader=yaml.CSafeLoader)
    except (MarkdownError, yaml.YAMLError, RecursionError, ValueError):
        return data
    namespace = _entry(root, _NAMESPACE)
    evidence = _entry(namespace[1], EVIDENCE) if namespace is not None else None
    if namespace is None or evidence is None or namespace[1].flow_style:
        return data
    key, value = namespace if len(namespace[1].value) == 1 else evidence
    lines = data.splitlines(keepends=True)
    first = key.start_mark.line + 1  # the text that was read begins after the line that opens the frontmatter
    last = max([first, *(line + 1 for line in _last_lines(value))])
    while last > first and not lines[last].strip():
        last -= 1
    return b"".join(lines[:first] + lines[last + 1 :])


def _entry(node: Any, key: str) -> tuple[Any, Any] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next(((name, value) for name, value in node.value if name.value == key), None)


def _last_lines(node: Any) -> Iterator[int]:
    """The lines on which the scalars and one-line collections of a value end; blocks end where the next key begins."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        end = node.end_mark
        yield end.line - (end.column == 0 and end.line > node.start_mark.line)
        return
    for item in node.value:
        for part in item if isinstance(item, tuple) else (item,):
            yield from _last_lines(part)
