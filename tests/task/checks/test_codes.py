"""Every code is documented, and every documented code exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import benchflow.task
from benchflow.task.checks.codes import CODES, render_check_codes

SOURCE = Path(benchflow.task.__file__).parent
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+|unreadable|preamble")


def reported_codes() -> dict[str, str]:
    """Codes in calls that report a problem and in `code=` arguments, with the file they are in."""
    found: dict[str, str] = {}
    for file in SOURCE.rglob("*.py"):
        if file.name == "codes.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            for expression in candidates(node):
                for part in ast.walk(expression):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and CODE.fullmatch(part.value):
                        found[part.value] = file.name
    return found


def candidates(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in {"error", "warning", "problem", "report", "Issue"}:
            yield from node.args[:1]
        elif name == "Invalid":
            yield from node.args[1:2]
        elif name == "_RefusedError":
            yield from node.args[2:3]
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "code")
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(getattr(target, "id", "") == "default_code" for target in targets) and node.value is not None:
            yield node.value


def test_every_code_that_is_reported_is_in_the_registry():
    unknown = {code: file for code, file in reported_codes().items() if code not in CODES}
    assert unknown == {}


def test_every_code_of_the_registry_is_used():
    files = [*SOURCE.rglob("*.py"), *(SOURCE.parent / "evidence").glob("live_*.py"), SOURCE.parent / "plugins.py"]
    text = "\n".join(file.read_text() for file in files if file.name != "codes.py")
    assert [code for code in CODES if f'"{code}"' not in text] == []


def test_codes_have_a_meaning_and_a_remedy_in_whole_sentences():
    for item in CODES.values():
        assert item.meaning.endswith(".")
        assert item.remedy.endswith(".")


def test_the_documentation_is_the_registry():
    page = Path(__file__).parents[3] / "docs" / "check-codes.md"
    assert page.read_text() == render_check_codes(), "run: python -m benchflow.task.checks.codes > docs/check-codes.md"
