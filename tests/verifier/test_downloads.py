"""Downloads of the verifier that fail: a low reward after them does not count, unless the agent made them fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchflow.record import Isolation
from benchflow.rewards import Scored, Unscored
from benchflow.sandbox.protocol import FailedRequest, NetworkPolicy
from benchflow.testing import InMemoryBackend
from benchflow.verifier import Verification
from benchflow.verifier.blame import UNREACHED, Pristine, settle, settle_downloads

pytestmark = pytest.mark.anyio
NETWORK = "verifier: {network_mode: allowlist, allowed_hosts: [nowhere.example]}\n"
FETCH = "python3 -c \"import urllib.request as u; u.urlopen('http://nowhere.example/data', timeout=20)\" 2>/dev/null"
DOWNLOADS = f"#!/bin/sh\n{FETCH} && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
RUNS_THE_SOLUTION = "#!/bin/sh\n[ ! -e /app/solve.sh ] || sh /app/solve.sh\necho 0 > /logs/verifier/reward.txt\n"
INDEX = FailedRequest("pypi.example", 443, "no answer in time")
FOUND = Verification(Scored(0.0), "script", "script", Isolation("shared", "default", None), unreached=(INDEX,))


def pristine(*unreached: FailedRequest):
    async def verified() -> Pristine:
        return Pristine(Scored(0.0), unreached)

    return verified


@pytest.mark.sandbox
async def test_a_verifier_whose_own_downloads_fail_leaves_the_work_unscored(bench, package):
    async with bench(package(NETWORK, {"verifier/test.sh": DOWNLOADS})) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.status, verdict.category, verdict.code) == ("unscored", "verifier", "network-failed")
        assert "nowhere.example:80" in verdict.reason
        assert not (it.output / "reward.txt").exists()


@pytest.mark.sandbox
async def test_code_of_the_agent_that_asks_for_nothing_real_does_not_get_out_of_its_score(bench, package):
    async with bench(package(NETWORK, {"verifier/test.sh": RUNS_THE_SOLUTION})) as it:
        await it.sandbox.write_file("/app/solve.sh", FETCH.encode())
        found = await it.verify()
        assert found.verdict.reward == 0
        assert [note.code for note in found.diagnostics] == [UNREACHED]
        assert "nowhere.example" in found.diagnostics[0].message


@pytest.mark.sandbox
async def test_optional_downloads_let_the_reward_stand(bench, package):
    wiring = f"{NETWORK}benchflow: {{verifier: {{downloads: optional}}}}\n"
    async with bench(package(wiring, {"verifier/test.sh": DOWNLOADS})) as it:
        found = await it.verify()
        assert (found.verdict.reward, [note.code for note in found.diagnostics]) == (0, [UNREACHED])


async def test_a_full_reward_stands_whatever_failed():
    full = replace(FOUND, verdict=Scored(1.0))
    assert await settle_downloads(full, 1.0, pristine(INDEX), required=True) is full


async def test_another_address_that_fails_on_the_pristine_environment_proves_nothing():
    other = FailedRequest("pypi.example", 80, "no answer in time")
    found = await settle_downloads(FOUND, 1.0, pristine(other), required=True)
    assert found.verdict.reward == 0


async def test_reasons_may_differ_between_two_failures_of_one_address():
    later = FailedRequest("pypi.example", 443, "answered with status 503")
    found = await settle_downloads(FOUND, 1.0, pristine(later), required=True)
    assert found.verdict.code == "network-failed"


async def test_a_verifier_that_crashes_for_lack_of_its_downloads_is_not_blamed_on_the_agent():
    failed = replace(FOUND, verdict=Unscored("verifier", "verify", "reward-missing", "no reward"))
    found = await settle(failed, pristine(), pristine(INDEX))
    assert found.verdict.code == "network-failed"


async def test_a_verifier_that_waits_for_an_answer_until_its_time_is_over_is_not_blamed_on_anybody():
    async def waits() -> Pristine:
        return Pristine(late.verdict, (INDEX,))

    late = replace(FOUND, verdict=Unscored("verifier", "verify", "timeout", "exceeded its limit"))
    found = await settle(late, pristine(), waits)
    assert found.verdict.code == "network-failed"
    assert "pypi.example:443" in found.verdict.reason


async def test_sandboxes_in_memory_report_what_their_programs_did_not_reach():
    async def fetch(call):
        call.shell.machine.unreached.append(INDEX)
        return 6

    backend = InMemoryBackend(programs={"fetch": fetch})
    from benchflow.sandbox.protocol import SandboxSpec

    async with backend.create(SandboxSpec(network=NetworkPolicy("public"))) as sandbox:
        await sandbox.exec("fetch https://pypi.example")
        assert await sandbox.failed_requests() == (INDEX,)
        await sandbox.set_network(NetworkPolicy("none"))
        assert await sandbox.failed_requests() == ()
