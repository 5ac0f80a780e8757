"""Who is responsible for a verification that fails: the agent's state, or the package and the machine."""

from __future__ import annotations

import shlex
from dataclasses import replace

import anyio
import pytest

from benchflow.environment import Environment
from benchflow.record import Isolation
from benchflow.rewards import Scored, Unscored
from benchflow.verifier import Verification
from benchflow.verifier.blame import BROKEN, REPEATED, Pristine, settle
from benchflow.verifier.boxes import Findings
from benchflow.verifier.surviving.survival import Withheld

pytestmark = pytest.mark.anyio
FRAGILE = """\
#!/bin/sh
set -e
[ ! -e /app/reward.txt ] || { echo "reward.txt is in the way" >&2; exit 3; }
if [ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
CHECK_IN_NODE = """\
const fs = require("fs");
const found = fs.existsSync("/app/answer.txt") && fs.readFileSync("/app/answer.txt", "utf8").trim() === "42";
fs.writeFileSync("/logs/verifier/reward.txt", found ? "1" : "0");
"""
TIMEOUT = Unscored("verifier", "verify", "timeout", "the verifier exceeded its limit of 5 s and was stopped")
FAILED = Verification(TIMEOUT, "script", "script", Isolation("shared", "default", None), duration_sec=5.0)


def codes(verification: Verification) -> list[str]:
    return [note.code for note in verification.diagnostics]


async def test_a_state_that_breaks_the_verifier_is_scored_0_with_the_failure_quoted(bench, package):
    async with bench(package(files={"verifier/test.sh": FRAGILE})) as it:
        await it.agent("echo 42 > /app/answer.txt; echo 1 > /app/reward.txt")
        found = await it.verify()
        assert found.verdict.reward == 0
        assert codes(found) == [BROKEN]
        assert "verifier/reward-missing" in found.diagnostics[0].message
        assert "with code 3" in found.diagnostics[0].message
        assert (it.output / "reward.txt").read_text().strip() == "0.0"


async def test_a_verifier_that_fails_on_the_pristine_environment_too_leaves_the_work_unscored(bench, package):
    async with bench(package(files={"verifier/test.sh": "#!/bin/sh\nexit 3\n"})) as it:
        await it.agent("echo 42 > /app/answer.txt")
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("verifier", "reward-missing")


async def test_the_pristine_environment_is_verified_once_for_all_attempts(bench, package, monkeypatch):
    started = []
    start = Environment.start

    async def counting(self):
        started.append(self)
        await start(self)

    async with bench(package(files={"verifier/test.sh": "#!/bin/sh\n# counted\nexit 3\n"})) as it:
        monkeypatch.setattr(Environment, "start", counting)
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(it.verifier.verify, it.folder / f"attempt-{number}")
        assert len(started) == 1


async def test_a_missing_variable_is_never_the_agents_result(bench, package, monkeypatch):
    async def never(self):
        raise AssertionError("nothing is repeated")

    frontmatter = "verifier:\n  env: {TOKEN: '${NOT_SET_ANYWHERE}'}\n"
    async with bench(package(frontmatter)) as it:
        monkeypatch.setattr(Environment, "start", never)
        assert (await it.verify()).verdict.code == "variable-missing"


async def answer(value):
    return value


async def test_a_failure_that_does_not_happen_again_is_not_the_agents():
    second = replace(FAILED, verdict=Scored(1.0))
    found = await settle(FAILED, lambda: answer(second), lambda: answer(Pristine(Scored(0.0))))
    assert found.verdict.reward == 1
    assert codes(found) == [REPEATED]
    assert "verifier/timeout" in found.diagnostics[0].message


async def test_a_failure_of_the_machine_at_the_repetition_stands():
    gone = Unscored("sandbox", "verify", "sandbox-gone", "The sandbox is gone.")
    found = await settle(FAILED, lambda: answer(replace(FAILED, verdict=gone)), lambda: answer(Pristine(Scored(0.0))))
    assert found.verdict == gone


@pytest.mark.parametrize(("category", "code"), [("infrastructure", "disk-full"), ("judge", "judge-unavailable")])
async def test_trouble_of_machine_and_judge_is_not_repeated(category, code):
    async def never():
        raise AssertionError("not repeated")

    failed = replace(FAILED, verdict=Unscored(category, "verify", code, "no"))
    assert await settle(failed, never, never) is failed


async def test_a_deadline_that_leaves_no_time_for_the_repetition_does_not_let_the_agent_out():
    async def never():
        raise AssertionError("there is no time")

    with anyio.fail_after(4):
        found = await settle(FAILED, never, lambda: answer(Pristine(Scored(0.0))))
    assert (found.verdict.reward, found.verdict.diagnostics[0].code) == (0, BROKEN)


async def test_without_time_for_the_pristine_environment_the_failure_stands():
    with anyio.fail_after(60):
        with anyio.fail_after(1.2):
            found = await settle(FAILED, lambda: answer(FAILED), anyio.sleep_forever)
    assert found is FAILED


async def test_hundreds_of_thousands_of_withheld_changes_are_recorded_once_each():
    """Searching a list for each of them would not end."""
    items = [Withheld(f"/app/{number}.pyc", "added", "bytecode") for number in range(200_000)]
    findings = Findings()
    findings.withhold(items)
    findings.withhold(items[::-1])
    assert len(findings.withheld) == len(items)


@pytest.mark.sandbox
@pytest.mark.parametrize("package_json", ["{", '{"type": "module"}', '{"type": 7}'])
async def test_settings_above_a_verifier_in_node_do_not_break_it(bench, package, package_json):
    files = {"verifier/test.sh": "#!/bin/sh\nnode /verifier/check.js\n", "verifier/check.js": CHECK_IN_NODE}
    async with bench(package("agent: {user: root}\n", files)) as it:
        await it.agent(f"echo '{package_json}' > /package.json", user="root")
        assert (await it.verify()).verdict.reward == 0
        await it.agent("echo 42 > /app/answer.txt", user="root")
        assert (await it.verify()).verdict.reward == 1


async def test_files_of_the_future_below_paths_that_are_too_long_are_no_way_out_of_a_bad_score(bench, package):
    check = "#!/bin/sh\necho 0 > /logs/verifier/reward.txt\n"
    deeper = "cd /app; n=$(printf '%0250d' 0); for i in $(seq 14); do mkdir $n; cd $n; done; "
    many = "for i in $(seq 700); do : > f$i; done; touch -d 2099-01-01 f*; "
    unreachable = "for i in $(seq 6); do mkdir $n; cd $n; done; touch -d 2099-01-01 f"
    for left, notes in ((deeper + many, []), (deeper + unreachable, [BROKEN])):
        async with bench(package(files={"verifier/test.sh": check})) as it:
            await it.agent(f"bash -ec {shlex.quote(left)}")
            found = await it.verify()
            assert found.verdict.reward == 0, found.verdict
            assert codes(found) == notes
