"""Separate verification: a fresh box that holds declared paths and nothing else of the agent's."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.anyio
SEPARATE = "verifier: {environment_mode: separate}\n"


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
        assert found.record()["isolation"] == "separate"
        there = (it.output / "test-stdout.txt").read_text().split()
        assert there == ["/app/answer.txt", "/data/out/b/e", "/data/out/sub/a"]


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
        assert (first.verdict.reward, first.isolation, first.step) == (0.25, "shared", "one")
        assert (it.output / "test-stdout.txt").read_text() == "task\n"
        second = await it.verify(step="two")
        assert (second.isolation, second.verdict.code) == ("separate", "timeout")
        assert (it.output / "test-stdout.txt").read_text() == "step\n"
