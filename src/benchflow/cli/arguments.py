"""Arguments and options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from benchflow.errors import UsageError
from benchflow.record.identity import ALWAYS_WIN

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_WITHOUT_MODEL: Final = ALWAYS_WIN | {"debug"}

Command = TypeVar("Command", bound=Callable[..., Any])


def complete_paths(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete files and folders."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


class _FolderPath(click.ParamType[Path]):
    """A path as the user wrote it; the command checks whether it exists."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if isinstance(value, Path):
            return value
        if not value:
            self.fail("the path is empty", param, ctx)
        return Path(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return complete_paths(ctx, param, incomplete)


PATH = _FolderPath()


class LateChoice(click.ParamType[str]):
    """One of some words that are looked up only when one is given, so that a light command need not import them."""

    name = "choice"

    def __init__(self, words: Callable[[], Sequence[str]]) -> None:
        self._words: Final = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if param is not None and value == param.default:
            return str(value)
        return click.Choice(list(self._words())).convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return click.Choice(list(self._words())).get_metavar(param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return click.Choice(list(self._words())).shell_complete(ctx, param, incomplete)


ISOLATIONS: Final = ("separate", "shared", "system", "services", "open", "auto")


def package_paths(command: Command) -> Command:
    """One or more PATH arguments, each a package or a folder above packages."""
    return click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)(command)


def package_path(command: Command) -> Command:
    """Exactly one PATH: a package."""
    return click.argument("path", metavar="PATH", type=PATH)(command)


def json_option(command: Command) -> Command:
    """`--json`: one JSON document on stdout and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")(command)


def isolation_option(command: Command) -> Command:
    """`--isolation VALUE`: a rung, or `auto`, for all verifiers."""
    return click.option(
        "--isolation",
        type=click.Choice(ISOLATIONS),
        metavar="VALUE",
        help=f"Which of the agent's changes verifiers see, overriding the packages: {', '.join(ISOLATIONS)}.",
    )(command)


def uses_model(agent: str) -> bool:
    """Whether an agent can be given a model."""
    return agent.partition(":")[0] not in _WITHOUT_MODEL


def refuse_model(agent: str, model: str | None) -> None:
    """Refuse a model for an agent that does not use one."""
    name = agent.partition(":")[0]
    if model is not None and not uses_model(agent):
        raise UsageError(f"The agent '{name}' does not use a model; remove --model.", code="no-model")


def sandbox_option(command: Command) -> Command:
    """`--sandbox NAME`: the sandbox to check the package against."""
    return click.option("--sandbox", metavar="NAME", help="Also check that this sandbox supports the package.")(command)
