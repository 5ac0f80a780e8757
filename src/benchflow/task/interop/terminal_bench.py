"""Terminal-Bench 1 folders (`task.yaml`, `run-tests.sh`, `solution.sh`) -> the parts of a package.

`read_terminal_bench` only reads: it returns the frontmatter, the prompt and the files of the package, and what could
not be converted; `migration` writes them. A compose file that only repeats what the
harness prescribes for its `client` container is reduced to variables; any other is kept, with `client` as `main`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Issue, PackageError
from benchflow.task.document.markdown import MarkdownError, decode
from benchflow.task.document.yaml_source import YamlError, YamlSource
from benchflow.task.document.yaml_text import dump_yaml
from benchflow.task.filemap import FileMap, scan

DEFINITION: Final = "task.yaml"
SOURCE: Final = "terminal-bench"
_COMPOSE: Final = ("docker-compose.yaml", "docker-compose.yml")
_ORACLE: Final = ("solution.sh", "solution.yaml")
_TAKEN: Final = ("environment", "oracle", "solution", "verifier", "prompts")
_AGENT_SECONDS: Final = 360.0
_TEST_SECONDS: Final = 60.0
_SHARED_SCRIPT: Final = re.compile(r"\$\{?TEST_DIR\}?/([\w.-]+\.sh)")
_NAME_PART: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]*")
_METADATA: Final = (
    "difficulty",
    "category",
    "tags",
    "estimated_duration_sec",
    "expert_time_estimate_min",
    "junior_time_estimate_min",
)
_TEST_SH: Final = """\
#!/bin/bash
# Runs the checks of the imported task and writes the reward.
# pytest exits with 0 when all passed, 1 or 2 when not; anything else means that the checks could not run.
TEST_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export TEST_DIR
mkdir -p /logs/verifier
bash "$TEST_DIR/run-tests.sh"
code=$?
case "$code" in
  0) echo 1 > /logs/verifier/reward.txt ;;
  1 | 2) echo 0 > /logs/verifier/reward.txt ;;
  *) exit "$code" ;;
esac
"""


@dataclass(frozen=True, slots=True)
class TerminalBenchTask:
    """A parsed Terminal-Bench folder."""

    frontmatter: Mapping[str, Any]
    instruction: str
    copies: Mapping[str, str]
    """Path in the package -> file of the folder to copy."""
    texts: Mapping[str, str]
    """Path in the package -> text to write; a script if the name ends in `.sh`."""
    links: Mapping[str, str]
    """Path in the package -> target of the link."""
    superseded: tuple[str, ...]
    """Files that the package now has elsewhere."""
    extra: Mapping[str, Any]
    """Keys of `task.yaml` that a package does not have."""
    issues: tuple[Issue, ...]


def is_terminal_bench(folder: Path) -> bool:
    """Whether the folder is defined by a Terminal-Bench `task.yaml` and nothing newer."""
    newer = any((folder / name).exists() for name in ("task.md", "task.toml"))
    return not newer and (folder / DEFINITION).is_file()


def read_terminal_bench(folder: Path) -> TerminalBenchTask:
    """Read a folder; raises `PackageError` with the problem and its location."""
    return _Reader(folder).read()


class _Reader:
    """The state of one read: remaining keys, planned files, issues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: FileMap = scan(folder)
        for issue in self.files.issues:
            raise PackageError(issue.message, code=issue.code, file=issue.file)
        self.source = self._yaml(DEFINITION)
        if not isinstance(self.source.value, dict):
            raise PackageError("task.yaml must be a mapping", code="not-a-mapping", file=DEFINITION, line=1)
        self.keys: dict[str, Any] = dict(self.source.value)
        self.copies: dict[str, str] = {"tests/run-tests.sh": "run-tests.sh"}
        self.texts: dict[str, str] = {"tests/test.sh": _TEST_SH}
        self.links: dict[str, str] = {}
        self.superseded = [DEFINITION, "run-tests.sh"]
        self.issues: list[Issue] = []

    def read(self) -> TerminalBenchTask:
        self._require_room()
        instruction = self._instruction()
        self._require_pytest()
        frontmatter = self._frontmatter()
        env = self._environment()
        if env:
            frontmatter["environment"] = {"env": env}
        self._oracle()
        self._report_shared_scripts()
        self.keys.pop("disable_asciinema", None)
        for key in self.keys:
            self._warn("unknown-key", key, f"{key} has no equivalent in a package; it is preserved but has no effect")
        return TerminalBenchTask(
            frontmatter,
            instruction,
            self.copies,
            self.texts,
            self.links,
            tuple(self.superseded),
            self.keys,
            tuple(self.issues),
        )

    def _require_room(self) -> None:
        if "run-tests.sh" not in self.files:
            raise PackageError("run-tests.sh is missing", code="missing-file", file="run-tests.sh")
        if "tests" in self.files or "tests" in self.files.links:
            raise PackageError("tests must be a real folder", code="linked-part", file="tests")
        taken: list[str] = [name for name in _TAKEN if name in self.files.folders]
        taken += [name for name in ("tests/test.sh", "tests/run-tests.sh") if name in self.files]
        if taken:
            raise PackageError(
                f"{taken[0]} already exists, but the package needs that name", code="file-exists", file=taken[0]
            )

    def _instruction(self) -> str:
        value = self.keys.pop("instruction", None)
        if value is None:
            value = self._base_description()
        if not isinstance(value, str) or not value.strip():
            raise self._error("instruction", "must be a non-empty string")
        return value

    def _base_description(self) -> Any:
        """Early tasks have several descriptions; `base` is used and the others are preserved."""
        entries = self.keys.get("descriptions")
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("key") == "base":
                rest = [other for other in entries or [] if other is not entry]
                self.keys.pop("descriptions")
                if rest:
                    self.keys["descriptions"] = rest
                return entry.get("description")
        return None

    def _require_pytest(self) -> None:
        parser = self.keys.pop("parser_name", "pytest")
        if parser != "pytest":
            raise self._error("parser_name", f"is '{parser}'; only pytest results can be converted to a reward")
        if self.keys.get("run_tests_in_same_shell") is False:
            del self.keys["run_tests_in_same_shell"]

    def _frontmatter(self) -> dict[str, Any]:
        frontmatter: dict[str, Any] = {"schema_version": "1.3"}
        name = self.folder.resolve().name
        if _NAME_PART.fullmatch(name):
            frontmatter["task"] = {"name": f"{SOURCE}/{name}", **self._authors()}
        else:
            self._warn("unusable-name", "task.name", f"the folder name '{name}' is not a valid task name")
        metadata = {key: self.keys.pop(key) for key in _METADATA if key in self.keys}
        if metadata:
            frontmatter["metadata"] = metadata
        frontmatter["agent"] = {"timeout_sec": self._seconds("max_agent_timeout_sec", _AGENT_SECONDS)}
        frontmatter["verifier"] = {
            "timeout_sec": self._seconds("max_test_timeout_sec", _TEST_SECONDS),
            "isolation": "auto",
        }
        return frontmatter

    def _authors(self) -> dict[str, Any]:
        author = {"name": self.keys.get("author_name"), "email": self.keys.get("author_email")}
        if not all(isinstance(value, str | None) for value in author.values()) or not (author["name"] or "").strip():
            return {}
        for key in ("author_name", "author_email"):
            self.keys.pop(key, None)
        return {"authors": [{key: value for key, value in author.items() if value is not None}]}

    def _seconds(self, key: str, default: float) -> float:
        value: Any = self.keys.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._error(key, "must be a number of seconds greater than 0")
        return value

    def _environment(self) -> dict[str, str]:
        """Everything except the definition, the tests and the solution is the build context."""
        env: dict[str, str] = {}
        for path in self.files.files:
            if path in self.superseded or path in _ORACLE or path.startswith("tests/"):
                continue
            self.superseded.append(path)
            if path in _COMPOSE:
                env.update(self._compose(path))
            else:
                self.copies[f"environment/{path}"] = path
        for path, target in self.files.links.items():
            if not path.startswith("tests/"):
                self.links[f"environment/{path}"] = target
                self.superseded.append(path)
        return env

    def _compose(self, path: str) -> dict[str, str]:
        try:
            reading = reduce_compose(self._yaml(path).value)
        except ValueError as problem:
            raise PackageError(f"{path} {problem}", code="invalid-compose", file=path) from None
        if reading.compose is not None:
            self.texts["environment/docker-compose.yaml"] = dump_yaml(reading.compose)
        if reading.unresolved:
            names = ", ".join(reading.unresolved)
            self._warn("unresolved-variable", "environment", f"{path} uses {names}, which nothing sets", path)
        return reading.env

    def _oracle(self) -> None:
        self.superseded += [name for name in _ORACLE if name in self.files]
        if "solution.sh" in self.files:
            self.copies["solution/solve.sh"] = "solution.sh"
        if "solution.yaml" not in self.files:
            return
        script = _script(self._yaml("solution.yaml").value)
        if script is None:
            self.copies["solution/solution.yaml"] = "solution.yaml"
        if script is not None and "solution.sh" not in self.files:
            self.texts["solution/solve.sh"] = script
        elif script is None and "solution.sh" not in self.files:
            message = (
                "solution.yaml sends keystrokes to a terminal, which a script cannot do; write oracle/solve.sh yourself"
            )
            self._warn("oracle-not-converted", "oracle", message, "solution.yaml")

    def _report_shared_scripts(self) -> None:
        """Report scripts that the harness used to add beside the tests."""
        text = self.files.read("run-tests.sh").decode("utf-8", "replace")
        for name in sorted(set(_SHARED_SCRIPT.findall(text))):
            if f"tests/{name}" not in self.files and name != "run-tests.sh":
                message = f"run-tests.sh uses {name}, which is not in the folder; add it beside the tests"
                self._warn("missing-script", "verifier", message, "run-tests.sh")

    def _yaml(self, path: str) -> YamlSource:
        try:
            return YamlSource(decode(self.files.read(path)))
        except (YamlError, MarkdownError) as problem:
            raise PackageError(f"{path} {problem}", code=problem.code, file=path, line=problem.line) from None

    def _warn(self, code: str, path: str, message: str, file: str = DEFINITION) -> None:
        line = self.source.line(path) if file == DEFINITION and path in self.keys else None
        self.issues.append(Issue(code, "warning", path, message, file, line))

    def _error(self, key: str, problem: str) -> PackageError:
        line = self.source.line(key)
        return PackageError(f"{key} {problem}", code="invalid-value", path=key, file=DEFINITION, line=line)


def _script(value: Any) -> str | None:
    """The commands of a `solution.yaml` as one script, or None if it contains more than commands."""
    if not isinstance(value, list):
        return None
    lines = ["#!/bin/bash"]
    for item in value:
        command = item.get("command") if isinstance(item, dict) else item
        if not isinstance(command, str) or (isinstance(item, dict) and item.get("append_enter") is False):
            return None
        lines.append(command.rstrip("\n"))
    return "\n".join(lines) + "\n"


_CLIENT: Final = "client"
_MAIN: Final = "main"
_HARNESS: Final = "T_BENCH_"
_PRESCRIBED: Final = ("image", "container_name", "command", "volumes", "environment", "build")
_HARNESS_VALUES: Final = {
    "T_BENCH_TEST_DIR": "/tests",
    "T_BENCH_CONTAINER_LOGS_PATH": "/logs",
    "T_BENCH_CONTAINER_AGENT_LOGS_PATH": "/logs/agent",
}
_VARIABLE: Final = re.compile(r"\$\{?(T_BENCH_[A-Z_]+)\}?")


@dataclass(slots=True)
class ComposeReading:
    """What is left of a compose file."""

    env: dict[str, str] = field(default_factory=dict)
    """Variables of the main container."""
    compose: dict[str, Any] | None = None
    """The file to keep, or None for an ordinary container."""
    unresolved: tuple[str, ...] = ()
    """Variables of the harness that are no longer set."""


def reduce_compose(data: Any) -> ComposeReading:
    """Reduce a parsed compose file; raises `ValueError` if it has no client service."""
    services = data.get("services") if isinstance(data, Mapping) else None
    if not isinstance(services, Mapping) or not services:
        raise ValueError("has no services")
    name = _CLIENT if _CLIENT in services else next(iter(services)) if len(services) == 1 else None
    if name is None or not isinstance(services[name], Mapping):
        raise ValueError("has no service 'client'")
    env, main = _client(services[name])
    if len(services) == 1 and not main and _is_plain_build(services[name].get("build")):
        return ComposeReading(env, None, _unresolved(env))
    others = {key: _without_harness(value) for key, value in services.items() if key != name}
    kept = {key: value for key, value in data.items() if key not in {"services", "version"}}
    main = {"build": services[name].get("build", {"dockerfile": "Dockerfile"}), **main}
    compose = {**kept, "services": {_MAIN: main, **others}}
    compose = _resolve(_rename(compose, name))
    return ComposeReading(env, compose, _unresolved([env, compose]))


def _client(service: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The variables of the client container, and its settings beyond what the harness prescribes."""
    env = {key: _resolve(value) for key, value in _variables(service)}
    env.pop("TEST_DIR", None)
    rest = {key: value for key, value in service.items() if key not in _PRESCRIBED}
    volumes = [item for item in _items(service, "volumes") if _HARNESS not in str(item)]
    if volumes:
        rest["volumes"] = volumes
    for key in ("image", "container_name"):
        if key in service and _HARNESS not in str(service[key]):
            rest[key] = service[key]
    command = service.get("command")
    words = command if isinstance(command, list) else [command]
    if command is not None and "sleep infinity" not in " ".join(str(word) for word in words):
        rest["command"] = command
    return env, rest


def _variables(service: Mapping[str, Any]) -> list[tuple[str, str]]:
    value = service.get("environment")
    if isinstance(value, Mapping):
        return [(str(key), "" if item is None else str(item)) for key, item in value.items()]
    pairs = [str(item).partition("=") for item in _items(service, "environment")]
    return [(key, item) for key, _, item in pairs]


def _items(service: Mapping[str, Any], key: str) -> list[Any]:
    value = service.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"has a service whose {key} is not a list")
    return value


def _is_plain_build(build: Any) -> bool:
    if build is None or isinstance(build, str):
        return build in {None, ".", "./"}
    plain = {"dockerfile": {"Dockerfile", "./Dockerfile"}, "context": {".", "./"}}
    return isinstance(build, Mapping) and all(
        isinstance(value, str) and value in plain.get(key, ()) for key, value in build.items()
    )


def _without_harness(service: Any) -> Any:
    if not isinstance(service, Mapping):
        return service
    kept = {key: value for key, value in service.items() if key != "container_name" or _HARNESS not in str(value)}
    volumes = kept.get("volumes")
    if isinstance(volumes, list):
        kept["volumes"] = [item for item in volumes if _HARNESS not in str(item)]
    return kept


def _rename(compose: dict[str, Any], old: str) -> dict[str, Any]:
    """Make other services wait for the client under its new name."""
    for service in compose["services"].values():
        waits = service.get("depends_on") if isinstance(service, dict) else None
        if isinstance(waits, list):
            service["depends_on"] = [_MAIN if item == old else item for item in waits]
        elif isinstance(waits, Mapping):
            service["depends_on"] = {_MAIN if key == old else key: value for key, value in waits.items()}
    return compose


def _resolve(value: Any) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _HARNESS_VALUES.get(found[1], found[0]), value)
    if isinstance(value, Mapping):
        return {key: _resolve(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item) for item in value]
    return value


def _unresolved(value: Any) -> tuple[str, ...]:
    return tuple(sorted(set(_VARIABLE.findall(str(value)))))
