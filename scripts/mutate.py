"""Mutation run over the modules of `[tool.mutmut]`: makes many small changes to the code and runs the tests on each.

A change that no test notices is a survivor. It needs a test, or an entry in `tests/mutation-survivors.toml` that says
why it has none. Results are kept in `mutants/`: a stopped run continues, and survivors are tried again every time.

    scripts/mutate.py [MODULE...]     e.g. benchflow.rewards.gain; all modules without one
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import inspect
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import libcst as cst
from mutmut import __main__ as mutmut
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.runners.harness import PytestRunner
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_module_from_key, orig_function_and_class_names_from_key

ROOT = Path(__file__).resolve().parent.parent
WORK = Path("mutants")
_MADE_BY = WORK / "made-by"
LIST = Path("tests/mutation-survivors.toml")
_KILLED = {"killed", "timeout"}
_SURVIVED = {"survived", "no tests"}

Key = tuple[str, str, str, str]
"""A mutant by what it is and not where: module, function, the lines as they are, the lines as changed."""


@dataclass
class Row:
    """What became of the mutants of one module."""

    module: str
    mutants: int = 0
    killed: int = 0
    listed: int = 0
    unlisted: int = 0
    undecided: int = 0

    def cells(self) -> list[str]:
        numbers = (self.mutants, self.killed, self.listed + self.unlisted, self.listed, self.undecided)
        return [self.module, *map(str, numbers)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation run; exits 1 when a survivor is not listed.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="modules to mutate, `*` allowed (default: all)")
    parser.add_argument(
        "--children", type=int, default=os.cpu_count(), help="processes at a time (default: one per core)"
    )
    parser.add_argument("--report", action="store_true", help="only print what is known from earlier runs")
    options = parser.parse_args()
    os.chdir(ROOT)
    paths = sorted(path for path in walk_mutatable_files() if _chosen(module_of(path), options.modules))
    if not paths:
        parser.error(f"no module of [tool.mutmut] in pyproject.toml matches {' '.join(options.modules)}")
    if not options.report:
        _reduce_operators()
        _run_own_tests_first()
        _forget_what_is_outdated()
        names = _undecided(paths) if options.modules else []
        if names or not options.modules:
            mutmut._run(names, options.children)
    return _report(paths)


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts[1:])


def _chosen(module: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(module, pattern) for pattern in patterns)


def _reduce_operators() -> None:
    """Leave out what tells nothing: the wording of messages, and further changes of what is changed already."""
    swap = {mutators.operator_string: _one_string, mutators.operator_arg_removal: _one_argument}
    mutators.mutation_operators[:] = [
        (kind, swap.get(operator, operator)) for kind, operator in mutators.mutation_operators
    ]
    skip = file_mutation.MutationVisitor._skip_node_and_children
    file_mutation.MutationVisitor._skip_node_and_children = lambda self, node: (
        is_prose(node) or (skip(self, node) and not is_property(node))
    )
    arrange = file_mutation.function_trampoline_arrangement
    file_mutation.function_trampoline_arrangement = lambda *arguments, **named: _arrange(arrange, *arguments, **named)


def is_prose(node: cst.CSTNode) -> bool:
    """Whether an expression is text for readers: a string with a space in it."""
    if isinstance(node, cst.SimpleString):
        return " " in node.raw_value
    if isinstance(node, cst.FormattedString):
        return any(isinstance(part, cst.FormattedStringText) and " " in part.value for part in node.parts)
    return isinstance(node, cst.ConcatenatedString) and (is_prose(node.left) or is_prose(node.right))


def is_property(node: cst.CSTNode) -> bool:
    """Whether a function is a property and nothing else, so that its rules can be mutated like those of a method."""
    if not isinstance(node, cst.FunctionDef) or len(node.decorators) != 1:
        return False
    decorator = node.decorators[0].decorator
    return isinstance(decorator, cst.Name) and decorator.value == "property"


def _arrange(arrange: Any, function: cst.FunctionDef, mutants: Any, class_name: str | None) -> Any:
    """Mutants of a property as plain methods, and the switch between them as the property."""
    if not is_property(function):
        return arrange(function, mutants, class_name)
    before, nodes, after, names = arrange(function.with_changes(decorators=[]), mutants, class_name)
    nodes[0] = nodes[0].with_changes(decorators=[*function.decorators, *nodes[0].decorators])
    return before, nodes, after, names


def _one_string(node: cst.BaseString) -> Iterator[cst.BaseString]:
    yield from list(mutators.operator_string(node))[:1]


def _one_argument(node: cst.Call) -> Iterator[cst.Call]:
    """Each argument once: None in its place, and a named one left out."""
    for index, argument in enumerate(node.args):
        if argument.star or is_prose(argument.value):
            continue
        if argument.keyword is not None:
            yield node.with_changes(args=[*node.args[:index], *node.args[index + 1 :]])
        elif not (isinstance(argument.value, cst.Name) and argument.value.value == "None"):
            changed = argument.with_changes(value=cst.Name("None"))
            yield node.with_changes(args=[*node.args[:index], changed, *node.args[index + 1 :]])


def _run_own_tests_first() -> None:
    """Try a mutant on the tests of its own module before all others that reach it: most are killed there."""
    run = PytestRunner.run_tests

    def run_tests(self: PytestRunner, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        remaining = list(tests)
        if mutant_name is not None:
            _, *folders, module = get_module_from_key(mutant_name).split(".")
            file = "/".join(("tests", *folders, f"test_{module}.py::"))
            own = [test for test in remaining if test.startswith(file)]
            remaining = [test for test in remaining if not test.startswith(file)]
            if own and (code := run(self, mutant_name=mutant_name, tests=own)):
                return code
            if not remaining:
                return 0
        return run(self, mutant_name=mutant_name, tests=remaining)

    PytestRunner.run_tests = run_tests


def _forget_what_is_outdated() -> None:
    """Tests are copied anew, files that are gone are removed, and which test runs what is found out again.

    Mutants have numbers, which mean others once they are made in another way: then everything begins anew.
    """
    makers = (_reduce_operators, is_prose, is_property, _arrange, _one_string, _one_argument)
    code = version("mutmut") + "".join(map(inspect.getsource, makers))
    made_by = hashlib.sha256(code.encode()).hexdigest()
    if WORK.exists() and (not _MADE_BY.exists() or _MADE_BY.read_text() != made_by):
        shutil.rmtree(WORK)
    WORK.mkdir(exist_ok=True)
    _MADE_BY.write_text(made_by)
    shutil.rmtree(WORK / "tests", ignore_errors=True)
    (WORK / "mutmut-stats.json").unlink(missing_ok=True)
    for copy in (WORK / "src").rglob("*.*"):
        ours = copy.suffix in (".meta", ".spans") or (copy.suffix == ".py" and copy.relative_to(WORK).exists())
        if copy.is_file() and not ours:
            copy.unlink()  # mutmut does not renew what it has copied once
    for path in walk_mutatable_files():
        data = _results(path)
        kept = {name: code for name, code in data.exit_code_by_key.items() if status_by_exit_code[code] in _KILLED}
        if len(kept) != len(data.exit_code_by_key):
            data.exit_code_by_key = {name: kept.get(name) for name in data.exit_code_by_key}
            data.save()


def _results(path: Path) -> SourceFileMutationData:
    data = SourceFileMutationData(path=path)
    data.load()
    return data


def _undecided(paths: Iterable[Path]) -> list[str]:
    """Names of mutants to try; a pattern for a module that has none yet."""
    names: list[str] = []
    for path in paths:
        results = _results(path).exit_code_by_key
        names += [name for name, code in results.items() if code is None] if results else [f"{module_of(path)}.x*"]
    return names


def key_of(name: str, path: Path) -> Key:
    function, class_name = orig_function_and_class_names_from_key(name)
    lines = get_diff_for_mutant(name, path=path).splitlines()[3:]
    was, now = ("\n".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return module_of(path), f"{class_name}.{function}" if class_name else function, was, now


def listed() -> dict[Key, str]:
    entries = tomllib.loads(LIST.read_text()).get("survivor", [])
    return {(entry["module"], entry["function"], entry["was"], entry["now"]): entry["reason"] for entry in entries}


def _report(paths: Iterable[Path]) -> int:
    known = listed()
    rows: list[Row] = []
    for path in paths:
        row = Row(module_of(path))
        rows.append(row)
        unused = {key for key in known if key[0] == row.module}
        for name, code in _results(path).exit_code_by_key.items():
            status = status_by_exit_code[code]
            row.mutants += 1
            if status in _KILLED:
                row.killed += 1
            elif status not in _SURVIVED:
                row.undecided += 1
            else:
                key = key_of(name, path)
                unused.discard(key)
                row.listed += key in known
                if key not in known:
                    row.unlisted += 1
                    _show_survivor(key, status)
        if not row.undecided:
            for key in sorted(unused):
                print(f"listed, but killed or gone: {key[0]}: {key[1]}: {key[3]!r}")
    _show_table(rows)
    return 1 if any(row.unlisted or row.undecided for row in rows) else 0


def _show_survivor(key: Key, status: str) -> None:
    module, function, was, now = (json.dumps(part, ensure_ascii=False) for part in key)
    print(
        f'# {status}\n[[survivor]]\nmodule = {module}\nfunction = {function}\nwas = {was}\nnow = {now}\nreason = ""\n'
    )


def _show_table(rows: list[Row]) -> None:
    total = Row("total")
    for row in rows:
        for field in ("mutants", "killed", "listed", "unlisted", "undecided"):
            setattr(total, field, getattr(total, field) + getattr(row, field))
    lines = [["module", "mutants", "killed", "survived", "listed", "open"], *(row.cells() for row in (*rows, total))]
    width = max(len(line[0]) for line in lines)
    for line in lines:
        print(line[0].ljust(width), *(cell.rjust(9) for cell in line[1:]))


if __name__ == "__main__":
    sys.exit(main())
