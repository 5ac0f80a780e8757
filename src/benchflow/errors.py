"""The tree of errors; each carries the record it is rendered from.

    BenchflowError                     code, and where: file, line, path
    ├── UsageError                     wrong usage, or nothing to work on (exit 2)
    │   └── PluginError                an installed plugin that cannot be used (category infrastructure)
    ├── PackageError                   a package that cannot be used (category package)
    │   └── IssuesError                one that is refused with a list of issues
    ├── UnsupportedError               a declared feature that the runtime does not support (category unsupported)
    └── RuntimeFailure                 a failure at run time
        ├── EnvironmentFailure         image, build, start, healthcheck (category environment)
        ├── SandboxFailure             the sandbox itself (category sandbox)
        ├── AgentFailure               an agent that could not start or lost its model (category agent)
        ├── VerifierFailure            a verifier that produced no valid reward (category verifier)
        ├── JudgeFailure               a judge that returned no usable answer (category judge)
        └── InfrastructureFailure      the machine: disk, engine, network (category infrastructure)

Packages below `benchflow` derive their own errors from these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeVar

Value = TypeVar("Value")
Severity = Literal["error", "warning"]
Category = Literal[
    "package", "unsupported", "environment", "sandbox", "agent", "verifier", "judge", "infrastructure", "cancelled"
]


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem: a stable code, its location, and one clear sentence."""

    code: str
    severity: Severity
    path: str
    """Dotted key with `[i]` for list items, a pair that differs (`verifier|tests`), or empty."""
    message: str
    file: str | None = None
    """Relative to the package."""
    line: int | None = None
    """Counts from 1."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence to add to a message about an unknown word: the known one that is most like it, or nothing."""
    from difflib import get_close_matches  # only a mistake pays for it

    close = get_close_matches(word, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


class BenchflowError(Exception):
    """Root of the tree; `str()` is the sentence for the user."""

    category: ClassVar[Category] = "infrastructure"
    default_code: ClassVar[str] = "error"

    def __init__(
        self, message: str, *, code: str | None = None, path: str = "", file: str | None = None, line: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.path = path
        self.file = file
        self.line = line

    def issue(self) -> Issue:
        """The error as a record."""
        return Issue(self.code, "error", self.path, str(self), self.file, self.line)


class UsageError(BenchflowError):
    category: ClassVar[Category] = "package"
    default_code = "usage"


class PluginError(UsageError):
    category: ClassVar[Category] = "infrastructure"
    default_code = "plugin-invalid"


class PackageError(BenchflowError):
    category: ClassVar[Category] = "package"
    default_code = "invalid-package"


class IssuesError(PackageError):
    """Something refused for one or more reasons: `issues` lists them all, the message is the first."""

    def __init__(self, issues: tuple[Issue, ...]) -> None:
        first = issues[0]
        super().__init__(first.message, code=first.code, path=first.path, file=first.file, line=first.line)
        self.issues = issues

    @classmethod
    def require(cls, value: Value | None, issues: Iterable[Issue]) -> Value:
        """`value`, unless it is None or one of the issues is an error."""
        errors = tuple(issue for issue in issues if issue.severity == "error")
        if value is None or errors:
            raise cls(errors)
        return value


class UnsupportedError(BenchflowError):
    category: ClassVar[Category] = "unsupported"
    default_code = "unsupported"


class RuntimeFailure(BenchflowError):
    """A failure at run time; never a reward."""


class EnvironmentFailure(RuntimeFailure):
    category: ClassVar[Category] = "environment"
    default_code = "environment-failed"


class SandboxFailure(RuntimeFailure):
    category: ClassVar[Category] = "sandbox"
    default_code = "sandbox-failed"


class AgentFailure(RuntimeFailure):
    category: ClassVar[Category] = "agent"
    default_code = "agent-failed"


class VerifierFailure(RuntimeFailure):
    category: ClassVar[Category] = "verifier"
    default_code = "verifier-failed"


class JudgeFailure(RuntimeFailure):
    category: ClassVar[Category] = "judge"
    default_code = "judge-failed"


class InfrastructureFailure(RuntimeFailure):
    category: ClassVar[Category] = "infrastructure"
    default_code = "infrastructure-failed"
