"""The kinds of values that fields take: how each is checked and what it becomes.

A kind rejects a value with a clause that continues the path (`environment.cpus must be …`). Numbers may be given as
decimal strings; booleans are never numbers; lists become tuples and mappings are frozen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf, isfinite
from string import ascii_letters
from typing import Any, Final

from benchflow.task.config.parsed_record import FrozenMap, InvalidValueError, IssueLog, Kind, Record, Secret, describe

_INTEGER: Final = r"[+-]?[0-9]{1,18}"
_SHA256: Final = r"(?:sha256:)?[0-9a-f]{64}"
_NAME: Final = r"[A-Za-z0-9_.-]{1,128}"
_MAX_SHOWN = 40


def _text(value: Any, _path: str, _problems: IssueLog) -> str:
    if type(value) is not str:
        hint = "; put it in quotes" if isinstance(value, (int, float)) else ""
        raise InvalidValueError(f"must be a string, not {describe(value)}{hint}", "invalid-type")
    return value


def _some_text(value: Any, path: str, problems: IssueLog) -> str:
    if type(value) is not str:
        _text(value, path, problems)
    if not value or value.isspace():
        raise InvalidValueError("must not be empty")
    return str(value)


def _line(value: Any, path: str, problems: IssueLog) -> str:
    if "\n" in _some_text(value, path, problems).strip("\n"):
        raise InvalidValueError("must be a single line")
    return str(value)


def _flag(value: Any, _path: str, _problems: IssueLog) -> bool:
    if type(value) is not bool:
        raise InvalidValueError(f"must be true or false, not {describe(value)}", "invalid-type")
    return value


def _free(value: Any, _path: str, _problems: IssueLog) -> Any:
    return value


def _user(value: Any, path: str, problems: IssueLog) -> str | int:
    if type(value) is int and value >= 0:
        return value
    return _some_text(value, path, problems) if isinstance(value, str) else _refuse_user(value)


def _refuse_user(value: Any) -> str:
    raise InvalidValueError(f"must be a user name or number, not {describe(value)}", "invalid-type")


text = Kind(_text, exact=str)
some_text = Kind(_some_text)
line = Kind(_line)
flag = Kind(_flag, exact=bool)
user = Kind(_user)


def number(*, above: float | None = None, least: float | None = None, most: float | None = None) -> Kind:
    """A finite number within the given bounds."""

    def parse(value: Any, _path: str, _problems: IssueLog) -> float:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise InvalidValueError("must be a number, not a string", "invalid-type") from None
        if type(value) not in (int, float):
            raise InvalidValueError(f"must be a number, not {describe(value)}", "invalid-type")
        try:
            result = float(value)
        except OverflowError:
            result = inf
        if not isfinite(result):
            raise InvalidValueError("must be a finite number")
        check_bounds(result, above, least, most)
        return result if type(value) is float else value

    return Kind(parse)


def integer(*, least: int | None = None, most: int | None = None) -> Kind:
    """An integer within the given bounds; `2.0` and `"2"` count as 2."""

    def parse(value: Any, _path: str, _problems: IssueLog) -> int:
        if (type(value) is str and re.fullmatch(_INTEGER, value)) or (
            type(value) is float and value.is_integer() and abs(value) < 2**53
        ):
            value = int(value)
        if type(value) is not int:
            raise InvalidValueError(f"must be an integer, not {describe(value)}", "invalid-type")
        check_bounds(value, None, least, most)
        return value

    return Kind(parse)


def check_bounds(value: float, above: float | None, least: float | None, most: float | None) -> None:
    """Reject a number outside its bounds."""
    if above is not None and not value > above:
        raise InvalidValueError(f"must be greater than {above:g}")
    if least is not None and value < least:
        raise InvalidValueError(f"must be at least {least:g}")
    if most is not None and value > most:
        raise InvalidValueError(f"must be at most {most:g}")


def choice(*allowed: str, fold: bool = False) -> Kind:
    """One of the allowed words; `fold` ignores case."""
    words = frozenset(allowed)

    def parse(value: Any, _path: str, _problems: IssueLog) -> str:
        word = value.lower() if fold and isinstance(value, str) else value
        if type(word) is not str or word not in words:
            shown = f"'{value[:_MAX_SHOWN]}'" if isinstance(value, str) else describe(value)
            raise InvalidValueError(f"must be one of {', '.join(allowed)}; it is {shown}")
        return word

    return Kind(parse)


def matching(pattern: str, meaning: str) -> Kind:
    """A string that fully matches a pattern; `meaning` describes what is expected."""

    fullmatch: Callable[[str], re.Match[str] | None] | None = None

    def parse(value: Any, path: str, problems: IssueLog) -> str:
        nonlocal fullmatch
        if fullmatch is None:
            fullmatch = re.compile(pattern).fullmatch  # compiled on first use: many patterns are never needed
        if not fullmatch(_text(value, path, problems)):
            raise InvalidValueError(f"must be {meaning}; it is '{value[:_MAX_SHOWN]}'")
        return str(value)

    return Kind(parse)


name = matching(_NAME, "a name of letters, digits, '_', '.' and '-'")


def _digest(value: Any, path: str, problems: IssueLog) -> str:
    folded = _text(value, path, problems).lower()
    if not re.fullmatch(_SHA256, folded):
        raise InvalidValueError("must be a SHA-256 digest of 64 hexadecimal digits")
    return folded.removeprefix("sha256:")


sha256 = Kind(_digest)
"""Hexadecimal digest, accepted with or without `sha256:`, stored without."""


def unsafe_path(value: str) -> str | None:
    """Why a relative path is not allowed inside a package, or None."""
    if not value.strip():
        return "must not be empty"
    if value.startswith(("/", "~")) or "\\" in value or "\0" in value or _has_drive(value):
        return "must be a relative path with forward slashes"
    if ".." in value.split("/"):
        return "must not contain '..'"
    return None


def _has_drive(value: str) -> bool:
    return value[1:2] == ":" and value[0] in ascii_letters


def _relative(value: Any, path: str, problems: IssueLog) -> str:
    problem = unsafe_path(_text(value, path, problems))
    if problem:
        raise InvalidValueError(problem, "unsafe-path")
    cleaned = "/".join(part for part in value.split("/") if part not in ("", "."))
    if not cleaned:
        raise InvalidValueError("must name a file or folder inside the package", "unsafe-path")
    return cleaned


def _absolute(value: Any, path: str, problems: IssueLog) -> str:
    if not _text(value, path, problems).startswith("/") or "\0" in value or ".." in value.split("/"):
        raise InvalidValueError("must be an absolute path without '..'", "unsafe-path")
    return str(value)


relative_path = Kind(_relative)
absolute_path = Kind(_absolute)


def record(model: type[Record]) -> Kind:
    """A nested record."""
    return Kind(model.parse, model)


def listing(kind: Kind, *, least: int = 0, unique: bool = False) -> Kind:
    """A list, stored as a tuple; invalid items are reported and dropped."""
    item_parse = kind.parse

    def parse(value: Any, path: str, problems: IssueLog) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise InvalidValueError(f"must be a list, not {describe(value)}", "invalid-type")
        items: list[Any] = []
        for index, item in enumerate(value):
            where = f"{path}[{index}]"
            try:
                parsed = item_parse(item, where, problems)
            except InvalidValueError as problem:
                problems.error(problem.code, where, f"{where} {problem}")
                continue
            if unique and parsed in items:
                problems.error("invalid-value", where, f"{where} repeats an earlier item")
            elif parsed is not None:
                items.append(parsed)
        if len(value) < least:
            raise InvalidValueError("must not be empty")
        return tuple(items)

    return Kind(parse, kind.model, "list")


def mapping(kind: Kind, *, least: int = 0, keys: Kind | None = None) -> Kind:
    """A mapping with free keys, stored frozen; invalid entries are reported and dropped."""
    item_parse = kind.parse

    def parse(value: Any, path: str, problems: IssueLog) -> FrozenMap:
        if not isinstance(value, dict):
            raise InvalidValueError(f"must be a mapping, not {describe(value)}", "invalid-type")
        parsed: dict[str, Any] = {}
        for key, item in value.items():
            where = f"{path}.{key}"
            try:
                if keys is not None:
                    keys.parse(key, where, problems)
                result = item_parse(item, where, problems)
            except InvalidValueError as problem:
                problems.error(problem.code, where, f"{where} {problem}")
                continue
            if result is not None:
                parsed[key] = result
        if len(value) < least:
            raise InvalidValueError("must not be empty")
        return FrozenMap(parsed)

    return Kind(parse, kind.model, "map")


def _free_mapping(value: Any, _path: str, _problems: IssueLog) -> FrozenMap:
    if not isinstance(value, dict):
        raise InvalidValueError(f"must be a mapping, not {describe(value)}", "invalid-type")
    return FrozenMap(value)


free_mapping = Kind(_free_mapping)
"""A mapping that is stored as written."""

env = mapping(text, keys=matching(r"[^=\s\0]{1,255}", "the name of an environment variable"))


def _secret_texts(value: Any, path: str, problems: IssueLog) -> Secret:
    return Secret(mapping(text).parse(value, path, problems))


secret_texts = Kind(_secret_texts)
"""Names mapped to private strings; the strings are never shown."""


_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_MAX_HOST: Final = 253


def _parse(value: Any, path: str, problems: IssueLog) -> str:
    host: str = text.parse(value, path, problems).strip().lower().removesuffix(".")
    if not host:
        raise InvalidValueError("must not be empty")
    if "://" in host:
        raise InvalidValueError(f"must be a host name, not a URL; it is '{host[:60]}'")
    if _is_address(host):
        return host
    if "/" in host or ":" in host:
        raise InvalidValueError(f"must be a host name without port or path; it is '{host[:60]}'")
    labels = host.removeprefix("*.").split(".")
    if len(host) > _MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidValueError(f"must be a host name, or '*.' followed by a domain; it is '{host[:60]}'")
    return host


def _is_address(host: str) -> bool:
    if not (host[0].isdigit() or ":" in host):
        return False
    from ipaddress import ip_address, ip_network

    try:
        if "/" in host:
            ip_network(host)
        else:
            ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


hosts: Final = listing(Kind(_parse))
"""A list of hosts, in lower case without a trailing dot."""


def check_network(values: dict[str, Any], path: str, problems: IssueLog) -> None:
    """`allowlist` and `allowed_hosts` go together; only foreign imports may have an empty list."""
    mode, allowed = values.get("network_mode"), values.get("allowed_hosts")
    prefix = f"{path}." if path else ""
    if mode == "allowlist" and not allowed and not problems.foreign:
        problems.error(
            "invalid-value",
            f"{prefix}allowed_hosts",
            f"{prefix}allowed_hosts must name at least one host when network_mode is allowlist",
        )
    if allowed is not None and mode != "allowlist":
        problems.error(
            "conflicting-keys", f"{prefix}allowed_hosts", f"{prefix}allowed_hosts needs network_mode: allowlist"
        )
