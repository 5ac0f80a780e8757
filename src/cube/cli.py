"""The `cube` command: installed benchmarks, their data, their conformance, new ones, and servers for them.

Exit codes: 0 done and good, 1 something failed, 2 wrong usage. `--json` prints one JSON document and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cube.registry import GROUP, installed

if TYPE_CHECKING:
    from cube.benchmark import BenchmarkConfig
    from cube.conformance import Findings

as_json = click.option("--json", "json_output", is_flag=True, help="Print one JSON document.")


class _Failed(click.ClickException):
    """One sentence, exit code 1."""

    exit_code = 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="benchcube", prog_name="cube")
def main() -> None:
    """Benchmarks as gym tasks: list, install, check, create and serve them."""


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def _entry(name: str) -> EntryPoint:
    benchmarks = installed()
    if name not in benchmarks:
        known = ", ".join(benchmarks) or "none"
        raise click.UsageError(f"There is no benchmark '{name}' here; installed are: {known}.")
    return benchmarks[name]


def _load(entry: EntryPoint) -> type[BenchmarkConfig[Any]]:
    """The config class of an installed benchmark; whatever its import raises becomes one sentence."""
    try:
        loaded = entry.load()
    except Exception as error:
        raise _Failed(f"Benchmark '{entry.name}' cannot be loaded: {type(error).__name__}: {error}") from error
    from cube.benchmark import BenchmarkConfig

    if not (isinstance(loaded, type) and issubclass(loaded, BenchmarkConfig)):
        raise _Failed(f"Entry point '{entry.name}' ({entry.value}) is not a BenchmarkConfig subclass.")
    return loaded


@main.command("list")
@as_json
def list_benchmarks(json_output: bool) -> None:
    """Show the installed benchmarks."""
    rows = [_row(entry) for entry in installed().values()]
    if json_output:
        _print_json({"benchmarks": rows})
        return
    if not rows:
        click.echo(f"No benchmarks are installed. A package that declares one in the entry-point group '{GROUP}' is.")
        click.echo("Start one with: cube init my-benchmark")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "version", "tasks", "tags", "description", box=None, header_style="bold", pad_edge=False)
    for row in rows:
        if row["error"]:
            table.add_row(row["name"], "", "", "", f"cannot be loaded: {row['error']}", style="red")
        else:
            table.add_row(row["name"], row["version"], str(row["tasks"]), ", ".join(row["tags"]), row["description"])
    Console().print(table)


def _row(entry: EntryPoint) -> dict[str, Any]:
    try:
        config = _load(entry)
        metadata = config.benchmark_metadata
    except (click.ClickException, AttributeError) as error:
        message = error.message if isinstance(error, click.ClickException) else str(error)
        return {"name": entry.name, "version": None, "tasks": None, "tags": [], "description": None, "error": message}
    return {
        "name": entry.name,
        "version": metadata.version,
        "tasks": len(config.task_metadata),
        "tags": metadata.tags,
        "description": metadata.description,
        "error": None,
    }


@main.command()
@click.argument("name")
@as_json
def info(name: str, json_output: bool) -> None:
    """Show a benchmark, its subsets and its tasks."""
    config = _load(_entry(name))
    metadata = config.benchmark_metadata
    tasks = list(config.task_metadata.values())
    if json_output:
        dump = metadata.model_dump(mode="json")
        _print_json({**dump, "cache_dir": str(config.cache_dir()), "tasks": [t.model_dump(mode="json") for t in tasks]})
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"[bold]{metadata.name}[/] {metadata.version}: {metadata.description}")
    for label, value in (
        ("authors", ", ".join(metadata.authors)),
        ("license", metadata.license),
        ("tags", ", ".join(metadata.tags)),
        ("reset", metadata.reset_isolation or ""),
        ("data", str(config.cache_dir())),
        ("subsets", ", ".join(f"{k} ({field}={glob})" for k, (field, glob) in metadata.named_subsets.items())),
    ):
        if value:
            console.print(f"  {label:8} {value}", highlight=False)
    table = Table("task", "split", "max steps", "description", box=None, header_style="bold", pad_edge=False)
    for task in tasks:
        table.add_row(task.id, task.split, str(task.recommended_max_steps or ""), task.abstract_description)
    console.print(table)


@main.command()
@click.argument("name")
def install(name: str) -> None:
    """Fetch and prepare a benchmark's data on this machine."""
    config = _load(_entry(name))
    _run(f"Installing '{name}'", config.install)
    click.echo(f"Installed {name} into {config.cache_dir()}")


@main.command()
@click.argument("name")
def uninstall(name: str) -> None:
    """Remove what install made."""
    config = _load(_entry(name))
    _run(f"Uninstalling '{name}'", config.uninstall)
    click.echo(f"Removed the data of {name}")


def _run(what: str, action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:
        raise _Failed(f"{what} failed: {type(error).__name__}: {error}") from error


@main.command()
@click.argument("name")
@click.option("--max-steps", default=20, show_default=True, type=click.IntRange(min=1), help="Longest debug episode.")
@as_json
def test(name: str, max_steps: int, json_output: bool) -> None:
    """Check that a benchmark keeps the contract, and that its debug agents reach reward 1.

    NAME is an installed benchmark, or the import path of a debug module.
    """
    module = _debug_module(name)
    from cube.conformance import CHECKS, check_benchmark

    findings = check_benchmark(module, max_steps=max_steps)
    if json_output:
        checks = [{"id": check, "status": _status(check, findings), "rule": rule} for check, rule in CHECKS.items()]
        rows = [{"check": f.check, "task_id": f.task_id, "message": f.message} for f in findings]
        _print_json({"benchmark": name, "passed": not findings, "checks": checks, "findings": rows})
    else:
        _print_findings(name, findings)
    if findings:
        sys.exit(1)


def _debug_module(name: str) -> Any:
    """The `debug` module beside the benchmark's own, or the module of that name."""
    benchmarks = installed()
    if name in benchmarks:
        path = f"{benchmarks[name].module.rpartition('.')[0] or benchmarks[name].module}.debug"
    elif name.replace(".", "").replace("_", "").isalnum() and "." in name:
        path = name
    else:
        _entry(name)
    try:
        return importlib.import_module(path)
    except Exception as error:
        raise _Failed(f"The debug module '{path}' cannot be imported: {type(error).__name__}: {error}") from error


def _status(check: str, findings: Findings) -> str:
    if any(finding.check == check for finding in findings):
        return "failed"
    return "passed" if check in findings.checked else "not run"


def _print_findings(name: str, findings: Findings) -> None:
    from cube.conformance import CHECKS

    colours = {"failed": "red", "passed": "green", "not run": "yellow"}
    for check, rule in CHECKS.items():
        status = _status(check, findings)
        click.echo(f"{click.style(f'{status:8}', fg=colours[status])} {check:13} {rule}")
    for finding in findings:
        click.echo(f"\n{finding}")
    click.echo(f"\n{name}: " + (f"{len(findings)} findings" if findings else "all checks passed"))


@main.command()
@click.argument("name", default="my-benchmark")
@click.option("--dir", "parent", default=".", type=click.Path(path_type=Path), help="Where to create it.")
def init(name: str, parent: Path) -> None:
    """Create a working cube package with tests, in a new folder NAME."""
    from cube.scaffold import create_cube

    try:
        target = create_cube(name, parent)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"Created {target}. Try it:\n  pip install -e {target}\n  cube test {name}")


@main.command()
@click.argument("name")
@click.option("--task", "task_id", help="Serve this one task (JSON-RPC and MCP) instead of the benchmark.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
def serve(name: str, task_id: str | None, host: str, port: int) -> None:
    """Serve a benchmark, or one of its tasks, over HTTP until interrupted."""
    import socket

    config = _load(_entry(name))()
    if task_id is not None and task_id not in config.tasks():
        raise click.UsageError(f"Benchmark '{name}' has no task '{task_id}'; it has: {', '.join(config.tasks())}.")
    missing = [package for package in ("mcp", "starlette", "uvicorn") if importlib.util.find_spec(package) is None]
    if missing:
        raise _Failed(f"Serving needs {', '.join(missing)}: pip install 'benchcube[serve]'.")
    from cube.serving import serve as run_server

    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise _Failed(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from error
    with listener:
        sys.exit(run_server({"benchmark_config": config.model_dump(mode="json"), "task_id": task_id}, listener))


if __name__ == "__main__":
    main()
