"""The benchmark manifest that a user gives: name, version, licence, description and splits, as TOML or JSON.

A split is a list of patterns (`*`, `?`, `[…]`) over the paths and names of packages; `resolve` turns them into the
paths in the bundle. A pattern without a match, and a key that is not known, are refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from benchflow.errors import UsageError
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.task.bundles.bundle_index import Benchmark, PackageEntry

_TEXTS: Final = ("name", "version", "license", "description")
_MAX_BYTES: Final = 8 << 20
_SPLIT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_manifest_file(path: Path) -> Benchmark:
    """The manifest in a TOML file, or in a JSON file by its name; splits are patterns still."""
    try:
        data = read_regular(path, max_bytes=_MAX_BYTES)
        document = parse_json(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    except (OSError, RefusedFileError) as error:
        raise _refused(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except StrictJSONError as error:
        raise _refused(path, str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _refused(path, f"is not TOML: {error}") from error
    if not isinstance(document, dict):
        raise _refused(path, "does not contain a mapping")
    unknown = sorted(document.keys() - {*_TEXTS, "splits"})
    if unknown:
        raise _refused(path, f"has the unknown key '{unknown[0]}'; known keys: {', '.join(_TEXTS)}, splits")
    wrong = next((key for key in _TEXTS if not isinstance(document.get(key, ""), str)), None)
    if wrong is not None:
        raise _refused(path, f"has a '{wrong}' that is not a text")
    texts = {key: document.get(key, "") for key in _TEXTS}
    return Benchmark(**texts, splits=_splits(path, document.get("splits", {})))


def _splits(path: Path, written: Any) -> Mapping[str, tuple[str, ...]]:
    good = isinstance(written, dict) and all(
        isinstance(patterns, list) and patterns and all(isinstance(pattern, str) for pattern in patterns)
        for patterns in written.values()
    )
    if not good:
        raise _refused(path, "needs a list of paths or patterns for each of its splits")
    return {name: tuple(patterns) for name, patterns in written.items()}


def parse_split(option: str) -> tuple[str, tuple[str, ...]]:
    """`NAME=PATTERN[,PATTERN…]`, as an option gives it."""
    name, equals, patterns = option.partition("=")
    chosen = tuple(pattern for pattern in patterns.split(",") if pattern)
    if not equals or not chosen:
        raise UsageError(f"--split takes NAME=PATTERN[,PATTERN...], not {option!r}.", code="split-invalid")
    return name, chosen


def resolve(splits: Mapping[str, Sequence[str]], packages: Sequence[PackageEntry]) -> dict[str, tuple[str, ...]]:
    """Each split as the sorted paths of its packages."""
    resolved: dict[str, tuple[str, ...]] = {}
    for name, patterns in splits.items():
        if _SPLIT.fullmatch(name) is None:
            message = f"The split name {name!r} may have letters, digits, '.', '_' and '-' only."
            raise UsageError(message, code="split-invalid")
        chosen: set[str] = set()
        for pattern in patterns:
            found = {entry.path for entry in packages if fnmatchcase(entry.path, pattern) or entry.name == pattern}
            if not found:
                raise UsageError(f"The split '{name}' has '{pattern}', which no package matches.", code="split-invalid")
            chosen |= found
        resolved[name] = tuple(sorted(chosen))
    return resolved


def _refused(path: Path, reason: str) -> UsageError:
    return UsageError(f"{path} {reason}.", code="manifest-invalid")
