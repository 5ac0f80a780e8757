"""Agents by name: built-in ones, presets, plugins, and wrong names."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from benchflow.agents import (
    AgentInfo,
    AgentKind,
    AgentRequest,
    create_agent,
    create_policy,
    list_agents,
)
from benchflow.errors import PluginError, UsageError
from benchflow.plugins import AGENTS
from benchflow.record import ALWAYS_WIN


def test_every_agent_is_listed_once_with_what_it_needs():
    infos = {info.name: info for info in list_agents()}
    assert list(infos)[:5] == ["oracle", "nop", "script", "acp", "model"]
    assert {"claude", "codex", "gemini", "opencode", "goose"} <= infos.keys()
    assert infos["script"].argument == "FILE"
    assert "ANTHROPIC_API_KEY" in " ".join(infos["claude"].needs)
    assert infos["claude"].install == "@agentclientprotocol/claude-agent-acp@0.99.1 from npm"
    assert infos["model"].kind == "both"


def test_agents_that_win_over_roles_exist():
    assert {info.name for info in list_agents()} >= ALWAYS_WIN


@pytest.mark.parametrize("create", [create_agent, create_policy])
@pytest.mark.parametrize("name", ["orakel", "", ":", "unknown:argument", "ORACLE"])
def test_an_unknown_name_lists_the_known_ones(create, name):
    with pytest.raises(UsageError, match=r"Unknown agent '.*'; available: oracle, nop, script, acp, model") as caught:
        create(name)
    assert caught.value.code == "unknown-agent"


@pytest.mark.parametrize("name", ["oracle:x", "nop:"])
def test_an_argument_that_makes_no_sense_is_wrong_usage(name):
    with pytest.raises(UsageError, match="takes no argument"):
        create_agent(name)


def test_an_agent_that_cannot_decide_on_gym_tasks_says_so():
    with pytest.raises(UsageError, match="cannot run on gym tasks"):
        create_policy("oracle")
    assert create_policy("nop").name == "nop"


def test_names_are_kept_as_they_were_asked_for():
    assert create_agent("claude-agent-acp").name == "claude-agent-acp"
    assert create_agent("acp:my agent --flag:x").name == "acp:my agent --flag:x"


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "opencode", "goose"])
def test_presets_know_what_to_install_and_which_keys_to_hide(name):
    agent = create_agent(name)
    assert agent.install_key() == create_agent(name).install_key()
    assert agent.install_key() != create_agent(f"{name}:9.9.9").install_key()
    assert any(variable.endswith("_API_KEY") for variable in agent.variables())


def test_a_version_is_only_a_version():
    with pytest.raises(UsageError, match="is not a version"):
        create_agent("claude:1; rm -rf /")


def test_light_agents_load_no_client():
    code = (
        "import sys, benchflow.agents as a; a.list_agents(); a.create_agent('acp:x'); a.create_agent('model:gpt-4o'); "
    )
    code += "print(sorted({'acp', 'litellm', 'openai', 'httpx'} & sys.modules.keys()))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


class Plugins:
    kind = AgentKind(AgentInfo("mine", "Made elsewhere.", "process", argument="X"), agent=lambda request: request)
    wrong = "no kind"


@pytest.fixture
def plugins(monkeypatch):
    monkeypatch.setitem(sys.modules, "plugin_for_tests", Plugins)
    points = [
        EntryPoint("mine", "plugin_for_tests:kind", AGENTS.group),
        EntryPoint("wrong", "plugin_for_tests:wrong", AGENTS.group),
        EntryPoint("gone", "no_such_module:kind", AGENTS.group),
        EntryPoint("oracle", "plugin_for_tests:kind", AGENTS.group),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == AGENTS.group else [])


def test_a_plugin_is_an_agent_like_any_other(plugins):
    request = create_agent("mine:this:that", "m", environ={"K": "v"})
    assert request == AgentRequest("mine:this:that", "this:that", "m", {"K": "v"})
    assert "mine" in {info.name for info in list_agents()}


def test_a_plugin_cannot_take_over_a_built_in_name(plugins):
    assert type(create_agent("oracle")).__name__ == "OracleAgent"


@pytest.mark.parametrize(("name", "said"), [("wrong", "is not an AgentKind"), ("gone", "cannot be loaded")])
def test_a_broken_plugin_is_reported_and_harms_no_other(plugins, name, said):
    with pytest.raises(PluginError, match=said) as caught:
        create_agent(name)
    assert caught.value.code == "plugin-invalid"
    assert said in next(info.description for info in list_agents() if info.name == name)
