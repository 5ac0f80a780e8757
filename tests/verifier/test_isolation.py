"""What verification leaves untouched, what it takes over, and what it records."""

from __future__ import annotations

import pytest

from benchflow.record import Isolation
from benchflow.record.codec import plain

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]


async def test_verifying_changes_nothing_that_the_agent_sees(bench, package):
    script = """\
        #!/bin/sh
        echo 42 > /app/answer.txt; rm -rf /app/work; touch /usr/bin/new; echo x >> /etc/passwd
        echo 1 > /logs/verifier/reward.txt
        """
    async with bench(package(files={"verifier/test.sh": script})) as it:
        await it.agent("mkdir work && echo mine > work/file && echo 41 > answer.txt")
        before = await it.sandbox.changes()
        assert (await it.verify(soft=True)).verdict.reward == 1
        assert (await it.verify()).verdict.reward == 1
        assert await it.sandbox.changes() == before
        assert await it.sandbox.read_file("/app/answer.txt") == b"41\n"


async def test_the_agent_phase_holds_nothing_of_the_verifier(bench, package):
    files = {"verifier/test.sh": "#!/bin/sh\nexit 0\n", "oracle/solve.sh": "x", "evidence/a.json": "{}"}
    async with bench(package(files=files)) as it:
        await it.verify(soft=True)
        found = await it.sandbox.exec("ls -d /verifier /tests /oracle /solution /evidence /logs/verifier", user="root")
        assert found.stdout == b""


async def test_the_agents_processes_end_before_verification_but_not_during_a_run(bench, package):
    async with bench(package()) as it:
        await it.agent("setsid sh -c 'while :; do date +%N > tick; sleep 0.01; done' >/dev/null 2>&1 &")
        assert (await it.verify(soft=True)).verdict.reward == 0
        assert (await it.sandbox.exec("pgrep -f tick")).stdout != b""
        assert (await it.verify()).verdict.reward == 0
        assert (await it.sandbox.exec("pgrep -f 'date +%N'")).stdout == b""


async def test_what_does_not_survive_is_recorded_with_its_reason(bench, package):
    async with bench(package()) as it:
        await it.agent(
            "echo 42 > /app/answer.txt; touch /app/sitecustomize.py /usr/local/bin/x /package.json", user="root"
        )
        record = plain((await it.verify()).record().not_carried_over)
        assert record["total"] == 3
        assert {item["path"]: item["reason"] for item in record["changes"]} == {
            "/app/sitecustomize.py": "startup",
            "/package.json": "above",
            "/usr/local/bin/x": "system",
        }


SYSTEM = """\
    #!/bin/sh
    [ -x /usr/local/bin/tool ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
    """
INSTALL = "printf '#!/bin/sh\\n' > /usr/local/bin/tool; chmod 755 /usr/local/bin/tool"


async def test_system_state_counts_only_for_a_package_that_says_so(bench, package):
    async with bench(package(files={"verifier/test.sh": SYSTEM})) as it:
        await it.agent(INSTALL, user="root")
        assert (await it.verify()).verdict.reward == 0


async def test_an_opt_out_is_honoured_and_recorded(bench, package):
    folder = package("verifier: {hardening: {keep_system_changes: true}}\n", {"verifier/test.sh": SYSTEM})
    async with bench(folder) as it:
        await it.agent(INSTALL, user="root")
        found = await it.verify()
        assert found.verdict.reward == 1
        assert found.record().opt_outs == ("verifier.hardening.keep_system_changes",)
        assert found.isolation == Isolation("system", "declared", None)


SEES_PROCESS = """\
    #!/bin/sh
    [ "$(cat /tmp/alive.pid | xargs -I{} cat /proc/{}/comm)" = sleep ] && r=1 || r=0
    echo $r > /logs/verifier/reward.txt
    """


async def test_in_the_open_the_verifier_is_among_the_processes_of_the_agent(bench, package):
    folder = package("verifier: {isolation: open}\n", {"verifier/test.sh": SEES_PROCESS})
    async with bench(folder) as it:
        await it.agent("setsid sleep 600 >/dev/null 2>&1 & echo $! > /tmp/alive.pid")
        found = await it.verify()
        assert found.verdict.reward == 1, (it.output / "test-stdout.txt").read_text()
        assert "verifier.isolation" in found.opt_outs
        assert "live-box" in [issue.code for issue in found.diagnostics]
        left = await it.sandbox.exec("ls -d /verifier /tests /logs/verifier", user="root")
        assert left.stdout == b""


async def test_in_the_open_an_agent_that_goes_on_never_shares_its_box_with_the_verifier(bench, package):
    folder = package("verifier: {isolation: open}\n", {"verifier/test.sh": SEES_PROCESS})
    async with bench(folder) as it:
        await it.agent(
            "setsid sh -c 'until cat /verifier/test.sh > /tmp/seen; do sleep 0.01; done' >/dev/null 2>&1 & "
            "echo $! > /tmp/alive.pid"
        )
        verdict = (await it.verify(soft=True)).verdict
        assert (verdict.status, verdict.category, verdict.code) == ("unscored", "unsupported", "live-state")
        await it.agent("[ ! -s /tmp/seen ] && kill -0 $(cat /tmp/alive.pid)")


@pytest.mark.parametrize("spelling", ["isolation: services", "hardening: {keep_processes: true}"])
async def test_with_services_the_processes_of_the_agent_are_in_another_box(bench, package, spelling):
    folder = package(f"verifier: {{{spelling}}}\n", {"verifier/test.sh": SEES_PROCESS})
    async with bench(folder) as it:
        await it.agent(
            "setsid sh -c 'until cat /verifier/test.sh > /tmp/seen; do sleep 0.01; done' >/dev/null 2>&1 & "
            "echo $! > /tmp/alive.pid"
        )
        for soft in (True, False):
            found = await it.verify(soft=soft)
            assert (found.verdict.reward, found.isolation.rung, found.diagnostics) == (0, "services", ())
        await it.agent("[ ! -s /tmp/seen ] && kill -0 $(cat /tmp/alive.pid)")


async def test_a_split_package_without_a_proof_is_verified_in_the_open(bench, tmp_path):
    folder = tmp_path / "split"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text('schema_version = "1.0"\n[task]\nname = "acme/split"\n')
    (folder / "instruction.md").write_text("Install it.")
    (folder / "tests" / "test.sh").write_text(SYSTEM.replace("    ", ""))
    async with bench(folder) as it:
        await it.agent(INSTALL, user="root")
        found = await it.verify()
        assert found.verdict.reward == 1
        assert found.isolation == Isolation("open", "default", None)
        assert found.diagnostics == ()
        await it.agent("setsid sleep 600 >/dev/null 2>&1 &")
        assert [issue.code for issue in (await it.verify()).diagnostics] == ["live-box"]


@pytest.mark.parametrize("rung", ["services", "shared"])
async def test_the_folder_that_an_author_wrote_for_is_no_link_and_has_nothing_of_the_agent(bench, tmp_path, rung):
    folder = tmp_path / "split"
    (folder / "tests").mkdir(parents=True)
    declared = f'[verifier]\nisolation = "{rung}"\n'
    (folder / "task.toml").write_text(f'schema_version = "1.0"\n[task]\nname = "acme/split"\n{declared}')
    (folder / "instruction.md").write_text("Do it.")
    (folder / "tests" / "case_test.cpp").write_text("")
    script = "#!/bin/sh\nfind /tests -maxdepth 1 -type f -name '*_test.cpp'; ls -d /verifier/*_test.cpp\n"
    (folder / "tests" / "test.sh").write_text(script + "echo 1 > /logs/verifier/reward.txt\n")
    async with bench(folder) as it:
        await it.agent("mkdir /tests /verifier; touch /tests/planted_test.cpp /verifier/planted_test.cpp", user="root")
        assert (await it.verify()).verdict.reward == 1
        assert (it.output / "test-stdout.txt").read_text() == "/tests/case_test.cpp\n/verifier/case_test.cpp\n"


@pytest.mark.parametrize("tests", ["tests", "steps/one/tests"])
@pytest.mark.parametrize("left", ["", "setsid sleep 600 >/dev/null 2>&1 &"], ids=["ended", "alive"])
async def test_in_the_open_a_split_package_may_have_files_of_its_own_in_verifier(bench, tmp_path, tests, left):
    folder = tmp_path / "split"
    (folder / tests).mkdir(parents=True)
    (folder / "task.toml").write_text('schema_version = "1.0"\n[task]\nname = "acme/split"\n')
    (folder / "instruction.md").write_text("Do it.")
    if tests != "tests":
        with (folder / "task.toml").open("a") as file:
            file.write('[[steps]]\nname = "one"\n')
        (folder / "steps" / "one" / "instruction.md").write_text("Do it.")
    (folder / tests / "test.sh").write_text(
        '#!/bin/sh\nset -e\n[ "$0" = /tests/test.sh ]; grep -q kept /verifier/own; [ ! -e /tests/planted ]\n'
        "echo 1 > /logs/verifier/reward.txt\n"
    )
    async with bench(folder) as it:
        await it.agent(f"mkdir /tests /verifier; touch /tests/planted; echo kept > /verifier/own; {left}", user="root")
        step = None if tests == "tests" else "one"
        found = await it.verify(step=step)
        assert (found.verdict.reward, found.isolation.rung) == (1, "open")
        await it.agent("[ -e /verifier/own ]", user="root")


async def test_variables_and_secrets_exist_in_verifier_scope_only_and_are_not_written_down(bench, package):
    frontmatter = """\
        verifier: {env: {PLAIN: "${PLAIN:-default}", KEY: "${SECRET_KEY}"}}
        benchflow:
          secrets: [{name: JUDGE_TOKEN, scope: judge}]
        """
    script = "#!/bin/sh\necho $PLAIN $KEY $JUDGE_TOKEN\necho 1 > /logs/verifier/reward.txt\n"
    folder = package(frontmatter, {"verifier/test.sh": script})
    async with bench(folder, SECRET_KEY="s3cr3t-value", JUDGE_TOKEN="t0ken-value") as it:
        assert (await it.sandbox.exec("env")).stdout.find(b"s3cr3t") == -1
        assert (await it.verify()).verdict.reward == 1
        assert (it.output / "test-stdout.txt").read_text() == "default [redacted] [redacted]\n"


async def test_a_missing_variable_is_unscored_before_anything_runs(bench, package):
    async with bench(package("verifier: {env: {KEY: '${NOT_SET_ANYWHERE}'}}\n")) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("environment", "variable-missing")


async def test_hidden_assets_are_mounted_for_the_verifier_alone(bench, package):
    frontmatter = """\
        benchflow:
          assets:
            - {path: hidden/cases.txt, visibility: hidden_verifier, mount_phase: verifier, target: /data/cases.txt}
        """
    script = "#!/bin/sh\ncat /data/cases.txt > /logs/verifier/reward.txt\n"
    async with bench(package(frontmatter, {"verifier/test.sh": script, "hidden/cases.txt": "0.25"})) as it:
        assert not (await it.sandbox.exec("cat /data/cases.txt", user="root")).ok
        assert (await it.verify()).verdict.reward == 0.25


async def test_the_verifier_has_its_own_user(bench, package):
    script = "#!/bin/sh\n[ $(id -un) = agent ] && [ -O /logs/verifier ] && echo 1 > /logs/verifier/reward.txt\n"
    async with bench(package("verifier: {user: agent}\n", {"verifier/test.sh": script})) as it:
        assert (await it.verify()).verdict.reward == 1


async def test_cancelling_a_verification_leaves_nothing_behind(bench, package, tmp_path):
    import anyio

    async with bench(package(files={"verifier/test.sh": "#!/bin/sh\nsleep 300\n"})) as it:
        with anyio.move_on_after(0.5):
            await it.verify()
        assert not it.output.exists()
        assert [path.name for path in tmp_path.iterdir()] == ["task"]
        assert (await it.sandbox.exec("echo alive")).stdout == b"alive\n"


async def test_the_verifier_is_that_of_the_package_when_its_environment_was_made(bench, package):
    files = {
        "verifier/test.sh": "#!/bin/sh\ncat /verifier/data.txt > /logs/verifier/reward.txt\n",
        "verifier/data.txt": "0.25\n",
    }
    folder = package(files=files)
    async with bench(folder) as it:
        (folder / "verifier" / "data.txt").write_text("1.0\n")
        for _ in range(2):
            assert (await it.verify()).verdict.reward == 0.25
        assert (folder / "verifier" / "data.txt").stat().st_nlink == 1
