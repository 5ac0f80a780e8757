"""The list of accepted mutation survivors speaks of code that exists, and the modules to mutate are there."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
ENTRIES: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/mutation-survivors.toml").read_text())["survivor"]


def functions(tree: ast.AST, prefix: str = "") -> dict[str, ast.AST]:
    found: dict[str, ast.AST] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found |= functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[prefix + node.name] = node
    return found


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry['module']}.{entry['function']}")
def test_an_entry_matches_existing_code_and_has_a_reason(entry):
    assert set(entry) == {"module", "function", "was", "now", "reason"}
    assert len(entry["reason"].split()) >= 3, "the reason is a sentence"
    assert entry["was"] != entry["now"]
    path = Path("src", *entry["module"].split(".")).with_suffix(".py")
    assert any(path.match(pattern) for pattern in SETTINGS["only_mutate"]), f"{path} is not mutated"
    source = (ROOT / path).read_text()
    function = functions(ast.parse(source))[entry["function"]]
    lines = [line.strip() for line in source.splitlines()[function.lineno - 1 : function.end_lineno]]
    missing = [line for line in entry["was"].splitlines() if line not in lines]
    assert not missing, "the code has changed: run make mutate and renew or remove the entry"


def test_no_entry_stands_twice():
    keys = [(entry["module"], entry["function"], entry["was"], entry["now"]) for entry in ENTRIES]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("pattern", [*SETTINGS["only_mutate"], *SETTINGS["pytest_add_cli_args_test_selection"]])
def test_every_module_and_test_of_the_mutation_run_exists(pattern):
    assert list(ROOT.glob(pattern))
