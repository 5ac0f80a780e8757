"""Separate verification: a fresh box that holds declared paths and nothing else of the agent's."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from benchflow.errors import SandboxFailure
from benchflow.files import scratch
from benchflow.record import Isolation
from benchflow.sandbox.local.local_sandbox import LocalSandbox

pytestmark = pytest.mark.anyio
SEPARATE = "verifier: {environment_mode: separate}\n"


@pytest.mark.sandbox
async def test_only_declared_paths_are_taken_over(bench, package):
    frontmatter = f"{SEPARATE}artifacts: [answer.txt, {{source: /data/out, exclude: ['*.tmp', cache, sub/b]}}]\n"
    script = """\
        #!/bin/sh
        find /app /data /usr/local/bin/x /tmp/agent* -type f 2>/dev/null | sort
        cat /app/answer.txt > /logs/verifier/reward.txt
        """
    async with bench(package(frontmatter, {"verifier/test.sh": script})) as it:
        await it.agent("echo 1 > answer.txt; echo x > other.txt; touch /tmp/agent-file")
        await it.agent(
            "mkdir -p /data/out/sub/b /data/out/sub/cache /data/out/b; cd /data/out; "
            "touch sub/a sub/b/c sub/cache/d b/e b.tmp /usr/local/bin/x",
            user="root",
        )
        found = await it.verify()
        assert found.verdict.reward == 1
        assert found.record().isolation == Isolation("separate", "declared", None)
        there = (it.output / "test-stdout.txt").read_text().split()
        assert there == ["/app/answer.txt", "/data/out/b/e", "/data/out/sub/a"]


@pytest.mark.sandbox
async def test_deleted_files_of_a_declared_folder_stay_deleted_and_links_are_left_out(bench, package):
    frontmatter = f"{SEPARATE}artifacts: [/app]\n"
    script = "#!/bin/sh\nls -A /app\necho 1 > /logs/verifier/reward.txt\n"
    async with bench(package(frontmatter, {"verifier/test.sh": script})) as it:
        await it.agent("touch real; ln -s real inside; ln -s /etc/passwd outside; mkfifo pipe; ln -s .. up")
        found = await it.verify()
        assert found.verdict.reward == 1
        assert (it.output / "test-stdout.txt").read_text().split() == ["real"]
        assert {item.path for item in found.withheld} >= {"/app/inside", "/app/outside", "/app/up", "/app/pipe"}


async def test_a_path_over_its_limit_is_left_out_and_noted(bench, package):
    frontmatter = SEPARATE + "benchflow:\n  verifier: {transfer: [{source: /app/big, max_mb: 1}]}\n"
    script = "#!/bin/sh\n[ -e /app/big ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    async with bench(package(frontmatter, {"verifier/test.sh": script})) as it:
        await it.agent("head -c 3M /dev/zero > big")
        found = await it.verify()
        assert found.verdict.reward == 0
        assert [(issue.code, issue.path) for issue in found.diagnostics] == [("not-transferred", "/app/big")]


async def test_collect_hooks_run_before_the_transfer(bench, package):
    frontmatter = """\
        verifier:
          environment_mode: separate
          collect: [{command: "mkdir -p /logs/artifacts; wc -l < /app/answer.txt > /logs/artifacts/lines"}]
        """
    script = "#!/bin/sh\ncat /logs/artifacts/lines > /logs/verifier/reward.txt\n"
    async with bench(package(frontmatter, {"verifier/test.sh": script})) as it:
        await it.agent("echo line > answer.txt")
        assert (await it.verify()).verdict.reward == 1


FINGERPRINT = """\
    verifier:
      environment_mode: separate
      env: {KEY: secret-of-the-verifier}
      collect:
        - command: >-
            cd /app && python3 -c "import hashlib, facts; print(hashlib.md5(b'a').hexdigest(), facts.SIZE)" > facts.txt
        - command: env | grep -c secret-of-the-verifier > /app/secrets.txt; true
    artifacts: [/app]
    """
COMPARE = """\
    #!/bin/sh
    if [ "$(cat /app/facts.txt)" = "0cc175b9c0f1b6a831c399e269772661 42" ] && [ "$(cat /app/secrets.txt)" = 0 ]
    then echo 1; else echo 0; fi > /logs/verifier/reward.txt
    """


@pytest.mark.sandbox
async def test_collect_hooks_find_what_the_environment_has_before_what_the_agent_added(bench, package):
    async with bench(package(FINGERPRINT, {"verifier/test.sh": COMPARE})) as it:
        await it.agent("echo SIZE = 42 > facts.py")
        assert (await it.verify()).verdict.reward == 1
        forged = "0cc175b9c0f1b6a831c399e269772661 42"
        await it.agent(
            f"echo SIZE = 41 > facts.py; echo 'import os; print(\"{forged}\", flush=True); os._exit(0)' > hashlib.py"
        )
        assert (await it.verify()).verdict.reward == 0


@pytest.mark.sandbox
async def test_a_node_that_is_transferred_is_not_what_the_collect_hooks_ran(bench, package):
    place = shutil.which("node") or "/usr/bin/node"
    frontmatter = f"""\
        verifier:
          environment_mode: separate
          collect: [{{command: "node -e 'console.log(1)' > /app/out.txt"}}]
        artifacts: [/app, {place}]
        """
    script = f"""\
        #!/bin/sh
        for program in {place} {place.rpartition("/")[0]}/.verifier-ground-*-node
        do [ "$(head -c 4 $program | tail -c 3)" = ELF ] && found=$program; done
        [ -n "$found" ] && cp /app/out.txt /logs/verifier/reward.txt
        """
    reward_range = "  reward_range: [0, 42]\n        "
    frontmatter = frontmatter.replace("artifacts:", f"{reward_range.lstrip()}artifacts:", 0)
    async with bench(package(frontmatter, {"verifier/test.sh": script})) as it:
        assert (await it.verify()).verdict.reward == 1


async def test_the_verifier_may_have_its_own_environment(bench, package):
    frontmatter = """\
        artifacts: [answer.txt]
        environment: {env: {WHERE: agent}}
        verifier: {environment: {env: {WHERE: verifier}, workdir: /app, network_mode: no-network}}
        """
    script = "#!/bin/sh\necho $WHERE $PWD\ncat /app/answer.txt > /logs/verifier/reward.txt\n"
    async with bench(package(frontmatter, {"verifier/test.sh": script})) as it:
        await it.agent("echo 0.5 > answer.txt")
        found = await it.verify()
        assert found.verdict.reward == 0.5
        assert (it.output / "test-stdout.txt").read_text() == "verifier /app\n"


async def test_a_step_has_its_own_verifier_and_inherits_the_rest(bench, tmp_path):
    folder = tmp_path / "task"
    for name, text in {
        "task.md": (
            "---\ntask: {name: acme/steps}\nverifier: {timeout_sec: 0.7, env: {A: task}}\n"
            "steps:\n  - {name: one}\n  - {name: two, verifier: {env: {A: step}, environment_mode: separate}}\n"
            "artifacts: [/app]\n---\nDo it.\n"
        ),
        "verifier/lib.sh": "grade() { echo $A; echo $1 > /logs/verifier/reward.txt; }\n",
        "steps/one/instruction.md": "First.",
        "steps/one/verifier/test.sh": "#!/bin/sh\n. /verifier/lib.sh; grade 0.25\n",
        "steps/two/instruction.md": "Second.",
        "steps/two/verifier/test.sh": "#!/bin/sh\n. /verifier/lib.sh; grade 0.75; sleep 60\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    async with bench(folder) as it:
        first = await it.verify(step="one")
        assert (first.verdict.reward, first.isolation.rung, first.step) == (0.25, "shared", "one")
        assert (it.output / "test-stdout.txt").read_text() == "task\n"
        second = await it.verify(step="two")
        assert (second.isolation.rung, second.verdict.code) == ("separate", "timeout")
        assert (it.output / "test-stdout.txt").read_text() == "step\n"


@pytest.fixture
def tiny_disk(tmp_path, monkeypatch):
    """A temporary folder on a disk with hardly any room."""
    place = tmp_path / "tiny"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", place], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    monkeypatch.setitem(scratch._own, os.getpid(), place)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("size", [200_000, 4_000_000], ids=["small folder", "large folder"])
async def test_a_full_disk_of_the_machine_is_no_score(bench, package, tiny_disk, size):
    async with bench(package(f"{SEPARATE}artifacts: [/app/out]\n")) as it:
        await it.agent(f"mkdir out; head -c {size} /dev/urandom > out/data")
        verdict = (await it.verify()).verdict
    assert (verdict.status, verdict.category, verdict.code) == ("unscored", "infrastructure", "disk-full"), verdict


@pytest.mark.sandbox
async def test_trouble_of_a_sandbox_while_paths_are_taken_over_is_no_score(bench, package, monkeypatch):
    async def cut_short(*_, **__):
        raise SandboxFailure("A copy was interrupted inside the sandbox.", code="cut-short")

    async with bench(package(f"{SEPARATE}artifacts: [/app/out]\n")) as it:
        monkeypatch.setattr(LocalSandbox, "download", cut_short)
        verdict = (await it.verify()).verdict
    assert (verdict.status, verdict.category, verdict.code) == ("unscored", "sandbox", "cut-short"), verdict


async def test_a_declared_path_that_is_not_there_is_noted(bench, package):
    async with bench(package(f"{SEPARATE}artifacts: [/app/out, /app/answer.txt/below]\n")) as it:
        await it.agent("touch answer.txt")
        found = await it.verify()
    assert found.verdict.reward == 0
    notes = [(issue.code, issue.path) for issue in found.diagnostics]
    assert notes == [("not-transferred", "/app/out"), ("not-transferred", "/app/answer.txt/below")]


@pytest.mark.sandbox
async def test_more_than_the_verifiers_sandbox_holds_is_noted_and_no_way_out(bench, package):
    frontmatter = """\
        artifacts: [/app]
        verifier: {environment: {storage_mb: 64, workdir: /app, network_mode: no-network}}
        """
    async with bench(package(frontmatter)) as it:
        await it.agent("truncate -s 100M hole")
        found = await it.verify()
    assert found.verdict.reward == 0, found.verdict
    assert [(issue.code, issue.path) for issue in found.diagnostics] == [("not-transferred", "/app")]


@pytest.mark.parametrize(
    ("command", "said"),
    [("false", "exited with code 1."), ("echo no such report >&2; exit 3", "exited with code 3: no such report")],
)
async def test_a_collect_command_that_fails_is_noted(bench, package, command, said):
    frontmatter = (
        f"verifier: {{environment_mode: separate, collect: [{{command: 'true'}}, {{command: '{command}'}}]}}\n"
    )
    async with bench(package(frontmatter)) as it:
        found = await it.verify()
    assert [(issue.code, issue.path) for issue in found.diagnostics] == [("collect-failed", "verifier.collect[1]")]
    assert found.diagnostics[0].message.endswith(said)


async def test_a_collect_command_that_takes_too_long_is_no_score(bench, package):
    frontmatter = "verifier: {environment_mode: separate, collect: [{command: sleep 60, timeout_sec: 0.2}]}\n"
    async with bench(package(frontmatter)) as it:
        verdict = (await it.verify()).verdict
    assert (verdict.category, verdict.code) == ("verifier", "timeout")
    assert "verifier.collect[0]" in verdict.reason
