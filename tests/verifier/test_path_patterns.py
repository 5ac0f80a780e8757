"""Declared patterns: what they match, where they are expanded, and what they do not lead to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchflow.errors import SandboxFailure
from benchflow.sandbox.protocol import ExecResult
from benchflow.verifier.surviving.path_patterns import as_regex, fixed_part, is_pattern, matches

pytestmark = pytest.mark.anyio
SEPARATE = "verifier: {environment_mode: separate%s}\nbenchflow:\n  verifier: {transfer: ['%s']}\n"
LIST = "#!/bin/sh\nfind /app /data -type f 2>/dev/null | sort\necho 1 > /logs/verifier/reward.txt\n"


def listing(*names: str, **how: object) -> SimpleNamespace:
    async def run(*_: object, **__: object) -> ExecResult:
        found = {"exit_code": 0, "stdout": "\0".join(names).encode(), "stderr": b"", "duration_sec": 0.0}
        return ExecResult(**{**found, **how})

    return SimpleNamespace(exec=run)


def test_brackets_are_plain_characters():
    assert not is_pattern("/app/data[1].txt")
    assert fixed_part("/app/data[1].txt") == "/app/data[1].txt"
    assert fixed_part("//out/[a]/x?/*") == "/out/[a]"
    assert as_regex("/app/[ab]*").fullmatch("/app/[ab]c")
    assert not as_regex("/app/[ab]*").fullmatch("/app/a")


async def test_only_plain_names_match():
    box = listing("/app/a", "/app/..", "/app/../etc", "/app/.", "/app//b", "/app/b/../../etc", "/etc/passwd", "")
    assert await matches(box, "/app/**/*") == ["/app/a"]


@pytest.mark.parametrize("how", [{"timed_out": True}, {"dropped_bytes": 1}, {"exit_code": 137}])
async def test_a_listing_that_is_not_whole_is_a_failure(how):
    with pytest.raises(SandboxFailure) as failed:
        await matches(listing("/app/a", **how), "/app/*")
    assert failed.value.code == "listing-failed"


@pytest.mark.sandbox
async def test_patterns_are_expanded_after_the_collect_commands(bench, package):
    hook = ", collect: [{command: 'echo x > /app/made.txt; rm /app/old.txt'}]"
    async with bench(package(SEPARATE % (hook, "*.txt"), {"verifier/test.sh": LIST})) as it:
        await it.agent("touch 'data[1].txt' old.txt other.py; ln -s /etc/passwd link.txt")
        found = await it.verify()
        assert found.verdict.reward == 1, found
        assert (it.output / "test-stdout.txt").read_text().split() == ["/app/data[1].txt", "/app/made.txt"]


@pytest.mark.parametrize("pattern", ["/data/*.txt", "/data/**"])
async def test_what_the_agent_deleted_is_absent_in_the_verifiers_sandbox(bench, package, pattern):
    dockerfile = "FROM debian:bookworm\nCOPY a.txt b.txt /data/\n"
    files = {f"environment/{name}": name for name in ("a.txt", "b.txt")} | {"environment/Dockerfile": dockerfile}
    async with bench(package(SEPARATE % ("", pattern), {**files, "verifier/test.sh": LIST}), base_image="host") as it:
        await it.agent("rm /data/a.txt", user="root")
        assert (await it.verify()).verdict.reward == 1
        assert (it.output / "test-stdout.txt").read_text().split() == ["/data/b.txt"]
        await it.agent("rm -r /data", user="root")
        assert (await it.verify()).verdict.reward == 1
        assert (it.output / "test-stdout.txt").read_text().split() == []


async def test_an_artifact_that_cannot_be_kept_costs_no_score(bench, package):
    wiring = "benchflow:\n  verifier: {outputs: {artifacts: [/out, /out/x/y, '/gone/*']}}\n"
    script = "#!/bin/sh\necho 1 > /out\nrm -f /usr/bin/find /bin/find\necho 1 > /logs/verifier/reward.txt\n"
    async with bench(package(wiring, {"verifier/test.sh": script})) as it:
        found = await it.verify()
        assert found.verdict.reward == 1, found
        assert [issue.code for issue in found.diagnostics] == ["artifact-missing"] * 2
        assert "has no find" in found.diagnostics[1].message
        assert (it.output / "artifacts/out").read_text() == "1\n"


def test_artifacts_stay_in_the_record(tmp_path):
    from benchflow.verifier.strategy_run import _place

    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts/link").symlink_to(tmp_path)
    for path in ("/../../outside/x", "/link/outside/x"):
        with pytest.raises(SandboxFailure, match="outside the record"):
            _place(tmp_path, path)
    assert not (tmp_path / "outside").exists()
    assert _place(tmp_path, "/a/b") == tmp_path / "artifacts/a/b"
