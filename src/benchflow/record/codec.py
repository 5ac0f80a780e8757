"""Records as plain JSON values and back, by their types alone.

`plain` writes a frozen dataclass: fields without a default always, fields with one only when they differ from it.
`read` is the way back and checks every value, so that a damaged document is a `ValueError` and never a wrong record. A
field marked `FLAT` has no key: the keys of its value are written beside those of the enclosing record.

On disk, documents are written atomically, and files of JSON lines grow. A line is one write, so a kill can damage only
the last one.
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, Final, Literal, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from benchflow.files.atomic import growing_file, write_atomic
from benchflow.rewards.numbers import finite, shown

FLAT: Final = types.MappingProxyType({"flat": True})
"""Metadata of a field whose value is written between the other fields."""
Reader = Callable[[Any], Any]
Record = TypeVar("Record")
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_KINDS: Final[dict[Any, tuple[tuple[type, ...], str]]] = {
    str: ((str,), "a text"),
    bool: ((bool,), "true or false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
}
_PLAIN: Final = 2**53
"""Numbers within these bounds are finite, and floats of integers are exact."""
_READERS: Final[dict[Any, Reader]] = {}
_JSON: Final = json.JSONEncoder(ensure_ascii=False)
_LINE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """A value of records as JSON has it."""
    return value if type(value) in _SCALARS else _plainer(cast("Hashable", type(value)))(value)


@cache
def _plainer(kind: Any) -> Callable[[Any], Any]:
    """What `plain` does with values of a type that is not scalar."""
    if issubclass(kind, Mapping):
        return lambda value: {key: plain(item) for key, item in value.items()}
    if issubclass(kind, list | tuple):
        return lambda value: [plain(item) for item in value]
    own: Callable[[Any], Any] = getattr(kind, "to_plain", _plain_record)
    return own


def read(kind: type[Record], value: Any) -> Record:
    """The record that `plain` wrote; raises `ValueError` with the wrong key."""
    found: Record = _reader(cast("Hashable", kind))(value)
    return found


def register(kind: Any, reader: Reader) -> None:
    """Read values of this type with its own function, which raises `ValueError` for invalid ones."""
    _READERS[kind] = reader


def cleaned(record: Record, clean: Callable[[str], str]) -> Record:
    """The record with every free text passed through `clean`; words of a fixed vocabulary stay unchanged."""
    changes = {}
    for name, is_text in _text_fields(cast("Hashable", type(record))):
        value = getattr(record, name)
        new = _cleaned_value(value, clean) if is_text or not isinstance(value, str) else value
        if new != value:
            changes[name] = new
    return replace(record, **changes) if changes else record  # type: ignore[type-var] # every record is a dataclass


def _cleaned_value(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, tuple):
        return tuple(_cleaned_value(item, clean) for item in value)
    if isinstance(value, Mapping):
        return {clean(key): _cleaned_value(item, clean) for key, item in value.items()}
    return cleaned(value, clean) if is_dataclass(value) else value


@cache
def _text_fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    """The fields of a record, each with whether a text in it is free."""
    return tuple((name, hint in (str, str | None)) for name, hint in get_type_hints(kind).items())


def _plain_record(record: Any) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for name, default, flat in _written_fields(cast("Hashable", type(record))):
        value = getattr(record, name)
        if flat:
            written.update(plain(value))
        elif default is MISSING or value != default:
            written[name] = value if type(value) in _SCALARS else plain(value)
    return written


@cache
def _written_fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    return tuple(
        (
            field.name,
            field.default if field.default_factory is MISSING else field.default_factory(),
            bool(field.metadata.get("flat")),
        )
        for field in fields(kind)
    )


@cache
def _reader(kind: Any) -> Reader:
    if kind in _READERS:
        return _READERS[kind]
    if kind is Any:
        return lambda value: value
    if isinstance(kind, NewType):
        return _reader(kind.__supertype__)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record_reader(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _one_of(frozenset(arguments))
    if origin in (Union, types.UnionType):
        return _optional(arguments)
    if origin is tuple:
        return _listed(_reader(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapped(_reader(arguments[1]))
    return _scalar(kind)


def _record_reader(kind: type) -> Reader:
    known = tuple(_read_fields(kind))
    required = tuple((name, read_field) for name, read_field, needed, flat in known if needed and not flat)
    others = tuple((name, read_field) for name, read_field, needed, flat in known if not needed and not flat)
    flats = tuple((name, read_field) for name, read_field, _, flat in known if flat)

    def reader(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        # Jobs have many thousands of sound records: what is wrong with another one is looked for afterwards.
        try:
            given = {name: read_field(value[name]) for name, read_field in required}
            for name, read_field in flats:
                given[name] = read_field(value)
            for name, read_field in others:
                if name in value:
                    given[name] = read_field(value[name])
        except (KeyError, ValueError):
            given = _examined(known, value)
        return kind(**given)

    return reader


def _examined(known: Iterable[tuple[str, Reader, bool, bool]], value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record in their order; raises `ValueError` with the first that is wrong or missing."""
    given: dict[str, Any] = {}
    for name, read_field, needed, flat in known:
        if flat:
            given[name] = read_field(value)
        elif name in value:
            try:
                given[name] = read_field(value[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        elif needed:
            raise ValueError(f"the key '{name}' is missing")
    return given


def _read_fields(kind: type) -> Iterator[tuple[str, Reader, bool, bool]]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        required = field.default is MISSING and field.default_factory is MISSING
        yield field.name, _reader(hints[field.name]), required, bool(field.metadata.get("flat"))


def _one_of(known: frozenset[Any]) -> Reader:
    def reader(value: Any) -> Any:
        if isinstance(value, dict | list) or value not in known:
            raise _wrong(value, f"one of {', '.join(sorted(map(str, known)))}")
        return value

    return reader


def _optional(arguments: tuple[Any, ...]) -> Reader:
    """A value of one type, or null; records have no other unions except those with their own reader."""
    [inner] = [argument for argument in arguments if argument is not type(None)]
    read_inner = _reader(inner)
    return lambda value: None if value is None else read_inner(value)


def _listed(read_item: Reader) -> Reader:
    def reader(value: Any) -> Any:
        if not isinstance(value, list):
            raise _wrong(value, "a list")
        return tuple([read_item(item) for item in value])

    return reader


def _mapped(read_item: Reader) -> Reader:
    def reader(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        return {key: read_item(item) for key, item in value.items()}

    return reader


def _scalar(kind: Any) -> Reader:
    accepted, wanted = _KINDS[kind]
    is_number = kind in (int, float)

    def reader(value: Any) -> Any:
        if type(value) is kind and (not is_number or -_PLAIN < value < _PLAIN):
            return value
        if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
            raise _wrong(value, wanted)
        if is_number and finite(value) is None:
            raise _wrong(value, "a finite number")
        return value

    return reader


def _wrong(value: Any, wanted: str) -> ValueError:
    return ValueError(f"{shown(value)} is not {wanted}")


class JsonLines:
    """Appends records to one file, which is created with the first."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._descriptor: int | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record at once. Raises `OSError`."""
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o666)
        data = encoded_line(record)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def encoded_line(record: Mapping[str, Any]) -> bytes:
    """A record as one line, with its end."""
    return (_LINE.encode(record) + "\n").encode(errors="replace")


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line that was written to its end, by its number from 1; a torn last one is left out. No file: no lines."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        for number, line in enumerate(stream, 1):
            if line.endswith(b"\n"):
                yield number, line


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, one at a time; lines that are torn or not objects are left out. No file: no records."""
    for _, line in whole_lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def write_document(path: Path, document: Mapping[str, Any], *, sync: bool = False) -> None:
    """Write a JSON document with one line per key, atomically; its folder is created. Raises `OSError`."""
    encode = _JSON.encode
    lines = [f"  {encode_basestring(key)}: {encode(value)}" for key, value in document.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    try:
        write_atomic(path, text, sync=sync)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text, sync=sync)


def write_listing(path: Path, head: Mapping[str, Any], name: str, items: Iterable[Any]) -> None:
    """Write a JSON document that ends with a list, one line per key and per item, atomically. Raises `OSError`.

    Items are encoded one at a time, so that a list of any length takes no memory.
    """
    encode = _JSON.encode
    with growing_file(path) as stream:
        stream.write("{\n")
        stream.writelines(f"  {encode_basestring(key)}: {encode(value)},\n" for key, value in head.items())
        stream.write(f"  {encode_basestring(name)}: [")
        between = "\n"
        for item in items:
            stream.write(f"{between}    {encode(item)}")
            between = ",\n"
        stream.write("\n  ]\n}\n" if between != "\n" else "]\n}\n")
