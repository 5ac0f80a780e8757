"""Verifiers that misbehave: the right category, within bounds, and nothing is left running."""

from __future__ import annotations

import anyio
import pytest

from benchflow.sandbox.local.local_sandbox import LocalSandbox

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
LEFT = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done"


def script(body: str) -> dict[str, str]:
    return {"verifier/test.sh": f"#!/bin/sh\n{body}\n"}


async def test_a_verifier_that_forks_without_end_is_ended_at_its_timeout(bench, package):
    bomb = "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 777"
    async with bench(package("verifier: {timeout_sec: 3}\n", script(bomb))) as it:
        with anyio.fail_after(120):
            verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("verifier", "timeout"), verdict
        left = (await it.sandbox.exec(LEFT, user="root")).stdout.decode()
        assert "sleep 777" not in left


@pytest.mark.parametrize("reward", ["echo 1 > /logs/verifier/reward.txt; ", ""], ids=["scored", "unscored"])
async def test_a_verifier_that_fills_the_disk_stays_in_its_limit(bench, package, reward):
    fill = f"{reward}head -c 200M /dev/zero > /logs/verifier/core; echo 0.5 > /logs/verifier/late.txt; true"
    async with bench(package("environment: {storage_mb: 64}\n", script(fill))) as it:
        found = await it.verify()
        if reward:
            assert found.verdict.reward == 1
        else:
            assert (found.verdict.category, found.verdict.code) == ("verifier", "reward-missing")
        kept = sum(path.stat().st_size for path in it.output.rglob("*") if path.is_file())
        assert kept < 70 << 20


@pytest.mark.slow
async def test_a_gigabyte_of_output_is_kept_in_part_and_the_reward_counts(bench, package):
    flood = "head -c 1G /dev/zero; echo 1 > /logs/verifier/reward.txt; echo the end"
    async with bench(package(files=script(flood))) as it:
        assert (await it.verify()).verdict.reward == 1
        text = (it.output / "test-stdout.txt").read_bytes()
        assert len(text) < 5 << 20
        assert b"the end" in text
        assert b"were dropped" in text


@pytest.mark.parametrize(
    "body",
    [
        "rm -rf /logs/verifier; ln -s /dev/null /logs/verifier; echo 1 > /logs/verifier/reward.txt",
        "chmod 000 /logs/verifier /logs; exit 3",
        "rm -rf /logs; touch /logs",
    ],
)
async def test_a_log_folder_that_cannot_be_used_leaves_no_reward(bench, package, body):
    async with bench(package(files=script(body))) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.status, verdict.category) == ("unscored", "verifier"), verdict


@pytest.mark.parametrize("first", ["#!/no/such/interpreter", "#!/app", "\x7fELF"])
async def test_a_failing_interpreter_is_told_with_its_exit_code(bench, package, first):
    async with bench(package(files={"verifier/test.sh": f"{first}\necho 1 > /logs/verifier/reward.txt\n"})) as it:
        found = await it.verify()
        assert found.exit_code
        assert (found.verdict.category, found.verdict.code) == ("verifier", "reward-missing")
        assert f"with code {found.exit_code}" in found.verdict.reason


async def test_a_box_that_is_lost_before_its_reward_is_read_is_trouble_of_the_sandbox(bench, package, monkeypatch):
    async def stop_and_download(self, *_, **__):
        await self.stop()
        self.link  # noqa: B018 - says that it is gone

    async with bench(package()) as it:
        monkeypatch.setattr(LocalSandbox, "download", stop_and_download)
        verdict = (await it.verify()).verdict
    assert (verdict.category, verdict.code) == ("sandbox", "sandbox-gone"), verdict


async def test_a_box_that_cannot_give_its_reward_file_is_trouble_of_the_sandbox(bench, package, monkeypatch):
    read = LocalSandbox.read_file

    async def stop_and_read(self, path, **options):
        await self.stop()
        return await read(self, path, **options)

    monkeypatch.setattr(LocalSandbox, "read_file", stop_and_read)
    async with bench(package(files=script("mkfifo /logs/verifier/pipe; echo 1 > /logs/verifier/reward.txt"))) as it:
        verdict = (await it.verify()).verdict
    assert (verdict.category, verdict.code) == ("sandbox", "sandbox-gone"), verdict
