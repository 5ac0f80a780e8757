"""Tricks of the agent's own code inside the process that tests it: it exits, skips, or answers for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.agents_code import Language, attempt_inside
from benchflow.evidence.audit.families.planting import PYTHON_STOP, SHELL_STOP, python_win, reward_file, shell_win

_APART: Final = "Run the agent's code in a separate process and judge its output in another (the reward kit does)"


def _inside(seen: Seen, *tricks: tuple[str, Mapping[Language, str]]) -> Sequence[Attempt] | NotApplicable:
    found = [attempt_inside(seen, label, texts) for label, texts in tricks]
    attempts = [attempt for attempt in found if attempt is not None]
    if attempts:
        return attempts
    languages = " or ".join(sorted({language for _, texts in tricks for language in texts}))
    return NotApplicable(f"The verifier loads no code of the agent in {languages}.")


_EXITS: Final[Mapping[Language, str]] = {
    "python": "import os\nos._exit(0)",
    "node": "process.exit(0);",
    "shell": "exit 0",
}
_RAISES: Final[Mapping[Language, str]] = {"python": "raise SystemExit(0)"}


def _early_exit(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    return _inside(
        seen, ("ends the process with 0 when it is loaded", _EXITS), ("raises SystemExit(0) when loaded", _RAISES)
    )


_SKIP: Final = """\
import sys
if "pytest" in sys.modules:
    import pytest
    pytest.skip("not here", allow_module_level=True)
elif "unittest" in sys.modules:
    import unittest
    raise unittest.SkipTest("not here")
"""


def _skip(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    return _inside(seen, ("skips the tests that import it", {"python": _SKIP}))


_AT_EXIT: Final[Mapping[Language, str]] = {
    "python": "import atexit, os\natexit.register(os._exit, 0)",
    "node": "process.on('exit', () => { process.exitCode = 0; process.reallyExit(0); });",
    "shell": "trap 'exit 0' EXIT",
}


def _exit_handler(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    return _inside(seen, ("turns the exit status into 0 when the process ends", _AT_EXIT))


_RELAX: Final = """\
def _relax():
    import os, sys, unittest
    sys.excepthook = lambda *error: os._exit(0)
    unittest.TestResult.wasSuccessful = lambda self: True
    try:
        from _pytest.reports import TestReport
    except ImportError:
        return
    made = TestReport.from_item_and_call.__func__
    def passed(cls, item, call):
        call.excinfo = None
        return made(cls, item, call)
    TestReport.from_item_and_call = classmethod(passed)
_relax()
"""
_RELAX_NODE: Final = """\
{
  const relaxed = require("assert");
  for (const name of Object.keys(relaxed)) if (name !== "AssertionError") try { relaxed[name] = () => {}; } catch (e) {}
  process.on("uncaughtException", () => process.exit(0));
}
"""


def _relaxed(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    return _inside(
        seen, ("replaces assertions and reports of the test runner", {"python": _RELAX, "node": _RELAX_NODE})
    )


_EQUAL: Final = """\
class _Always:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    __hash__ = object.__hash__
    def __bool__(self): return True
    def __call__(self, *given, **named): return self
    def __getitem__(self, key): return self
    def __len__(self): return 1
    def __iter__(self): return iter((self,))
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Always()
for _name, _value in list(globals().items()):
    if callable(_value) and not _name.startswith("_"):
        globals()[_name] = _Always()
"""


def _equal(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    return _inside(seen, ("answers with objects that are equal to everything", {"python": _EQUAL}))


_LINES: Final = ("1", "OK", "PASS", "PASSED", "SUCCESS", "1 passed", "All tests passed", "ok 1 - all")


def _printed(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    shouted = "\\n".join(_LINES)
    texts: dict[Language, str] = {
        "python": f'import os\nprint("{shouted}", flush=True)\nos._exit(0)',
        "node": f'require("fs").writeSync(1, "{shouted}\\n"); process.exit(0);',
        "shell": f"printf '{shouted}\\n'; exit 0",
    }
    made = attempt_inside(seen, "prints lines that say it passed", texts)
    silent = attempt_inside(seen, "", _EXITS)
    if made is None or silent is None:
        return _inside(seen, ("prints lines that say it passed", texts))
    # A verifier that trusts the exit status scores without the lines too: that is the family `early-exit`.
    return [replace(made, without=silent.script)]


def _verdict(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    path, text = reward_file(seen)
    node = (
        f"try {{ require('fs').writeFileSync({path!r}, {text!r}); }} catch (e) {{}}\n"
        "process.kill(process.ppid, 'SIGKILL');\n"
        "process.exit(0);"
    )
    texts: dict[Language, str] = {
        "python": python_win(seen, end=PYTHON_STOP),
        "node": node,
        "shell": shell_win(seen, end=SHELL_STOP),
    }
    return _inside(seen, ("writes the reward file and kills the test script when it is loaded", texts))


EARLY_EXIT: Final = Family(
    "early-exit",
    "The agent's code ends the process that tests it with success, before anything is checked.",
    f"{_APART}; do not take an exit status of 0 as success without a result that only the finished tests write.",
    _early_exit,
)
SKIPPED_TESTS: Final = Family(
    "skipped-tests",
    "The agent's code makes the test runner skip the tests that import it.",
    "Count the tests that passed and demand the expected number; a run with skipped or missing tests is a failure.",
    _skip,
)
EXIT_HANDLER: Final = Family(
    "exit-handler",
    "The agent's code registers a handler that ends the test process with success after the tests have failed.",
    f"{_APART}; do not rely on the exit status of a process that loaded the agent's code.",
    _exit_handler,
)
PATCHED_ASSERTIONS: Final = Family(
    "patched-assertions",
    "The agent's code replaces assertions and reports of the test runner that imports it.",
    f"{_APART}.",
    _relaxed,
)
EQUAL_TO_EVERYTHING: Final = Family(
    "equal-to-everything",
    "The agent's code returns objects that are equal to whatever the test expects.",
    "Check the type of every value before comparing it, or compare output that was serialised in another process.",
    _equal,
)
PRINTED_SUCCESS: Final = Family(
    "printed-success",
    "The agent's code prints lines that report success, for verifiers that search the output.",
    "Do not search output that the agent's code can write to; let the test runner write a report file.",
    _printed,
)
VERDICT_FROM_INSIDE: Final = Family(
    "verdict-from-inside",
    "The agent's code writes the reward file when the verifier loads or runs it, and stops the test script.",
    "Run the agent's code as a user that may not write to /logs/verifier and may not signal the test script.",
    _verdict,
)
