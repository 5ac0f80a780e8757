"""`--config FILE`: the options of `bench eval run` in a YAML or TOML file, under the same names.

What is given on the command line replaces what the file says. A key that is not an option, and a value that an option
does not take, are refused with their line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from benchflow.cli.arguments import PATH, Command
from benchflow.errors import BenchflowError, UsageError, did_you_mean

PATHS: Final = "paths"
"""The key for what are arguments on the command line."""
_MAX_BYTES: Final = 1 << 20


def job_file_option(command: Command) -> Command:
    """`--config FILE`: read before all other options, as their defaults."""
    return click.option(
        "--config",
        type=PATH,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_apply,
        help="Read options from a YAML or TOML file; those given on the command line take precedence.",
    )(command)


def given_paths(ctx: click.Context, sources: tuple[str, ...]) -> tuple[str, ...]:
    """The paths of the command line, else those of the file; none is wrong usage."""
    found: tuple[str, ...] = sources or ctx.meta.get(PATHS, ())
    if not found:
        raise click.UsageError("Missing argument 'PATH...'.", ctx=ctx)
    return found


def _apply(ctx: click.Context, _param: click.Parameter, file: Path | None) -> None:
    if file is None or ctx.resilient_parsing:
        return
    values, line = _parsed(file)
    options = {_name(param): param for param in ctx.command.params if isinstance(param, click.Option)}
    options = {name: param for name, param in options.items() if name not in ("config", "json", "help")}
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        where = f"{file}:{line(key)}"
        if key == PATHS:
            ctx.meta[PATHS] = _texts(value, where)
            continue
        option = options.get(key)
        if option is None or option.name is None:
            near = did_you_mean(str(key), (PATHS, *options))
            raise UsageError(f"{where}: '{key}' is not an option of `bench eval run`.{near}", code="unknown-key")
        defaults[option.name] = _converted(ctx, option, value, where)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def _name(option: click.Option) -> str:
    return max(option.opts, key=len).removeprefix("--")


def _converted(ctx: click.Context, option: click.Option, value: Any, where: str) -> Any:
    """The value of an option; one for an option that may be repeated is a list of one."""
    name = _name(option)
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{where}: {name} must be true or false.", code="invalid-value")
        return value
    listed = value if isinstance(value, list) else [value]
    for item in listed:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise UsageError(f"{where}: {name} must be a text or a number.", code="invalid-value")
    if isinstance(value, list) and not option.multiple:
        raise UsageError(f"{where}: {name} takes one value, not a list.", code="invalid-value")
    try:
        if option.multiple:
            return tuple(option.type(str(item), option, ctx) for item in listed)
        return option.type(str(value), option, ctx)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {name}: {error.message}", code="invalid-value") from None


def _texts(value: Any, where: str) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(item, str) and item for item in found):
        raise UsageError(f"{where}: {PATHS} must be a list of paths.", code="invalid-value")
    return tuple(found)


def _parsed(file: Path) -> tuple[Mapping[str, Any], Callable[[str], int | None]]:
    """The mapping of a file, and the line of each key."""
    from benchflow.files.bounded import RefusedFileError, read_regular
    from benchflow.task.document.toml_source import parse_toml, toml_locator
    from benchflow.task.document.yaml_source import YamlSource

    try:
        text = read_regular(file.resolve(), max_bytes=_MAX_BYTES).decode()
    except (OSError, RefusedFileError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"--config {file} cannot be read: {reason}.", code="config-unreadable") from None
    try:
        if file.suffix == ".toml":
            return parse_toml(text, file=str(file)), toml_locator(text)
        if file.suffix not in (".yaml", ".yml"):
            raise UsageError(f"--config {file}: the name must end in .yaml, .yml or .toml.", code="config-unreadable")
        source = YamlSource(text)
    except UsageError:
        raise
    except BenchflowError as error:
        where = f"{file}:{error.line}: " if error.line is not None else f"{file}: "
        raise UsageError(f"{where}{error}", code="config-invalid") from None
    if not isinstance(source.value, dict):
        raise UsageError(f"{file}:1: a job file is a mapping of options.", code="config-invalid")
    return source.value, source.line
