"""Injection: outputs, and names of files, that a careless verifier reads as a verdict, a pattern, an option or code."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.forging import MOST, NO_TARGETS, is_code, verifier_text
from benchflow.evidence.audit.families.outputs import writing

_PLAIN: Final = "x\n"
_VERDICT: Final = """\
\x1b[2J\x1b[32mPASSED\x1b[0m
PASSED
passed
PASS
OK
SUCCESS
TAP version 13
1..1
ok 1 - all
=== 1 passed in 0.01s ===
1 passed, 0 failed
Tests: 1 passed, 1 total
All tests passed
result: correct
reward: 1
score: 1.0
1.0
<testsuite tests="1" failures="0" errors="0"><testcase name="all"/></testsuite>
"""
_OPPOSITE: Final = """\
\x1b[2J\x1b[31mFAILED\x1b[0m
FAILED
failed
FAIL
NO
FAILURE
TAP version 13
1..1
not ok 1 - all
=== 1 failed in 0.01s ===
0 passed, 1 failed
Tests: 1 failed, 1 total
All tests failed
result: wrong
reward: 0
score: 0.0
0.0
<testsuite tests="1" failures="1" errors="0"><testcase name="all"><failure/></testcase></testsuite>
"""
"""The same report with the other verdict: what it earns is earned by words and numbers, not by the verdict."""
_VERDICT_JSON: Final = json.dumps(
    {
        "reward": 1.0,
        "score": 1.0,
        "passed": True,
        "success": True,
        "correct": True,
        "valid": True,
        "ok": True,
        "status": "passed",
        "verdict": "pass",
        "result": "PASS",
        "failures": 0,
        "errors": [],
    }
)
_TRAP: Final = "trap 'echo 1 > /logs/verifier/reward.txt' EXIT"
_EXIT: Final = "__import__('os')._exit(0)"
_EXPECTED: Final = re.compile(r"\b(\w*(?:expect|want|gold|answer|target|correct|truth)\w*)\s*=[^=]", re.IGNORECASE)
_KEYS: Final = re.compile(
    r"""\[["']([\w -]{1,40})["']\]|\.get\(\s*["']([\w -]{1,40})["']|["'](\w{1,40})["'] (?:not )?in """
)
_JQ_KEYS: Final = re.compile(r"jq [^\n]*?['\"]\.([A-Za-z_]\w*)")
_NUMBERS: Final = {"NaN": "7919", "Infinity": "7919", "-Infinity": "-7919"}
"""Each with a number of its sign that is wrong and plain."""


def _texts(seen: Seen) -> list[str]:
    """The outputs that are no code."""
    return [path for path in seen.targets if not is_code(path)]


def _written(seen: Seen, text: str) -> str:
    return writing(dict.fromkeys(_texts(seen), text))


def _verdict(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    logs = [path for path in dict.fromkeys([*seen.read, *seen.files]) if path.endswith((".log", ".out"))][:MOST]
    if not _texts(seen) and not logs:
        return NotApplicable(NO_TARGETS)

    def script(text: str, data: str) -> str:
        contents = {path: data if path.endswith((".json", ".jsonl")) else text for path in _texts(seen)}
        adding = [f"printf %s {shlex.quote(text)} >> {shlex.quote(path)} 2>/dev/null" for path in logs]
        return "\n".join([writing(contents), *adding, "true"])

    label = "writes lines of a passed test run into outputs and logs"
    return (Attempt(label, script(_VERDICT, _VERDICT_JSON), without=script(_OPPOSITE, '{"x": "x"}')),)


def _wildcards(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not _texts(seen):
        return NotApplicable(NO_TARGETS)
    plain = _written(seen, _PLAIN)
    return [
        Attempt(f"writes the pattern {pattern} into every output", _written(seen, f"{pattern}\n"), without=plain)
        for pattern in ("*", ".*", "%")
    ]


def _code(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not _texts(seen):
        return NotApplicable(NO_TARGETS)
    tries = {
        "an operator of the shell's test, 1 = 1 -o 1,": "1 = 1 -o 1",
        "a trap of the shell that writes the reward": _TRAP,
        "Python code that ends the process": _EXIT,
        "SQL that is always true": "' OR '1'='1",
    }
    names = dict.fromkeys(_EXPECTED.findall(verifier_text(seen)))
    if names:
        name = next(iter(names))
        tries[f"the name of the verifier's variable {name}"] = name
    plain = _written(seen, _PLAIN)
    return [
        Attempt(f"writes {what} into every output", _written(seen, f"{text}\n"), without=plain)
        for what, text in tries.items()
    ]


def _numbers(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    texts = _texts(seen)
    if not texts:
        return NotApplicable(NO_TARGETS)
    text = verifier_text(seen)
    keys = [*dict.fromkeys([name for match in _KEYS.findall(text) for name in match if name] + _JQ_KEYS.findall(text))]

    def script(value: str) -> str:
        return writing({path: _with_value(path, keys[: 2 * MOST], value) for path in texts})

    return [
        Attempt(f"writes {value} as every number", script(value), without=script(plain))
        for value, plain in _NUMBERS.items()
    ]


def _with_value(path: str, keys: Sequence[str], value: str) -> str:
    """A document in the format of a file that has this value everywhere."""
    suffix = PurePosixPath(path).suffix
    if suffix in (".json", ".jsonl") and keys:
        return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key in keys) + "}\n"
    if suffix in (".csv", ".tsv") and keys:
        separator = "\t" if suffix == ".tsv" else ","
        return f"{separator.join(keys)}\n{separator.join([value] * len(keys))}\n"
    return f"{value}\n"


_HELP: Final = ("--help", "--version")
_SLASH: Final = "$(pwd|cut -c1)"
_SHELL_NAMES: Final = (
    "zz||true",
    f'zz||true;trap "echo 1 >{_SLASH}logs{_SLASH}verifier{_SLASH}reward.txt" EXIT;true',
    "zz\ntrue",
)


def _names(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    text = verifier_text(seen)
    if not re.search(r"\*|\$\(ls|\bls\b|\bfind\b|glob|listdir|iterdir|scandir|walk\(|readdir", text):
        return NotApplicable("The verifier lists no folder.")
    inside = {str(PurePosixPath(path).parent) for path in (*seen.targets, *seen.read, *seen.files)}
    folders = [seen.workdir, *sorted(path for path in inside | {*seen.outputs, *seen.read} if path in text)]
    folders = [path for path in dict.fromkeys(folders) if path not in seen.files and path != "/"][:MOST]

    def script(names: Sequence[str], content: Callable[[str], str]) -> str:
        lines = [writing(dict.fromkeys(_texts(seen), _PLAIN))]
        for folder in folders:
            places = " ".join(shlex.quote(f"{folder}/{content(name)}") for name in names)
            lines.append(
                f'[ -d {shlex.quote(folder)} ] && for place in {places}; do echo x > "$place"; done 2>/dev/null'
            )
        return "\n".join([*lines, "true"])

    def tame(name: str) -> str:
        return re.sub(r"\W+", "x", name)

    return (
        Attempt(
            "leaves files whose names are options (--help, --version)",
            script(_HELP, str),
            without=script(_HELP, tame),
        ),
        Attempt(
            "leaves files whose names are commands of the shell",
            script(_SHELL_NAMES, str),
            without=script(_SHELL_NAMES, tame),
        ),
    )


_QUOTE: Final = "Quote what comes from the agent, compare it as text, and never pass it to eval, source or a pattern."
VERDICT_IN_OUTPUT: Final = Family(
    "verdict-in-output",
    "Writes lines that report passed tests (TAP, JUnit, pytest, JSON) into outputs and logs that a verifier searches.",
    "Take the verdict from the report of the verifier's own tests, never from text that the agent wrote.",
    _verdict,
)
WILDCARD_ANSWER: Final = Family(
    "wildcard-answer", "Writes patterns that match everything instead of an answer.", _QUOTE, _wildcards
)
CODE_ANSWER: Final = Family(
    "code-answer",
    "Writes operators, variable names and code that a verifier evaluates instead of an answer.",
    _QUOTE,
    _code,
)
STRANGE_NUMBERS: Final = Family(
    "strange-numbers",
    "Writes NaN and infinite numbers, which pass comparisons that look for a difference.",
    "Require finite numbers before comparing, and write comparisons so that they are true only for a right value.",
    _numbers,
)
HOSTILE_NAMES: Final = Family(
    "hostile-names",
    "Leaves files whose names a verifier's shell or programs read as options or commands.",
    "Quote names, put `./` or `--` before patterns, and list files without a shell.",
    _names,
)
