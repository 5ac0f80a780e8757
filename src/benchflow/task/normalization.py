"""`task.md` in canonical form: presets and shorthands expanded, one spelling per key.

`render_normalized_task_md` returns the text and leaves headings in place; `normalize_package` also moves headings into
`prompts/`. Both parse the result again: the prompt of a turn never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Issue, PackageError
from benchflow.files import write_atomic
from benchflow.task.config.namespace import DocumentRoot
from benchflow.task.config.parsed_record import IssueLog, Kind, Record
from benchflow.task.document.authoring import expand_authoring
from benchflow.task.document.markdown import Body, escape_headings, split_sections
from benchflow.task.document.prompt_plan import compile_task_prompt_plan
from benchflow.task.document.task_document import TASK_MD, TaskDocument, TaskDocumentParseError, read_document
from benchflow.task.document.task_text import document_text
from benchflow.task.package import TaskPackage, load_package
from benchflow.task.profiles import ProfileReader

_PROMPT: Final = "prompt"


@dataclass(frozen=True, slots=True)
class NormalizedTask:
    """A document in canonical form."""

    text: str
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompt files that replace headings: path in the package -> text."""
    issues: tuple[Issue, ...] = ()
    """Headings that were dropped because a prompt file overrides them."""


def render_normalized_task_md(text: str, *, path: Path | str | None = None) -> str:
    """The canonical text of a document; `path` is its `task.md`, needed to find the profiles it refers to.

    Raises `TaskDocumentParseError` for an invalid document.
    """
    folder = None if path is None else Path(path)
    if folder is not None and not folder.is_dir():
        folder = folder.parent
    before = _read(text, {}, folder)
    after = document_text(canonical_frontmatter(before.frontmatter), before.body.strip("\n"))
    _require_same(before, _read(after, {}, folder))
    return after


def normalize_package(task_dir: Path | str, *, write: bool = False) -> NormalizedTask:
    """The canonical form of a native package, with its headings in `prompts/`; `write` saves it.

    Raises `TaskDocumentParseError` for an invalid document and `PackageError` for a folder without one.
    """
    package = load_package(task_dir)
    document = _document(package)
    sidecars = {key: text for key, text in _prompt_texts(document).items() if _file(key) in package.files}
    normalized = _with_prompt_files(document, sidecars, package.path)
    if normalized is None:
        text = document_text(canonical_frontmatter(document.frontmatter), document.body.strip("\n"))
        _require_same(document, _read(text, sidecars, package.path))
        normalized = NormalizedTask(text)
    if write:
        for name, content in normalized.prompts.items():
            (package.path / name).parent.mkdir(exist_ok=True)
            write_atomic(package.path / name, content)
        write_atomic(package.path / TASK_MD, normalized.text)
    return normalized


def _with_prompt_files(document: TaskDocument, sidecars: Mapping[str, str], folder: Path) -> NormalizedTask | None:
    """The document with all headings except `## prompt` in files; None if that would change a prompt."""
    body = split_sections(document.body)
    moved = {section.key: section.text for section in body.sections if section.key != _PROMPT}
    kept = Body(body.preamble, tuple(section for section in body.sections if section.key == _PROMPT))
    text = document_text(canonical_frontmatter(document.frontmatter), _compose(kept))
    if not _same(document, _read(text, {**moved, **sidecars}, folder)):
        return None
    return NormalizedTask(
        text=text,
        prompts={_file(key): f"{value}\n" for key, value in moved.items() if key not in sidecars},
        issues=tuple(_shadowed(key) for key in moved if key in sidecars),
    )


def _document(package: TaskPackage) -> TaskDocument:
    if package.entrypoint != TASK_MD:
        raise PackageError(f"{package.path} has no task.md", code="not-native", file=TASK_MD)
    return TaskDocumentParseError.require(package.document, package.document_issues)


def _read(text: str, sidecars: Mapping[str, str], folder: Path | None) -> TaskDocument:
    merge = ProfileReader(folder).merge if folder is not None else None
    return TaskDocumentParseError.require(*read_document(text, sidecars=sidecars, merge_profiles=merge))


def _compose(body: Body) -> str:
    """A body from its parts; `## prompt` at the start needs no heading."""
    blocks = [escape_headings(body.preamble)] if body.preamble else []
    for index, section in enumerate(body.sections):
        text = escape_headings(section.text)
        if index or body.preamble or section.key != _PROMPT:
            blocks.append(f"## {section.key}")
        blocks.append(text)
    return "\n\n".join(block for block in blocks if block)


def canonical_frontmatter(frontmatter: Mapping[str, Any]) -> dict[str, Any]:
    """Frontmatter without presets and shorthands, under canonical names, with the schema version first."""
    expanded = expand_authoring(frontmatter, IssueLog(TASK_MD)).mapping
    mapping = _respell(DocumentRoot, expanded)
    version = mapping.pop("version", None)
    version = mapping.pop("schema_version", version)
    return {**({"schema_version": version} if version is not None else {}), **mapping}


def _respell(model: type[Record], mapping: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in mapping.items():
        known = model.KEYS.get(key)
        result[known.key if known else key] = _respell_value(known.kind, value) if known else value
    return result


def _respell_value(kind: Kind, value: Any) -> Any:
    model = kind.model
    if model is None:
        return value
    if kind.shape == "one":
        return _respell(model, value) if isinstance(value, Mapping) else value
    if kind.shape == "map" and isinstance(value, Mapping):
        return {k: _respell(model, v) if isinstance(v, Mapping) else v for k, v in value.items()}
    if kind.shape == "list" and isinstance(value, list):
        return [_respell(model, item) if isinstance(item, Mapping) else item for item in value]
    return value


def _prompt_texts(document: TaskDocument) -> dict[str, str]:
    texts = {f"role:{name}": text for name, text in document.role_prompts.items()}
    texts |= {f"scene:{name}": text for name, text in document.scene_prompts.items()}
    return texts | ({"user-persona": document.persona} if document.persona is not None else {})


def _file(key: str) -> str:
    return f"prompts/{key.replace(':', '.', 1)}.md"


def _shadowed(key: str) -> Issue:
    message = f"the section '## {key}' was dropped: {_file(key)} overrides it"
    return Issue("shadowed-section", "warning", key, message, TASK_MD)


def _same(before: TaskDocument, after: TaskDocument) -> bool:
    """Whether both are equivalent when run."""
    names = ("config", "namespace", "instruction", "preamble", "roles", "scenes", "user", "persona", "mode")
    plans = [compile_task_prompt_plan(item, fallback_prompt=item.instruction) for item in (before, after)]
    return plans[0] == plans[1] and all(getattr(before, name) == getattr(after, name) for name in names)


def _require_same(before: TaskDocument, after: TaskDocument) -> None:
    if not _same(before, after):
        raise PackageError(
            "task.md cannot be normalised without changing its meaning", code="not-normalisable", file=TASK_MD
        )
