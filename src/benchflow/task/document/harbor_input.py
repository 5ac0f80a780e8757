"""A `task.toml` mapping as Harbor accepts it -> one that the native configuration accepts, plus the rest.

Only differences between the two readers are handled here: values that mean nothing to Harbor are moved
aside, values with another native spelling are respelled. Wrong values pass through and are refused later.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any, Final

from benchflow.task.config.issues import IssueLog
from benchflow.task.config.parsed_record import join

TIME_AS_TEXT: Final = "time-as-text"
_NATIVE_VERSION: Final = re.compile(r"0*1(\.[0-9]{1,6})?")


def adapt_harbor_config(data: dict[str, Any], problems: IssueLog) -> tuple[dict[str, Any], dict[str, Any]]:
    """The mapping in native form, and what was moved aside, nested as it was. `data` is not changed."""
    adapted = _copy(data, "", problems)
    moved: dict[str, Any] = {}
    _adapt_version(adapted, moved, problems)
    _adapt_authors(adapted)
    for path, section in _sections(adapted):
        aside = _adapt_section(path, section, problems)
        if aside:
            _place(moved, path, aside)
    return adapted, moved


def _copy(value: Any, path: str, problems: IssueLog) -> Any:
    """A deep copy in which a time of day, which YAML does not have, is text; each is reported."""
    if isinstance(value, dict):
        return {key: _copy(item, join(path, key), problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item, f"{path}[{index}]", problems) for index, item in enumerate(value)]
    if not isinstance(value, dt.time):
        return value
    written = value.isoformat()
    problems.warning(
        TIME_AS_TEXT, path, f"{path} is a time of day, which YAML does not have; it is read as '{written}'"
    )
    return written


def _adapt_version(data: dict[str, Any], moved: dict[str, Any], problems: IssueLog) -> None:
    spelled = "schema_version" if "schema_version" in data else "version"
    if spelled not in data:
        return
    if spelled == "schema_version" and "version" in data:
        moved["version"] = data.pop("version")
    version = data.pop(spelled)
    if type(version) in (int, float):
        version = str(version)
    if isinstance(version, str) and not _NATIVE_VERSION.fullmatch(version):
        problems.warning(
            "unknown-schema",
            spelled,
            f"{spelled} '{version[:40]}' is not known; it is read as the current one",
        )
        moved[spelled] = version
        return
    items = list(data.items())
    data.clear()
    data.update({"schema_version": version, **dict(items)})


def _adapt_authors(data: dict[str, Any]) -> None:
    task = data.get("task")
    if isinstance(task, dict) and isinstance(task.get("authors"), list):
        task["authors"] = [{"name": item} if isinstance(item, str) else item for item in task["authors"]]


def _sections(data: dict[str, Any]) -> Iterator[tuple[list[str | int], dict[str, Any]]]:
    """Every section that has a network, with where it is; those of the steps too."""
    holders: list[tuple[list[str | int], dict[str, Any]]] = [([], data)]
    steps = data.get("steps")
    if isinstance(steps, list):
        holders += [(["steps", index], step) for index, step in enumerate(steps) if isinstance(step, dict)]
    for prefix, holder in holders:
        for name in ("agent", "verifier", "environment", "sandbox"):
            section = holder.get(name)
            if not isinstance(section, dict):
                continue
            yield [*prefix, name], section
            if name == "verifier":
                for inner in ("environment", "sandbox"):
                    if isinstance(section.get(inner), dict):
                        yield [*prefix, name, inner], section[inner]


def _adapt_section(where: list[str | int], section: dict[str, Any], problems: IssueLog) -> dict[str, Any]:
    path = ""
    for part in where:
        path = f"{path}[{part}]" if isinstance(part, int) else join(path, part)
    aside: dict[str, Any] = {}

    def put_aside(key: str, why: str) -> None:
        aside[key] = section.pop(key)
        problems.warning("no-effect", f"{path}.{key}", f"{path}.{key} {why}; it is preserved and has no effect")

    if "allow_internet" in section and "network_mode" in section:
        put_aside("allow_internet", "is superseded by network_mode")
    for key in ("memory", "storage"):
        if where[-1] != "verifier" and not isinstance(section.get(key, ""), str):
            put_aside(key, "is not a text such as '2G'")
    if section.get("network_mode") == "allowlist" and section.get("allowed_hosts", []) == []:
        section["network_mode"] = "no-network"
    if section.get("network_mode") != "allowlist" and section.get("allowed_hosts") == []:
        del section["allowed_hosts"]
    skills = section.get("skills_dir")
    if isinstance(skills, str) and not skills.startswith("/"):
        put_aside("skills_dir", "is not an absolute path")
    return aside


def _place(root: dict[str, Any], where: list[str | int], aside: dict[str, Any]) -> None:
    """Put what was moved aside where it came from; lists are padded with None."""
    node: Any = root
    for part, following in zip(where, [*where[1:], None], strict=True):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(part, int):
            node.extend([None] * (part + 1 - len(node)))
            node[part] = empty if node[part] is None else node[part]
            node = node[part]
        else:
            node = node.setdefault(part, empty)
    node.update(aside)
