"""What lives on into verification: declared services, and processes of a package that says so; nothing else."""

import pytest

from benchflow.sandbox import task_policy

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

OFFLINE = "environment: {network_mode: no-network}\n"
SERVE = "cd /tmp && nohup python3 -m http.server 8123 >/dev/null 2>&1 & sleep 1.5"
ANSWERS = "if curl -fsS http://127.0.0.1:%d/ >/dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


@pytest.mark.parametrize(("keep", "reward"), [("true", 1.0), ("false", 0.0)])
async def test_processes_live_on_exactly_when_the_package_says_so(run, make_package, keep, reward):
    frontmatter = OFFLINE + f"verifier: {{hardening: {{keep_processes: {keep}}}}}\n"
    result = await run(make_package(frontmatter, verifier=ANSWERS % 8123), commands=[SERVE])
    assert result.reward == reward


async def test_services_run_from_before_the_agent_until_after_verification(run, make_package, events):
    manifest = (
        "[environment]\nname = 'web'\nbase_image = 'host-only'\nowns_lifecycle = false\n"
        "[[environment.services]]\nname = 'web'\ncommand = 'python3 -m http.server 8080'\nport = 8080\n"
    )
    package = make_package(
        OFFLINE + "benchflow:\n  environment: {manifest: environment.toml}\n",
        {"environment.toml": manifest},
        verifier=ANSWERS % 8080,
    )
    result = await run(package, commands=["curl -fsS http://127.0.0.1:8080/ >/dev/null && echo up"], base_image="host")
    assert (result.reward, events()[1]["text"]) == (1.0, "up\n")


async def test_a_split_package_runs_as_it_is(run, tmp_path):
    folder = tmp_path / "split"
    files = {
        "task.toml": 'version = "1.0"\n[environment]\nallow_internet = false\n',
        "instruction.md": "Write done.",
        "tests/test.sh": "grep -q done /app/answer.txt && echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "echo done > answer.txt; echo kept > /logs/artifacts/note\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    result = await run(folder, "oracle")
    assert result.reward == 1.0
    assert (result.verifier.isolation.rung, result.verifier.isolation.chosen_by) == ("shared", "proof")
    assert (tmp_path / "out" / "artifacts" / "logs" / "artifacts" / "note").read_text() == "kept\n"


@pytest.mark.parametrize(("count", "reached"), [(60, ("processes",)), (5, ())])
async def test_reaching_the_limit_of_processes_is_recorded(run, make_package, monkeypatch, count, reached):
    monkeypatch.setattr(task_policy, "DEFAULT_PIDS", 30)
    forks = f"(for i in $(seq {count}); do sleep 100 & done) >/dev/null 2>&1; echo done > answer.txt"
    result = await run(make_package(), commands=[forks])
    assert (result.reward, result.notes.limits_reached) == (1.0, reached)
    assert result.to_dict().get("limits_reached", []) == list(reached)
