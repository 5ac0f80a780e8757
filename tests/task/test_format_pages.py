"""The pages that list keys say what the records accept: every key, its type and its default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchflow.task.config import evidence_config, interaction, namespace
from benchflow.task.config import task_config as config
from benchflow.task.config.namespace import DocumentRoot
from benchflow.task.config.parsed_record import Field, InvalidValueError, IssueLog, Kind, Record, walk_models
from benchflow.task.document import environment_manifest as manifest
from benchflow.task.document.authoring import PRESETS
from benchflow.task.verifier import declared_strategies as strategies
from benchflow.task.verifier import game_records, verifier_document

DOCS = Path(__file__).parents[2] / "docs"
MODELS: dict[str, type[Record]] = {
    model.__name__: model
    for root in (DocumentRoot, manifest.EnvironmentManifest, verifier_document.VerifierRoot, strategies.Factor)
    for model in walk_models(root)
} | {model.__name__: model for model in strategies.STRATEGIES.values()}
MODELS |= {
    model.__name__: model for root in (game_records.GameRecord, game_records.DrawRecord) for model in walk_models(root)
}
DOCUMENTED_ELSEWHERE = {"Strategy"}


def refusal(kind: Kind, value: Any) -> str:
    """How a kind names what it wants instead of `value`, or nothing if it takes it."""
    problems = IssueLog()
    try:
        kind.parse(value, "x", problems)
    except InvalidValueError as problem:
        return str(problem)
    return problems.issues[0].message.split(" ", 1)[1] if problems.issues else ""


def type_of(kind: Kind) -> str:
    """The type of a field in the words of its own error messages."""
    if kind.model is not None and kind.shape == "one":
        return "mapping"
    wanted = refusal(kind, object()).removeprefix("must be ")
    wanted = re.split(r", not a|; it is|; put it", wanted)[0].removeprefix("a ").removeprefix("an ")
    if wanted.startswith("one of "):
        return " \\| ".join(f"`{word}`" for word in wanted.removeprefix("one of ").split(", "))
    if wanted not in ("list", "mapping"):
        return wanted
    inner = "mapping" if kind.model else item_type(kind, [object()] if wanted == "list" else {"agent": object()})
    if inner.startswith("["):
        return inner
    of = "of" if wanted == "list" else "to"
    return f"{wanted} {of} {inner}{'s' * inner.isalpha()}" if inner else wanted


def item_type(kind: Kind, value: Any) -> str:
    return type_of(Kind(lambda _value, path, problems: kind.parse(value, path, problems)))


def default_of(field: Field) -> str:
    value = field.default
    if field.required:
        return "required"
    if value in (None, (), "") or isinstance(value, (Record, dict)):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def rows_of(model: type[Record]) -> list[tuple[str, str, str]]:
    rows = []
    for field in model.FIELDS.values():
        names = " or ".join(f"`{name}`" for name in (field.key, *field.aliases))
        rows.append((names, type_of(field.kind), default_of(field)))
    return rows


def tables(page: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Name of the record and its rows, of each table below an invisible note `<!-- Record -->`."""
    text = (DOCS / page).read_text()
    for found in re.finditer(r"<!-- (\w+) -->\n((?:\|.*\n)+)", text):
        lines = found[2].splitlines()[2:]
        cells = [re.split(r"(?<!\\)\|", line)[1:5] for line in lines]
        assert all(meaning.strip() for *_, meaning in cells), f"{page}: {found[1]} has a key without a meaning"
        yield found[1], [(key.strip(), kind.strip(), default.strip()) for key, kind, default, _ in cells]


PAGES = {page: dict(tables(page)) for page in ("format.md", "verifier-document.md", "arena-protocol.md")}
DOCUMENTED = [(page, name) for page, found in PAGES.items() for name in found]


@pytest.mark.parametrize(("page", "name"), DOCUMENTED)
def test_a_table_says_what_the_record_accepts(page: str, name: str) -> None:
    own = [row for row in rows_of(MODELS[name]) if name not in strategies_by_name() or row[0] not in SHARED]
    assert PAGES[page][name] == own


SHARED = {"`type`", "`config`", "`description`"}


def strategies_by_name() -> set[str]:
    return {model.__name__ for model in strategies.STRATEGIES.values()}


def test_every_record_has_a_table() -> None:
    assert {name for _, name in DOCUMENTED} >= MODELS.keys() - DOCUMENTED_ELSEWHERE - {"TaskConfig", "VerifierRoot"}


def test_every_word_of_the_vocabularies_that_pages_explain_is_there() -> None:
    text = (DOCS / "format.md").read_text()
    words = (*interaction.INTERACTION_MODES, *namespace.VISIBILITIES, *evidence_config.CASE_TYPES)
    assert [word for word in words if f"`{word}`" not in text] == []
    assert [word for word in config.NETWORK_MODES if f"`{word}`" not in text] == []


def test_every_preset_is_explained() -> None:
    text = (DOCS / "presets.md").read_text()
    assert [name for name in PRESETS if f"## `{name}`" not in text] == []


def test_the_index_links_every_page() -> None:
    index = (DOCS / "index.md").read_text()
    linked = set(re.findall(r"\]\(([\w./-]+\.md)\)", index))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"index.md"}
    assert linked == pages


@pytest.mark.parametrize("page", sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")))
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (DOCS / page).read_text()
    for target in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", text):
        assert ((DOCS / page).parent / target).is_file(), target
