"""Installed benchmarks: packages that declare an entry point in the group `cube.benchmarks`.

The value of an entry point is `package.module:BenchmarkConfigSubclass`; commands refer to it by its name. A worker that
has only a task config learns the name of its benchmark from the source of that module, which it need not import.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ast
    from importlib.metadata import EntryPoint

GROUP: Final = "cube.benchmarks"


def installed() -> dict[str, EntryPoint]:
    """All installed benchmarks, sorted by name; none of them is imported."""
    from importlib.metadata import entry_points  # reads mail and archive formats: as costly as all models of a task

    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


@cache
def import_benchmarks_of(package: str) -> None:
    """Import the installed benchmarks of a top-level package, so that their classes are registered; once.

    One that cannot be imported is logged, so that tasks of the others still run.
    """
    import logging

    for entry in installed().values():
        if entry.value.partition(":")[0].partition(".")[0] == package:
            try:
                entry.load()
            except Exception as error:  # noqa: BLE001  # whatever a benchmark's import raises
                logging.getLogger(__name__).warning(
                    "Benchmark '%s' cannot be imported: %s: %s", entry.name, type(error).__name__, error
                )


@cache
def benchmark_name(module: str, task_config_class: str) -> str | None:
    """The name of the benchmark that declares a task config class; None if its source alone does not say.

    Looked for in the modules of the package's entry points and in `benchmark` beside the class; none is imported.
    """
    package = module.partition(".")[0]
    modules = [f"{module.rpartition('.')[0] or package}.benchmark"]
    modules += [entry.value.partition(":")[0] for entry in installed().values()]
    for name in dict.fromkeys(modules):
        path = _source(name) if name.partition(".")[0] == package else None
        if path is not None:
            found = _declared(path, task_config_class)
            if found is not None:
                return found
    return None


def _source(module: str) -> Path | None:
    """The file of a module whose top-level package has been imported."""
    package, *inside = module.split(".")
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        path = Path(folder).joinpath(*inside)
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _declared(path: Path, task_config_class: str) -> str | None:
    """The name that the benchmark of this class has in a source file, if it is written out there or beside it."""
    import ast

    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # its import will say what is wrong
        return None
    imported = {
        alias.asname: alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    constants = _assigned(tree.body)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and [_last(base) for base in node.bases] == ["BenchmarkConfig"]:
            own = _assigned(node.body)
            class_name = _last(own.get("task_config_class"))
            own_methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            if imported.get(class_name, class_name) != task_config_class or "cache_dir" in own_methods:
                continue
            if "benchmark_metadata" in own:
                return _name_in(own["benchmark_metadata"], constants)
            return None if "benchmark_metadata" in own_methods else _name_beside(path)
    return None


def _assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """The values of plain assignments, by name."""
    import ast

    found: dict[str, ast.expr] = {}
    for node in body:
        if isinstance(node, ast.Assign):
            found |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            found[node.target.id] = node.value
    return found


def _last(node: ast.expr | None) -> str:
    """`Config` of `Config`, `module.Config` and `Config[Parameter]`."""
    import ast

    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _name_in(metadata: ast.expr, constants: dict[str, ast.expr]) -> str | None:
    """The `name` in `BenchmarkMetadata(name=…)`, each of them possibly a constant of the module."""
    import ast

    call = constants.get(metadata.id) if isinstance(metadata, ast.Name) else metadata
    if not isinstance(call, ast.Call):
        return None
    value = next((keyword.value for keyword in call.keywords if keyword.arg == "name"), None)
    if isinstance(value, ast.Name):
        value = constants.get(value.id)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _name_beside(path: Path) -> str | None:
    import csv
    import json

    try:
        beside = path.with_name("benchmark_metadata.json")
        if beside.is_file():
            name = json.loads(beside.read_text(encoding="utf-8-sig"))["name"]
        else:
            with path.with_name("benchmark_metadata.csv").open(encoding="utf-8-sig", newline="") as file:
                name = next(csv.DictReader(file))["name"]
    except (OSError, ValueError, KeyError, TypeError, StopIteration, csv.Error):
        return None
    return name if isinstance(name, str) else None
