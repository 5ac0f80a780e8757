"""The reward files of one verification in a host folder: read with a size limit, validated, written in canonical form.

`reward.json` is authoritative, `reward.txt` holds the scalar for other readers, `reward-details.json` is evidence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchflow.errors import InfrastructureFailure, Issue
from benchflow.files.atomic import write_atomic, write_unseen
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.rewards.aggregate import AggregatePolicy
from benchflow.rewards.numbers import UNIT, RewardRange, shown
from benchflow.rewards.reward_errors import RewardError
from benchflow.rewards.reward_map import settle
from benchflow.rewards.verdict import Scored

REWARD_TEXT: Final = "reward.txt"
REWARD_JSON: Final = "reward.json"
REWARD_DETAILS: Final = "reward-details.json"
MAX_BYTES: Final = 1 << 20
"""Size limit of each reward file."""

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def read_reward(folder: Path, *, reward_range: RewardRange = UNIT, policy: AggregatePolicy | None = None) -> Scored:
    """The reward stated by the files in `folder`; the caller must make sure that they are new.

    `policy` is declared by the package (the aggregate policy of the verifier document, or of its criteria). Raises
    `RewardError` for invalid files and `InfrastructureFailure` for a folder that cannot be read. Invalid details do not
    affect the score; they become a diagnostic.
    """
    text = _read(folder / REWARD_TEXT)
    data = _read(folder / REWARD_JSON)
    scored = settle(
        None if data is None else _parse(data),
        None if text is None else parse_reward_text(text),
        reward_range=reward_range,
        policy=policy,
    )
    details, problem = _details(folder / REWARD_DETAILS)
    if details is None and problem is None:
        return scored
    diagnostics = scored.diagnostics if problem is None else (*scored.diagnostics, problem)
    return replace(scored, details=details, diagnostics=diagnostics)


def write_reward(folder: Path, scored: Scored, *, unseen: bool = False) -> None:
    """Write the canonical `reward.json` and `reward.txt` to `folder`, each atomically.

    In an `unseen` folder, which nobody reads before it is moved into place, they are written directly. Details are
    written only if the folder has none, so those of a verifier are kept. Raises `InfrastructureFailure`.
    """
    write = write_unseen if unseen else write_atomic
    try:
        write(folder / REWARD_JSON, render_json(scored.document))
        write(folder / REWARD_TEXT, f"{scored.reward!r}\n")
        details = folder / REWARD_DETAILS
        if scored.details is not None and not os.path.lexists(details):
            write(details, render_json(scored.details))
    except OSError as error:
        raise InfrastructureFailure(
            f"cannot write the reward to {folder}: {error.strerror}", code="unwritable"
        ) from error


def parse_reward_text(data: bytes) -> float:
    """The decimal number in a `reward.txt`; its range is not checked. Raises `RewardError`."""
    try:
        text = data.decode("utf-8-sig").strip(" \t\r\n")
    except UnicodeDecodeError as error:
        raise _invalid(REWARD_TEXT, f"is not UTF-8 (byte {error.start})") from error
    if not text:
        raise _invalid(REWARD_TEXT, "is empty")
    if not _NUMBER.fullmatch(text):
        raise _invalid(REWARD_TEXT, f"must contain one decimal number, not {shown(text)}")
    return float(text)


def render_json(value: object) -> str:
    """A JSON document, formatted as this project writes it."""
    plain: Any = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _parse(data: bytes) -> object:
    try:
        value: object = parse_json(data)
    except StrictJSONError as error:
        raise _invalid(REWARD_JSON, str(error)) from error
    if value is None:
        raise _invalid(REWARD_JSON, "must contain an object, not null")
    return value


def _read(path: Path) -> bytes | None:
    """The bytes of the file, or None if it does not exist."""
    try:
        return read_regular(path, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        return None
    except RefusedFileError as error:
        raise _invalid(path.name, str(error)) from error
    except OSError as error:
        raise InfrastructureFailure(
            f"cannot read {path}: {error.strerror}", code="unreadable", file=path.name
        ) from error


def _details(path: Path) -> tuple[Any, Issue | None]:
    try:
        data = _read(path)
        return (None if data is None else parse_json(data)), None
    except StrictJSONError as error:
        message = f"{path.name} {error}"
    except RewardError as error:
        message = str(error)
    return None, Issue("details-invalid", "warning", "", message, path.name)


def _invalid(name: str, problem: str) -> RewardError:
    return RewardError(f"{name} {problem}", file=name)
