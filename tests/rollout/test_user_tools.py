"""A simulated user acts through its declared tools, as itself, and the agent learns only what it says."""

import json

import pytest

from benchflow.agents.model.tools import SPECS
from benchflow.task.config.interaction import USER_TOOLS
from benchflow.testing import Answer, ModelServer, ToolCall

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("models")]  # the client loads for seconds

USER = """\
user:
  model: openai/somebody
  persona: Terse.
  stop_rule: satisfied-or-3-rounds
  account: root
  tools:
    - read_file
    - name: switch_on
      description: Switch on a device at home.
      command: echo "$DEVICE is on by $(id -un)" > /tmp/home.txt; cat /tmp/home.txt
      arguments: {device: Which device.}
"""


def calls(*tools):
    return Answer(tool_calls=[ToolCall(name, arguments) for name, arguments in tools])


def machine(server):
    return {"PATH": "/usr/bin:/bin", **server.environment}


async def test_a_user_calls_its_tools_under_its_own_account_and_they_are_recorded_with_the_round(
    run, make_package, new_script, rounds, events
):
    answers = [calls(("switch_on", {"device": "lamp; echo bad"})), "It is on now.", "DONE"]
    script = new_script("echo 'Please switch on the lamp. Is it on?'", "cat /tmp/home.txt; echo done > answer.txt")
    with ModelServer(answers) as server:
        result = await run(make_package(USER), script=script, machine=machine(server))
    assert result.reward == 1.0, result.error
    assert script.prompts[1][1].endswith("It is on now.")
    (used,) = rounds()[1]["user_tools"]
    assert (used["tool"], used["arguments"], used["ok"]) == ("switch_on", {"device": "lamp; echo bad"}, True)
    assert used["output"].startswith("lamp; echo bad is on by root")
    assert "user_tools" not in rounds()[0]
    offered = [tool["function"]["name"] for tool in server.requests[0].body["tools"]]
    assert offered == ["read_file", "switch_on"]
    assert "switch_on" not in json.dumps([event for event in events() if event.get("type") != "agent_message"])
    assert not any("switch_on" in prompt for _, prompt in script.prompts)


async def test_a_tool_that_was_not_declared_is_not_run(run, make_package, new_script, rounds):
    answers = [calls(("bash", {"command": "echo done > answer.txt"}), ("switch_on", {})), "Well.", "DONE"]
    with ModelServer(answers) as server:
        result = await run(make_package(USER), script=new_script("echo Is it on?"), machine=machine(server))
    assert result.reward == 0.0, result.error
    assert [(used["tool"], used["ok"]) for used in rounds()[1]["user_tools"]] == [("bash", False), ("switch_on", False)]
    assert "Unknown tool 'bash'" in rounds()[1]["user_tools"][0]["output"]


async def test_a_user_that_only_acts_is_recorded_and_one_that_never_stops_has_to_answer(
    run, make_package, new_script, rounds
):
    with ModelServer(calls(("read_file", {"path": "/instruction.md"}))) as server:
        result = await run(make_package(USER), script=new_script("echo Is it on?"), machine=machine(server))
    assert result.status == "scored", result.error
    last = rounds()[-1]
    assert (last["stop_reason"], len(last["user_tools"])) == ("user_silent", 8)
    assert "tools" not in server.requests[-1].body


@pytest.mark.sandbox
@pytest.mark.parametrize(("account", "code"), [("nemo", "user-account-missing"), ("'0'", "user-account")])
async def test_a_user_needs_an_account_of_its_own(run, make_package, new_script, account, code):
    package = make_package("agent: {user: root}\n" + USER.replace("account: root", f"account: {account}"))
    with ModelServer("DONE") as server:
        result = await run(package, script=new_script("true"), machine=machine(server))
    assert (result.status, result.error.code) == ("unscored", code), result.error


@pytest.mark.sandbox
@pytest.mark.parametrize("name", ["path", "ifs", "pwd"])
async def test_an_argument_cannot_become_a_variable_that_decides_what_the_shell_runs(
    run, make_package, new_script, name
):
    package = make_package(USER.replace("{device:", f"{{{name}:").replace("account: root", "account: nobody"))
    with ModelServer("DONE") as server:
        result = await run(package, script=new_script("true"), machine=machine(server))
    assert (result.status, result.error.code) == ("unscored", "user-tool-argument"), result.error


def test_the_known_tools_of_users_are_those_of_models():
    assert tuple(spec.name for spec in SPECS) == USER_TOOLS
