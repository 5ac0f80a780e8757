"""Terminal-Bench 1 folders (`task.yaml`, `run-tests.sh`, `solution.sh`) -> the parts of a package.

`read_terminal_bench` only reads: it returns the frontmatter, the prompt and the files of the package, and what could
not be converted; `migration` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Issue, PackageError
from benchflow.task.document.markdown import MarkdownError, decode
from benchflow.task.document.yaml_source import YamlError, YamlSource
from benchflow.task.document.yaml_text import dump_yaml
from benchflow.task.filemap import FileMap, scan
from benchflow.task.interop.terminal_bench_compose import reduce_compose
from benchflow.task.interop.terminal_bench_parsers import UnreadableResultsError, script_for

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
_RUN_TESTS: Final = "run-tests.sh"
_SECOND_RUN_TESTS: Final = "run-tests-of-task.sh"
_HIDDEN: Final = ("tests", _RUN_TESTS, *_ORACLE, DEFINITION)
"""What the agent is not meant to see; it is part of the build context only where a Dockerfile names it."""
_COPY: Final = re.compile(r"^\s*(?:COPY|ADD)\s+(.*)$", re.IGNORECASE | re.MULTILINE)


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
        self.copies: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.superseded = [DEFINITION, _RUN_TESTS]
        self.issues: list[Issue] = []

    def read(self) -> TerminalBenchTask:
        self._require_format()
        instruction = self._instruction()
        self._tests()
        frontmatter = self._frontmatter()
        environment = self._environment()
        if environment:
            frontmatter["environment"] = environment
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

    def _require_format(self) -> None:
        if not {"instruction", "descriptions"} & self.keys.keys():
            message = "task.yaml is not a Terminal-Bench definition: it has no instruction"
            raise PackageError(message, code="not-terminal-bench", file=DEFINITION, line=1)
        if _RUN_TESTS not in self.files:
            raise PackageError(f"{_RUN_TESTS} is missing", code="missing-file", file=_RUN_TESTS)
        if "tests" in self.files or "tests" in self.files.links:
            raise PackageError("tests must be a real folder", code="linked-part", file="tests")
        taken: list[str] = [name for name in _TAKEN if name in self.files.folders]
        taken += [name for name in ("tests/test.sh", f"tests/{_SECOND_RUN_TESTS}") if name in self.files]
        if taken:
            raise PackageError(
                f"{taken[0]} already exists, but the package needs that name", code="file-exists", file=taken[0]
            )

    def _tests(self) -> None:
        """The script of the folder itself runs; one of the same name among the tests is kept beside it."""
        script = _RUN_TESTS
        if f"tests/{_RUN_TESTS}" in self.files:
            script = _SECOND_RUN_TESTS
            if self.files.read(_RUN_TESTS) != self.files.read(f"tests/{_RUN_TESTS}"):
                message = f"{_RUN_TESTS} and tests/{_RUN_TESTS} differ; the first is used, as tests/{script}"
                self._warn("two-test-scripts", "verifier", message, _RUN_TESTS)
        self.copies[f"tests/{script}"] = _RUN_TESTS
        parser = self.keys.pop("parser_name", "pytest")
        try:
            self.texts["tests/test.sh"] = script_for(parser, script, self.keys)
        except UnreadableResultsError as problem:
            raise self._error(problem.key, str(problem)) from None
        if self.keys.get("run_tests_in_same_shell") is True:
            message = "the tests have their own shell; variables and functions of the agent's shell are not visible"
            self._warn("own-shell", "run_tests_in_same_shell", message)
        if isinstance(self.keys.get("run_tests_in_same_shell"), bool):
            del self.keys["run_tests_in_same_shell"]

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
        if "author" in self.keys and "author_name" not in self.keys:
            self.keys["author_name"] = self.keys.pop("author")
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

    def _environment(self) -> dict[str, Any]:
        """Everything except the definition, the tests and the solution is the build context."""
        settings: dict[str, Any] = {}
        for path in self.files.files:
            if path.split("/", 1)[0] in _HIDDEN:
                continue
            self.superseded.append(path)
            if path in _COMPOSE:
                settings.update(self._compose(path))
            else:
                self.copies[f"environment/{path}"] = path
        for path, target in self.files.links.items():
            if not path.startswith("tests/"):
                self.links[f"environment/{path}"] = target
                self.superseded.append(path)
        self._hidden_in_context()
        return settings

    def _hidden_in_context(self) -> None:
        """Files that the agent is not meant to see, but that a Dockerfile copies into the image by name."""
        named = _copied_names(self.files)
        shown = sorted(path for path in self.files.files if path.split("/", 1)[0] in named)
        self.copies.update({f"environment/{path}": path for path in shown})
        if shown:
            names = ", ".join(sorted({path.split("/", 1)[0] for path in shown}))
            message = f"the Dockerfile copies {names} into the image, where the agent can read it"
            self._warn("hidden-files-in-image", "environment", message, "Dockerfile")

    def _compose(self, path: str) -> dict[str, Any]:
        try:
            reading = reduce_compose(self._yaml(path).value)
        except ValueError as problem:
            raise PackageError(f"{path} {problem}", code="invalid-compose", file=path) from None
        if reading.compose is not None:
            self.texts["environment/docker-compose.yaml"] = dump_yaml(reading.compose)
        if reading.unresolved:
            names = ", ".join(reading.unresolved)
            self._warn("unresolved-variable", "environment", f"{path} uses {names}, which nothing sets", path)
        return reading.environment

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


def _copied_names(files: FileMap) -> set[str]:
    """The hidden files and folders that a Dockerfile of the folder itself copies by name."""
    found: set[str] = set()
    for path in files.files:
        if not path.startswith("Dockerfile") or "/" in path:
            continue
        text = re.sub(r"\\\r?\n", " ", files.read(path).decode("utf-8", "replace"))
        for words in _COPY.findall(text):
            sources = re.sub(r'[\[\]",]', " ", words).split()[:-1]
            found.update(source.removeprefix("./").strip("/").split("/", 1)[0] for source in sources)
    return found & set(_HIDDEN)


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
