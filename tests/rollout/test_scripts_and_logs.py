"""Scripts run as their authors wrote them, and the folders below `/logs` are there from the start."""

import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

OFFLINE = "environment: {network_mode: no-network}\n"
BASHISM = 'words=(done more); [[ -n ${BASH_VERSION:-} ]] && printf "%s\\n" "${words[0]}" > answer.txt\n'
VERIFY = (
    "values=(0 1)\n"
    'if [[ "$(< /app/answer.txt)" == done ]]; then echo "${values[1]}"; else echo 0; fi > /logs/verifier/reward.txt\n'
)
DECLARED = "---\nverifier:\n  strategies:\n    exact: {type: script, command: ./test.sh}\n---\n"
WRITABLE = (
    'for name in agent artifacts verifier; do touch "/logs/$name/by-$(id -un)" && echo "$name"; done\n'
    "test -O /logs/agent && echo own; ls -A /logs/verifier | wc -l; echo done > answer.txt\n"
)


@pytest.mark.parametrize("document", [None, DECLARED])
async def test_scripts_without_an_interpreter_run_in_bash(run, make_package, document):
    package = make_package(OFFLINE, {"oracle/solve.sh": BASHISM, "verifier/verifier.md": document}, verifier=VERIFY)
    result = await run(package, "oracle")
    assert (result.status, result.reward) == ("scored", 1.0), result.error


async def test_a_script_of_an_agent_runs_in_bash_or_by_the_interpreter_it_names(run, make_package, tmp_path):
    package = make_package(OFFLINE)
    agent = tmp_path / "agent.sh"
    for text in (BASHISM, "#!/usr/bin/env python3\nopen('answer.txt', 'w').write('done\\n')\n"):
        agent.write_text(text)
        result = await run(package, f"script:{agent}", out=str(len(text)))
        assert result.reward == 1.0


async def test_a_set_up_of_a_step_without_an_interpreter_runs_in_bash(run, make_package):
    files = {
        "steps/one/instruction.md": "Nothing.",
        "steps/one/workdir/setup.sh": BASHISM,
        "steps/one/verifier/test.sh": VERIFY,
    }
    result = await run(make_package(f"{OFFLINE}steps: [{{name: one}}]\n", files), "nop")
    assert result.reward == 1.0


async def test_the_agent_owns_the_log_folders_and_the_verifier_sees_none_of_its_files(run, make_package, events):
    check = "ls -A /logs/verifier > /tmp/seen; [ ! -s /tmp/seen ] && echo 1 > /logs/verifier/reward.txt\n"
    result = await run(make_package(OFFLINE, verifier=check), commands=[WRITABLE])
    assert result.reward == 1.0
    said = [event["text"] for event in events() if event["type"] == "agent_message"]
    assert said == ["agent\nartifacts\nverifier\nown\n1\n"]
