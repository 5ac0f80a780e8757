"""The `cube` command: installed benchmarks, their data, their conformance, new ones, and servers for them.

Exit codes: 0 success, 1 something failed, 2 wrong usage, 130 interrupted. `--json` prints one JSON document and
nothing else; output of the cube's own code goes to standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cube.registry import GROUP, installed

if TYPE_CHECKING:
    from rich.console import Console

    from cube.benchmark import BenchmarkConfig
    from cube.server_process import Address
    from cube.serving import Doors

INTERRUPTED: Final = 130
MAX_PORT: Final = 65535
_WHOLE_LINES: Final = 10_000
"""Wider than any table."""

as_json = click.option("--json", "json_output", is_flag=True, help="Print the result as one JSON document.")


class _Failed(click.ClickException):
    """A failure that is reported in one sentence, with exit code 1."""

    exit_code = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `cube` and return its exit code; a failure is one sentence on standard error."""
    try:
        code = commands.main(args=arguments, prog_name="cube", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        _say(error.format_message())
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"Try '{error.ctx.command_path} --help'.", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return INTERRUPTED
    except OSError as error:  # errors of a benchmark were caught where it was called
        if not isinstance(error, BrokenPipeError):
            _say(f"cannot write the output: {error.strerror or error}")
        silence_stdout()
        return 1
    return code if isinstance(code, int) else 0


def _say(sentence: str) -> None:
    click.echo(f"{click.style('cube:', fg='red')} {' '.join(sentence.split())}", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="benchcube", prog_name="cube")
def commands() -> None:
    """Benchmarks as gym tasks: list, install, check, create and serve them."""


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def _entry(name: str) -> EntryPoint:
    benchmarks = installed()
    if name not in benchmarks:
        known = ", ".join(benchmarks) or "none"
        from difflib import get_close_matches

        close = get_close_matches(name, benchmarks, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise click.UsageError(f"Benchmark '{name}' is not installed; installed: {known}.{hint}")
    return benchmarks[name]


def _load(entry: EntryPoint) -> type[BenchmarkConfig[Any]]:
    """The config class of an installed benchmark; an error of its import becomes one sentence."""
    from cube.benchmark import BenchmarkConfig

    _module_of(entry)
    try:
        with own_output_to_stderr():
            loaded = entry.load()
    except (Exception, SystemExit) as error:
        raise _Failed(f"Benchmark '{entry.name}' cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, BenchmarkConfig)):
        raise _Failed(f"Entry point '{entry.name}' ({entry.value}) is not a BenchmarkConfig subclass.")
    return loaded


def _module_of(entry: EntryPoint) -> str:
    if not entry.pattern.match(entry.value):
        raise _Failed(f"Entry point '{entry.name}' must have the form 'module:Class', not '{entry.value}'.")
    return entry.module


def _described(entry: EntryPoint) -> Any:
    """The object that has the metadata of an installed benchmark: its class, or an instance if only instances do."""
    loaded = _load(entry)
    return _instance(entry.name, loaded) if loaded.is_dynamic() else loaded


def _instance(name: str, config_class: type[BenchmarkConfig[Any]]) -> BenchmarkConfig[Any]:
    try:
        with own_output_to_stderr():
            return config_class()
    except Exception as error:  # the benchmark's own code
        raise _Failed(f"Benchmark '{name}' cannot be used without settings: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}."


@commands.command("list")
@as_json
def list_benchmarks(json_output: bool) -> None:
    """List the installed benchmarks."""
    rows = [_row(entry) for entry in installed().values()]
    if json_output:
        _print_json({"benchmarks": rows})
        return
    if not rows:
        click.echo(f"No benchmarks are installed. A package provides one through the entry-point group '{GROUP}'.")
        click.echo("Create one with: cube init my-benchmark")
        return
    from rich.table import Table

    table = Table("name", "version", "tasks", "tags", "description", box=None, header_style="bold", pad_edge=False)
    console = _console()
    for row in rows:
        if not row["error"]:
            table.add_row(row["name"], row["version"], str(row["tasks"]), ", ".join(row["tags"]), row["description"])
    if table.row_count:
        console.print(table)
    for row in rows:
        if row["error"]:
            console.print(row["error"], style="red")


def _console() -> Console:
    """Standard output; a pipe or a file gets whole lines."""
    from rich.console import Console

    wrapped = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(markup=False, highlight=False, width=None if wrapped else _WHOLE_LINES)


def _row(entry: EntryPoint) -> dict[str, Any]:
    try:
        config = _described(entry)
    except click.ClickException as error:
        reason = " ".join(error.message.split())
        return {"name": entry.name, "version": None, "tasks": None, "tags": [], "description": None, "error": reason}
    metadata = config.benchmark_metadata
    return {
        "name": entry.name,
        "version": metadata.version,
        "tasks": len(config.task_metadata),
        "tags": metadata.tags,
        "description": metadata.description,
        "error": None,
    }


@commands.command()
@click.argument("name")
@as_json
def info(name: str, json_output: bool) -> None:
    """Show the details, subsets and tasks of a benchmark."""
    config = _described(_entry(name))
    metadata = config.benchmark_metadata
    tasks = config.task_metadata
    if json_output:
        dump = metadata.model_dump(mode="json")
        rows = [task.model_dump(mode="json") for task in tasks.values()]
        _print_json({**dump, "cache_dir": str(config.cache_dir()), "tasks": rows})
        return
    from rich.table import Table

    console = _console()
    console.print(f"{metadata.name} {metadata.version}", style="bold")
    if metadata.description:
        console.print(metadata.description)
    for label, value in (
        ("authors", ", ".join(metadata.authors)),
        ("license", metadata.license),
        ("tags", ", ".join(metadata.tags)),
        ("reset", metadata.reset_isolation or ""),
        ("data", str(config.cache_dir())),
        ("subsets", ", ".join(f"{k} ({field}={glob})" for k, (field, glob) in metadata.named_subsets.items())),
    ):
        if value:
            console.print(f"  {label:8} {value}")
    console.print()
    table = Table("task", "split", "max steps", "description", box=None, header_style="bold", pad_edge=False)
    for task_id, task in tasks.items():
        table.add_row(task_id, task.split, str(task.recommended_max_steps or ""), task.abstract_description)
    console.print(table)


@commands.command()
@click.argument("name")
def install(name: str) -> None:
    """Download and prepare the data of a benchmark."""
    config = _described(_entry(name))
    _run(f"Installing '{name}'", config.install)
    click.echo(f"Installed {name} into {config.cache_dir()}")


@commands.command()
@click.argument("name")
def uninstall(name: str) -> None:
    """Remove the data of a benchmark."""
    config = _described(_entry(name))
    _run(f"Uninstalling '{name}'", config.uninstall)
    click.echo(f"Removed the data of {name}")


def _run(what: str, action: Callable[[], object]) -> None:
    try:
        with own_output_to_stderr():
            action()
    except (Exception, SystemExit) as error:
        raise _Failed(f"{what} failed: {type(error).__name__}: {error}") from error


@commands.command()
@click.argument("name")
@click.option(
    "--max-steps",
    default=20,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of steps of a debug episode.",
)
@click.option("--task", "tasks", multiple=True, metavar="ID", help="Play only this task; repeatable.")
@click.option(
    "--live",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of tasks to play.  [default: 20, of which 3 may have a container]",
)
@click.option(
    "--infra", type=click.Choice(["local"]), help="Launch the resources of the benchmark here: make(infra=…)."
)
@as_json
def test(
    name: str, max_steps: int, tasks: tuple[str, ...], live: int | None, infra: str | None, json_output: bool
) -> None:
    """Check that a benchmark follows the contract.

    Checks metadata and configs of all tasks, and plays some of them: the debug agents of the benchmark must reach
    reward 1. NAME is an installed benchmark, or the import path of a debug module.
    """
    from cube import LocalInfraConfig
    from cube.conformance import check_benchmark
    from cube.finding_report import print_findings, report

    with own_output_to_stderr():
        module = _debug_module(name)
        if tasks:
            _require_tasks(name, module, tasks)
        place = LocalInfraConfig() if infra is not None else None
        findings = check_benchmark(module, max_steps=max_steps, tasks=tasks, live=live, infra=place)
    if json_output:
        _print_json({"benchmark": name, **report(findings)})
    else:
        print_findings(name, findings)
    if findings:
        click.get_current_context().exit(1)


def _require_tasks(name: str, module: Any, tasks: tuple[str, ...]) -> None:
    try:
        known = module.get_debug_benchmark().tasks()
    except Exception:  # noqa: BLE001  # what is wrong with the module is a finding
        return
    for task_id in tasks:
        if task_id not in known:
            listed = ", ".join(list(known)[:20]) + (", …" if len(known) > 20 else "")
            raise click.UsageError(f"The debug benchmark of '{name}' has no task '{task_id}'; available: {listed}.")


def _debug_module(name: str) -> Any:
    """The `debug` module beside the benchmark's own, or the module of that name."""
    benchmarks = installed()
    if name in benchmarks:
        module = _module_of(benchmarks[name])
        path = f"{module.rpartition('.')[0] or module}.debug"
    elif name.replace(".", "").replace("_", "").isalnum() and "." in name:
        path = name
    else:
        _entry(name)
    try:
        return importlib.import_module(path)
    except (Exception, SystemExit) as error:
        raise _Failed(f"The debug module '{path}' cannot be imported: {type(error).__name__}: {error}") from error


@commands.command()
@click.argument("name", default="my-benchmark")
@click.option(
    "--dir", "parent", default=".", type=click.Path(path_type=Path), help="Create the package below this folder."
)
def init(name: str, parent: Path) -> None:
    """Create a working cube package with tests, in a new folder NAME."""
    from cube.new_cube import create_cube

    try:
        target = create_cube(name, parent)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise _Failed(f"Cannot write to {parent}: {error.strerror or error}.") from error
    from cube.extras import folder_command

    click.echo(f"Created {target}. Try it:\n  {folder_command(target)}\n  cube test {name}")


token_file = click.Path(path_type=Path, dir_okay=False)


@commands.command()
@click.argument("name")
@click.option("--task", "task_id", help="Serve only this task; otherwise a reset selects the task.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), metavar="N", help="Port of the harness."
)
@click.option(
    "--agent-port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Port of the agent.  [default: the one after --port]",
)
@click.option("--token-file", type=token_file, help="File with the harness's token.  [default: a random token]")
@click.option("--agent-token-file", type=token_file, help="File with the agent's token.  [default: a random token]")
@click.option("--no-token", is_flag=True, help="Accept requests without a token; on loopback only.")
@as_json
def serve(
    name: str,
    task_id: str | None,
    host: str,
    port: int,
    agent_port: int | None,
    token_file: Path | None,
    agent_token_file: Path | None,
    no_token: bool,
    json_output: bool,
) -> None:
    """Serve a benchmark or one of its tasks over HTTP.

    Listens on two ports (0 for a free one): JSON-RPC for the harness, which resets and evaluates, and MCP for the
    agent, which acts. Each has its own token (Authorization: Bearer TOKEN). Prints one line when ready, and serves
    until interrupted.
    """
    config = _instance(name, _load(_entry(name)))
    if task_id is not None and task_id not in config.tasks():
        raise click.UsageError(f"Benchmark '{name}' has no task '{task_id}'; available: {', '.join(config.tasks())}.")
    missing = [package for package in ("mcp", "starlette", "uvicorn") if importlib.util.find_spec(package) is None]
    if missing:
        from cube.extras import extra_command

        raise click.UsageError(f"Serving needs {', '.join(missing)}; install with: {extra_command('serve')}")
    from cube.server import served_for
    from cube.serving import serve as serve_until_interrupted

    tokens = _tokens(token_file, agent_token_file, no_token=no_token)
    doors = _open_doors(host, port, agent_port, tokens, no_token=no_token)
    job = {"benchmark_config": config.model_dump(mode="json"), "task_id": task_id}
    # Until the server handles signals itself, each of them ends the command as an interrupt does, with its clean-up.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    output = os.fdopen(os.dup(1), "w")

    def announce(address: Address) -> None:
        with output:
            line = _announcement(name, address, (token_file, agent_token_file), json_output=json_output)
            output.write(f"{line}\n")

    with own_output_to_stderr():
        try:
            served = served_for(job)
        except Exception as error:  # the benchmark's own code
            raise _Failed(f"Starting '{name}' failed: {type(error).__name__}: {error}") from error
        serve_until_interrupted(served, doors, announce)


def _tokens(file: Path | None, agent_file: Path | None, *, no_token: bool) -> tuple[str | None, str | None]:
    """The tokens of the harness and the agent: from their files, else random ones or none."""
    from cube.access import new_token, read_token

    default = (lambda: None) if no_token else new_token
    try:
        token, agent_token = (default() if path is None else read_token(path) for path in (file, agent_file))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if token is not None and token == agent_token:
        raise click.UsageError("The tokens of the harness and the agent must differ.")
    return token, agent_token


def _open_doors(
    host: str, port: int, agent_port: int | None, tokens: tuple[str | None, str | None], *, no_token: bool
) -> Doors:
    from cube.serving import open_doors

    if agent_port is None:
        agent_port = port + 1 if port else 0
    if port and port == agent_port:
        raise click.UsageError("The ports of the harness and the agent must differ.")
    if agent_port > MAX_PORT:
        raise click.UsageError(f"There is no port after {MAX_PORT}; set --agent-port.")
    try:
        doors = open_doors(host, port, agent_port, token=tokens[0], agent_token=tokens[1])
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise _Failed(f"Cannot listen on {host}, ports {port} and {agent_port}: {reason}.") from error
    if no_token and not doors.on_loopback:
        doors.close()
        raise click.UsageError(f"--no-token works on loopback only, and {host} is not.")
    return doors


def _announcement(name: str, address: Address, files: tuple[Path | None, Path | None], *, json_output: bool) -> str:
    """The line that says where it listens; for people it shows only the tokens that are in no file."""
    if json_output:
        return json.dumps({"protocol": "cube", **dataclasses.asdict(address)})
    harness, agent = (
        f"token in {file}" if file else f"token {token}" if token else "no token"
        for file, token in zip(files, (address.token, address.agent_token), strict=True)
    )
    return f"Serving {name}: harness {address.url} ({harness}), agent {address.agent_url} ({agent})"


@contextlib.contextmanager
def own_output_to_stderr() -> Iterator[None]:
    """Redirect everything printed inside, by child processes too, to standard error."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def silence_stdout() -> None:
    """After a failed write to standard output: the flush at exit must not fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
