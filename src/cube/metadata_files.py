"""Metadata of benchmarks and tasks from JSON and CSV files.

Files are read whole into validated models. A problem is reported with its file and row; keys that the
model does not have are errors, because they would be lost.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from cube.typed import TypedBaseModel

M = TypeVar("M", bound=TypedBaseModel)
RETIRED: Final = "extra_info"

logger = logging.getLogger(__name__)


class MetadataFileError(ValueError):
    """A metadata file that cannot be used; the message names file and row."""


def read_one(path: Path, model: type[M]) -> M:
    """The one object of a JSON file, or the one row of a CSV file."""
    rows = list(_rows(path, model, single=True))
    if len(rows) != 1:
        raise MetadataFileError(f"{path} must contain exactly one row, not {len(rows)}.")
    return _validate(path, *rows[0], model)


def read_many(path: Path, model: type[M], key: str) -> dict[str, M]:
    """All rows of a file by their `key`: a JSON list, a JSON object whose values are the rows, or a CSV table."""
    result: dict[str, M] = {}
    for label, row in _rows(path, model, single=False):
        item = _validate(path, label, row, model)
        identity = str(getattr(item, key))
        if identity in result:
            raise MetadataFileError(f"{path}, {label}: {key} '{identity}' appears twice.")
        result[identity] = item
    return result


def _rows(path: Path, model: type[TypedBaseModel], *, single: bool) -> Iterator[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise MetadataFileError(f"{path} is not UTF-8 text: {error}.") from error
    if path.suffix == ".csv":
        yield from _csv_rows(path, text, model)
        return
    try:
        data = json.loads(text)
    except ValueError as error:
        raise MetadataFileError(f"{path} is not valid JSON: {error}.") from error
    if single:
        yield "the object", data
    elif isinstance(data, list):
        yield from ((f"row {number}", row) for number, row in enumerate(data, 1))
    elif isinstance(data, dict):
        yield from ((f"row {number} ('{name}')", row) for number, (name, row) in enumerate(data.items(), 1))
    else:
        raise MetadataFileError(f"{path} must contain a JSON list or object of rows.")


def _csv_rows(path: Path, text: str, model: type[TypedBaseModel]) -> Iterator[tuple[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for number, row in enumerate(reader, 1):
            label = f"row {number} (line {reader.line_num})"
            if None in row:
                raise MetadataFileError(f"{path}, {label}: more cells than the header has columns.")
            yield label, {key: _cell(path, label, key, cell, model) for key, cell in row.items() if cell}
    except csv.Error as error:
        raise MetadataFileError(f"{path}, line {reader.line_num}: {error}.") from error


def _cell(path: Path, label: str, key: str, cell: str, model: type[TypedBaseModel]) -> Any:
    """A cell's value: JSON where it looks like a list or an object and the field is not text."""
    field = model.model_fields.get(key)
    if not cell.lstrip().startswith(("[", "{")) or (field is not None and field.annotation in (str, str | None)):
        return cell
    try:
        return json.loads(cell)
    except ValueError as error:
        raise MetadataFileError(f"{path}, {label}, column '{key}': not valid JSON: {error}.") from error


def _without_retired(path: Path, label: str, row: Any, model: type[TypedBaseModel]) -> Any:
    """The row without the field of tasks that earlier versions had for everything else; its contents are reported."""
    if not isinstance(row, dict) or RETIRED not in row or RETIRED in model.model_fields:
        return row
    if row[RETIRED]:
        logger.warning("%s, %s: '%s' is no longer a field of tasks, and is dropped.", path, label, RETIRED)
    return {key: value for key, value in row.items() if key != RETIRED}


def _validate(path: Path, label: str, row: Any, model: type[M]) -> M:
    row = _without_retired(path, label, row, model)
    try:
        item = model.model_validate(row)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise MetadataFileError(f"{path}, {label}{f', {place}' if place else ''}: {first['msg']}.") from error
    unknown = set(row) - set(type(item).model_fields) - {"_type"} if isinstance(row, dict) else set()
    if unknown:
        keys = ", ".join(f"'{key}'" for key in sorted(unknown))
        raise MetadataFileError(f"{path}, {label}: {type(item).__name__} has no field {keys}.")
    return item
