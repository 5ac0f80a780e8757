"""Rigging what the verifier runs in the working folder: its tests and its build files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Bound, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.forging import MOST, mentions, quoted, verifier_text
from benchflow.evidence.audit.families.outputs import writing

_TEST: Final = re.compile(
    r"(?:^|/)(?:test_[^/]*|[^/]*_test|[^/]*[.-](?:test|spec)|tests?|run[_-]tests?)\.(py|js|mjs|cjs|sh|go)$"
)
_RUNNERS: Final = r"pytest|unittest|npm|yarn|jest|mocha|vitest|node --test|go test|make\b"
_GREEN_PYTHON: Final = """\
import ast, sys
CASE = ast.parse("__import__('unittest').TestCase", mode="eval").body
EMPTY = ast.parse("def f(): pass").body[0].args
SELF = ast.parse("def f(self, *given, **named): pass").body[0].args
def passed(body, args):
    for node in body:
        if isinstance(node, ast.ClassDef):
            cases = any("TestCase" in ast.unparse(base) for base in node.bases)
            node.bases, node.keywords, node.decorator_list = [CASE] if cases else [], [], []
            node.body = [*passed(node.body, SELF)] or [ast.Pass()]
            yield node
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            yield ast.FunctionDef(node.name, args, [ast.Pass()], [], lineno=1, type_params=[])
for path in sys.argv[1:]:
    try:
        tree = ast.parse(open(path).read())
        tree.body = [*passed(tree.body, EMPTY)]
        tree.body += ast.parse('if __name__ == "__main__":\\n    raise SystemExit(0)').body
        text = ast.unparse(ast.fix_missing_locations(tree))
        open(path, "w").write(text)
    except (OSError, SyntaxError, ValueError):
        pass
"""
_GREEN_GO: Final = """\
for path in {paths}; do
  {{ grep -m1 '^package' "$path"; echo 'import "testing"'
    sed -n 's/^func \\(Test[A-Za-z0-9_]*\\)(.*/func \\1(t *testing.T) {{}}/p' "$path"; }} > /tmp/.go
  cat /tmp/.go > "$path"
done
rm -f /tmp/.go
"""
_GREEN_NODE: Final = "const run = globalThis.test || require('node:test').test;\nrun('passes', () => {});\n"
_GREEN_MODULE: Final = "import nodeTest from 'node:test';\n(globalThis.test || nodeTest.test)('passes', () => {});\n"


def _tests(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    solution = {*seen.outputs, *seen.edited}
    tests = [path for path in seen.files if _TEST.search(path) and path not in solution][:MOST]
    if not tests:
        return NotApplicable("The working folder has no tests.")
    if not mentions(seen, _RUNNERS) and not any(PurePosixPath(path).name in verifier_text(seen) for path in tests):
        return NotApplicable("The verifier runs no tests of the working folder.")
    lines = [writing({path: _GREEN_NODE for path in tests if path.endswith((".js", ".cjs"))})]
    lines.append(writing({path: _GREEN_MODULE for path in tests if path.endswith(".mjs")}))
    lines.append(writing({path: "#!/bin/sh\nexit 0\n" for path in tests if path.endswith(".sh")}))
    python = [path for path in tests if path.endswith(".py")]
    if python:
        lines.append(f"python3 -c {shlex.quote(_GREEN_PYTHON)} {quoted(python)}")
    go = [path for path in tests if path.endswith(".go")]
    if go:
        lines.append(_GREEN_GO.format(paths=quoted(go)))
    names = ", ".join(PurePosixPath(path).name for path in tests[:3])
    return (Attempt(f"makes the tests in the working folder pass ({names})", "\n".join([*lines, "true"])),)


def _build_files(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    text = verifier_text(seen)
    rigged: dict[str, str] = {}
    targets = re.findall(r"\bmake\b(?:\s+-[\w=]+|\s+-C\s+\S+)*\s+([a-z][\w-]*)", text)
    if re.search(r"(?m)(^|[\s;&|(\"'])make(\s|$|;|\")", text):
        names = " ".join(dict.fromkeys(["all", "build", "check", "test", *targets]))
        found = [path for path in seen.files if PurePosixPath(path).name in ("Makefile", "makefile", "GNUmakefile")]
        for path in found[:MOST] or [f"{seen.workdir.rstrip('/')}/Makefile"]:
            rigged[path] = f".PHONY: {names}\n{names}:\n\t@true\n%:\n\t@true\n"
    if re.search(r"\b(npm|yarn|pnpm)\b", text):
        scripts = dict.fromkeys(
            ["build", "lint", "start", "test", *re.findall(r"\brun ([a-z][\w:-]*)", text)], "exit 0"
        )
        found = [
            path for path in seen.files if PurePosixPath(path).name == "package.json" and "node_modules" not in path
        ]
        for path in found[:MOST] or [f"{seen.workdir.rstrip('/')}/package.json"]:
            rigged[path] = json.dumps({"name": "task", "version": "1.0.0", "private": True, "scripts": scripts})
    if not rigged:
        return NotApplicable("The verifier runs neither make nor npm scripts.")
    # A build file that a solution writes anyway may earn a part of the reward for itself.
    bound: Bound = "known-bad" if any(path in (*seen.outputs, *seen.edited) for path in rigged) else "baseline"
    label = "replaces " + ", ".join(dict.fromkeys(PurePosixPath(path).name for path in rigged))
    return (Attempt(f"{label} by one whose targets do nothing and succeed", writing(rigged), bound=bound),)


RIGGED_TESTS: Final = Family(
    "rigged-tests",
    "Rewrites the tests in the working folder so that they pass.",
    "Keep the tests in the verifier folder, and run them from there or copy them over those of the working folder.",
    _tests,
)
RIGGED_BUILD_FILES: Final = Family(
    "rigged-build-files",
    "Replaces build files (Makefile, package.json) that the verifier runs by ones that do nothing and succeed.",
    "Run tests with commands and build files of the verifier, and check what they built rather than the exit status.",
    _build_files,
)
