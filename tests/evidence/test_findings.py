"""Findings of the audit beside its families: each in a package that has it, and not in one without."""

import pytest

from benchflow.evidence.audit.auditing import audit_package
from benchflow.evidence.trial_stage import StageOptions

pytestmark = pytest.mark.anyio
SOLUTION = "#!/bin/sh\nprintf '%s\\n' 'all is done' > answer.txt\n"
HALF = "if grep -q done /app/answer.txt; then echo 0.5; else echo 0; fi > /logs/verifier/reward.txt\n"
ONLY_GOOD = "grep -q done /app/answer.txt && echo 1 > /logs/verifier/reward.txt\n"
IMPORTS = "import sys\nsys.path.insert(0, '/app')\nimport answer\n\ndef test_it():\n    assert answer.value == 4\n"


async def findings(folder, backend):
    report = await audit_package(folder, StageOptions(sandbox=backend), {})
    return {issue.code: issue for issue in report.findings}


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("solution-exposed", {"files": {"oracle/solve.sh": SOLUTION, "environment/notes.txt": SOLUTION}}),
        ("tests-exposed", {"files": {"verifier/test_it.py": IMPORTS, "environment/tests/test_it.py": IMPORTS}}),
        ("oracle-in-prompt", {"files": {"oracle/solve.sh": SOLUTION}, "prompt": f"Do this:\n\n{SOLUTION}"}),
        ("tests-import-work", {"files": {"verifier/test_it.py": IMPORTS}}),
        ("tests-download", {"files": {"verifier/run_tests.sh": "pip install pytest\n"}}),
        ("reward-unreachable", {"verifier": HALF}),
        ("no-op-unscored", {"verifier": ONLY_GOOD}),
    ],
)
async def test_a_finding_is_reported_where_it_applies_and_nowhere_else(make_package, backend, code, options):
    found = await findings(make_package(**options), backend)
    assert found[code].severity == "warning"
    assert found[code].message
    assert code not in await findings(make_package(name="sound"), backend)


async def test_a_solution_that_gets_what_the_package_requires_is_full(make_package, backend):
    declared = "benchflow:\n  evidence:\n    oracle_runs: {required_reward: 0.5}\n"
    assert "reward-unreachable" not in await findings(make_package(declared, verifier=HALF), backend)
