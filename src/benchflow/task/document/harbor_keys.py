"""What Harbor's split layout can express: its keys, its value rules, its files.

`express` keeps the part of a declared configuration that Harbor understands and names every path that it does not.
No other module knows the target.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

WHOLE: Final = None
"""A key whose value is kept unchanged."""
Schema = Mapping[str, Any]

ROOT_FILES: Final = ("README.md", ".gitignore", ".harborignore", "trajectory.json")
"""Files of a package that Harbor knows by name, beside `task.toml` and `instruction.md`."""
STEP_ENTRIES: Final = ("instruction.md", "trajectory.json", "workdir")
"""What a step folder may hold, beside its tests and its solution."""

_NETWORK: Final[Schema] = {"network_mode": WHOLE, "allowed_hosts": WHOLE}
_HEALTHCHECK: Final[Schema] = dict.fromkeys(
    ("command", "interval_sec", "timeout_sec", "start_period_sec", "start_interval_sec", "retries")
)
_MCP_SERVER: Final[Schema] = dict.fromkeys(("name", "transport", "url", "command", "args", "headers"))
_ARTIFACTS: Final = [dict.fromkeys(("source", "destination", "exclude", "service"))]
_AGENT: Final[Schema] = {**_NETWORK, "timeout_sec": WHOLE, "user": WHOLE}
_ENVIRONMENT: Final[Schema] = {
    **_NETWORK,
    **dict.fromkeys(("build_timeout_sec", "docker_image", "os", "cpus", "memory_mb", "storage_mb", "gpus")),
    **dict.fromkeys(("gpu_types", "env", "skills_dir", "workdir", "allow_internet", "memory", "storage")),
    "tpu": {"type": WHOLE, "topology": WHOLE},
    "mcp_servers": [_MCP_SERVER],
    "healthcheck": _HEALTHCHECK,
}
_VERIFIER: Final[Schema] = {
    **_NETWORK,
    **dict.fromkeys(("timeout_sec", "env", "user", "environment_mode")),
    "environment": _ENVIRONMENT,
    "collect": [dict.fromkeys(("command", "service", "timeout_sec", "user"))],
}
TASK_TOML: Final[Schema] = {
    **dict.fromkeys(("schema_version", "source", "multi_step_reward_strategy", "metadata")),
    "artifacts": _ARTIFACTS,
    "task": {
        **dict.fromkeys(("name", "version", "description", "keywords")),
        "authors": [{"name": WHOLE, "email": WHOLE}],
    },
    "agent": _AGENT,
    "verifier": _VERIFIER,
    "environment": _ENVIRONMENT,
    "solution": {"env": WHOLE},
    "steps": [
        {
            "name": WHOLE,
            "agent": _AGENT,
            "verifier": _VERIFIER,
            "min_reward": WHOLE,
            "healthcheck": _HEALTHCHECK,
            "artifacts": _ARTIFACTS,
        }
    ],
}

NO_SUCH_SETTING: Final = "Harbor has no such setting"
"""Why a setting is lost that Harbor would ignore; any other reason is a value that it rejects."""

IMPLIED: Final[Mapping[str, tuple[Any, ...]]] = {
    "verifier.type": ("test-script",),
    "verifier.service": ("main",),
    "verifier.isolation": ("auto", "open"),
}
"""Declared values that Harbor implies; omitting them loses nothing."""

_ROW = re.compile(r"\[\d+\]")
_CREDENTIAL = re.compile(r"authorization|cookie|token|secret|api[-_]?key|password", re.IGNORECASE)
_RESERVED_NAME = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_UNPORTABLE = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[. ]$')


@dataclass(frozen=True, slots=True)
class LostSetting:
    """A declared setting that the target does not understand."""

    path: str
    reason: str
    value: Any


@dataclass(slots=True)
class Expressed:
    """What the target understands of a configuration, and what it does not."""

    kept: dict[str, Any]
    lost: list[LostSetting] = field(default_factory=list)

    def lose(self, path: str, reason: str, value: Any) -> None:
        self.lost.append(LostSetting(path, reason, value))


def express(declared: Mapping[str, Any]) -> Expressed:
    """Reduce a declared configuration, in canonical native names, to `task.toml` as Harbor reads it."""
    result = Expressed({})
    for key, value in declared.items():
        name = "solution" if key == "oracle" else key
        kept = _express_key(TASK_TOML, name, value, key, result)
        if kept is not None:
            result.kept[name] = kept
    return result


def step_name_problem(name: str) -> str | None:
    """Why Harbor rejects a step's name, or None."""
    if not name or _UNPORTABLE.search(name) or _RESERVED_NAME.fullmatch(name) or name in {".", ".."}:
        return "Harbor accepts only step names that are portable folder names"
    return None


def _express_key(schema: Schema, key: str, value: Any, path: str, result: Expressed) -> Any:
    if value is None:
        return None
    if key not in schema:
        _report_unknown(value, path, result)
        return None
    problem = _value_problem(path, value)
    if problem:
        result.lose(path, problem, value)
        return None
    return _express_value(schema[key], value, path, result)


def _express_value(shape: Any, value: Any, path: str, result: Expressed) -> Any:
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        value = _respelled(value) if shape is _VERIFIER else value
        kept = {}
        for key, item in value.items():
            inner = _express_key(shape, key, item, f"{path}.{key}", result)
            if inner is not None:
                kept[key] = inner
        return kept if kept or not value else None
    if isinstance(shape, list) and isinstance(value, list):
        rows = []
        for index, row in enumerate(value):
            where = f"{path}[{index}]"
            problem = _value_problem(where, row)
            if problem:
                result.lose(where, problem, row)
                continue
            inner = _express_value(shape[0], row, where, result)
            rows.append({} if inner is None else inner)
        return rows
    if _has_empty_item(value):
        result.lose(path, "TOML has no empty list items; they are omitted", None)
    return without_nulls(value)


def _respelled(verifier: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a verifier, a separate one in Harbor's words."""
    if verifier.get("isolation") != "separate":
        return verifier
    rest = {key: value for key, value in verifier.items() if key != "isolation"}
    return rest if "environment" in rest else {**rest, "environment_mode": "separate"}


def _has_empty_item(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_empty_item(item) for item in value.values())
    return isinstance(value, list) and any(item is None or _has_empty_item(item) for item in value)


def without_nulls(value: Any) -> Any:
    """The value without nulls, which TOML does not have."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value if item is not None]
    return value


def _report_unknown(value: Any, path: str, result: Expressed) -> None:
    """Report what is lost, unless the target implies it."""
    general = re.sub(r"^steps\[\d+\]\.", "", path)
    if value not in IMPLIED.get(general, ({}, [], ())):
        result.lose(path, NO_SUCH_SETTING, value)


def _artifact_problem(value: Any) -> str | None:
    source = value if isinstance(value, str) else value.get("source", "")
    if ".." in str(source).split("/"):
        return "Harbor rejects artifact sources that contain '..'"
    if isinstance(value, str):
        return None
    destination = value.get("destination")
    if destination is not None:
        parts = destination.split("/")
        if not parts[0] or ".." in parts or "\\" in destination or destination in {".", "manifest.json"}:
            return "Harbor accepts only relative artifact destinations without '..', except 'manifest.json'"
    if value.get("service") not in {None, "main"} and not str(source).startswith("/"):
        return "Harbor needs an absolute source for an artifact of another service"
    return None


def _server_problem(value: Any) -> str | None:
    if value.get("headers") and value.get("transport") == "stdio":
        return "Harbor rejects headers for a stdio server"
    return None


def _headers_problem(value: Any) -> str | None:
    for name, text in value.items():
        if _CREDENTIAL.search(name) and "${" not in str(text):
            return f"Harbor rejects a literal credential in the header '{name}'"
    return None


_SERVERS: Final = tuple(f"{place}environment.mcp_servers[]" for place in ("", "verifier.", "steps[].verifier."))
_VALUE_RULES: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "artifacts[]": _artifact_problem,
    "steps[].artifacts[]": _artifact_problem,
    **dict.fromkeys(_SERVERS, _server_problem),
    **dict.fromkeys((f"{servers}.headers" for servers in _SERVERS), _headers_problem),
}


def _value_problem(path: str, value: Any) -> str | None:
    rule = _VALUE_RULES.get(_ROW.sub("[]", path))
    return rule(value) if rule else None
