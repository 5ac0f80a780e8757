"""Whether a package and this machine are ready for a rollout, checked before an agent costs anything.

A text with placeholders is not a finished task, and a judge without its key cannot score.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from benchflow.errors import Issue, JudgeFailure, PackageError
from benchflow.task.package import TaskPackage
from benchflow.task.package_scaffold import MARKER
from benchflow.task.runtime_view import TaskRuntimeView
from benchflow.task.verifier.declared_strategies import (
    AgentJudgeStrategy,
    GainStrategy,
    HybridStrategy,
    LLMJudgeStrategy,
)
from benchflow.verifier.scope import Scope, scope_of, verifier_variables

if TYPE_CHECKING:
    from benchflow.models import ChatModel

_MARKER: Final = MARKER.encode()
_MARKER_LEFT: Final = "marker-left"
_HELD_OUT: Final = ("oracle/", "solution/")
_CODES: Final = {"extra-missing": "judge-not-installed", "key-missing": "judge-key-missing"}


def markers_left(package: TaskPackage) -> list[Issue]:
    """Every placeholder that is left, as `bench tasks check` reports it."""
    if not any(entry.data is not None and _MARKER in entry.data for entry in package.files.files.values()):
        return []
    from benchflow.task.checks.schema_level import check_schema
    from benchflow.task.checks.structural_level import check_structure

    return [
        issue for check in (check_schema, check_structure) for issue in check(package) if issue.code == _MARKER_LEFT
    ]


def require_finished(package: TaskPackage) -> None:
    """Raise a `PackageError` for the first marker in anything but the held-out solution, which an agent never meets."""
    for issue in markers_left(package):
        if not (issue.file or "").startswith(_HELD_OUT):
            message = f"{issue.file}:{issue.line}: {issue.message}"
            raise PackageError(message, code=issue.code, file=issue.file, line=issue.line)


def judges(
    view: TaskRuntimeView,
    machine: Mapping[str, str],
    steps: Iterable[str | None] = (None,),
    *,
    strategy: str | None = None,
) -> list[ChatModel]:
    """The models that the verifiers of these steps call, by the declared strategy or the one that is named.

    A variable that a verifier takes and that is not set is an `EnvironmentFailure`.
    """
    asked: list[tuple[str, Mapping[str, str]]] = []
    for step in steps:
        scope = scope_of(view, step)
        variables = {**machine, **verifier_variables(scope, machine).values}
        asked += [(model, variables) for model in sorted(set(_judges(scope, strategy)))]
    if not asked:
        return []
    from benchflow.models import ChatModel  # most packages have no judge

    return [ChatModel(model, variables) for model, variables in asked]


def require_judges(models: Iterable[ChatModel]) -> None:
    """Raise a `JudgeFailure` for the first that cannot be called; nothing is sent. May take a moment."""
    from benchflow.models import ModelFailure

    for model in models:
        try:
            model.check_now()
        except ModelFailure as failure:
            message = str(failure).replace("The model", "The judge", 1)
            raise JudgeFailure(message, code=_CODES.get(failure.code, "judge-unavailable")) from failure


def _judges(scope: Scope, name: str | None) -> Iterator[str]:
    """The models that a strategy calls, itself or through others."""
    _, strategy = scope.strategy(name)
    match strategy:
        case LLMJudgeStrategy():
            yield strategy.model or _rubric_model(scope, strategy.rubric) or scope.config.judge.model
        case AgentJudgeStrategy():
            yield strategy.model or scope.config.judge.model
        case HybridStrategy():
            for factor in strategy.factors.values():
                yield from _judges(scope, factor.strategy)
        case GainStrategy():
            yield from _judges(scope, strategy.strategy)


def _rubric_model(scope: Scope, path: str) -> str | None:
    """The model that a rubric names; one that cannot be read is the verifier's to report."""
    from benchflow.rewards import load_rubric

    file = scope.file(path)
    if file is None and scope.document is None and (scope.view.task_dir / path).is_file():
        file = scope.view.task_dir / path
    try:
        return load_rubric(file, file=path).judge.model if file is not None else None
    except PackageError:
        return None
