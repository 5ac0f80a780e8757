"""`scenario.toml`: `[green_agent]`, `[[participants]]`, `[config]`, as data; read with the line of every problem.

A command is split as a shell splits words and never run by a shell. The address and the port that it is started with
are settings of one machine, and no part of the scenario.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import tomli_w

from benchflow.errors import Issue, IssuesError, PackageError
from benchflow.task.config import kinds
from benchflow.task.config.kinds import listing, some_text
from benchflow.task.config.parsed_record import FrozenMap, InvalidValueError, IssueLog, Kind, Record, field
from benchflow.task.document.markdown import MAX_TEXT_BYTES
from benchflow.task.document.toml_source import key_lines, parse_toml
from benchflow.task.filemap import read_regular

PLACE_OPTIONS: Final = ("--host", "--port", "--card-url")
"""What says where a program listens; every start has its own."""


class ScenarioError(IssuesError):
    """A scenario file that is not valid."""


def _endpoint(value: Any, path: str, problems: IssueLog) -> str:
    text = some_text.parse(value, path, problems)
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise InvalidValueError(f"must be an http or https URL; it is '{text[:60]}'")
    return str(text)


def _command(value: Any, path: str, problems: IssueLog) -> str:
    text = some_text.parse(value, path, problems)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidValueError(f"cannot be split into words: {error}") from error
    if not words:
        raise InvalidValueError("must not be empty")
    return str(text)


class GreenAgent(Record):
    """`[green_agent]`: the assessor."""

    endpoint: str | None = field(Kind(_endpoint), default=None)
    cmd: str | None = field(Kind(_command), default=None)


class Participant(Record):
    """One of `[[participants]]`."""

    role: str = field(kinds.name)
    endpoint: str | None = field(Kind(_endpoint), default=None)
    cmd: str | None = field(Kind(_command), default=None)


class Scenario(Record):
    """A whole file."""

    green_agent: GreenAgent = field(kinds.record(GreenAgent))
    participants: tuple[Participant, ...] = field(listing(kinds.record(Participant), least=1))
    config: FrozenMap = field(kinds.free_mapping, default=FrozenMap())

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        del path
        seen: set[str] = set()
        for index, each in enumerate(values["participants"]):
            if each.role in seen:
                where = f"participants[{index}].role"
                problems.error("invalid-value", where, f"{where} is '{each.role}', which another participant has")
            seen.add(each.role)


def read_scenario(path: Path) -> tuple[Scenario, tuple[Issue, ...]]:
    """A scenario, and warnings about what it has that has no meaning here. Raises `PackageError`."""
    try:
        data, _ = read_regular(path, MAX_TEXT_BYTES)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise PackageError(f"{path} cannot be read: {why}", code="unreadable", file=path.name) from error
    mapping = parse_toml(text, file=path.name)
    lines = key_lines(text)
    problems = IssueLog(path.name, lines.get, foreign=True)
    scenario = ScenarioError.require(Scenario.parse(mapping, "", problems), problems.issues)
    return scenario, tuple(problems.issues)


def without_place(command: str) -> str:
    """A command without the options that say where it listens."""
    kept: list[str] = []
    words = iter(shlex.split(command))
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in PLACE_OPTIONS:
            kept.append(word)
        elif not equals:
            next(words, None)
    return shlex.join(kept)


def render_scenario(green: Mapping[str, str], participants: Sequence[Mapping[str, str]], config: Any) -> str:
    """The text of a scenario file."""
    tables = [f"[[participants]]\n{tomli_w.dumps(each)}" for each in participants]
    return "\n".join([tomli_w.dumps({"green_agent": green}), *tables, tomli_w.dumps({"config": config})])
