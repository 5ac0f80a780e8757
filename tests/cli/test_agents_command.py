"""`bench agents`: what people and scripts learn about agents."""

import json


def test_agents_are_listed_with_what_they_need(bench):
    shown = bench("agents")
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in ("script:FILE", "model:MODEL", "acp:COMMAND", "ANTHROPIC_API_KEY", "bench agents NAME"):
        assert words in shown.stdout


def test_agents_are_one_json_document(bench):
    shown = bench("agents", "--json")
    agents = {agent["name"]: agent for agent in json.loads(shown.stdout)["agents"]}
    assert {"oracle", "nop", "script", "acp", "model", "claude", "goose"} <= agents.keys()
    assert set(agents["oracle"]) == {
        *{"name", "description", "kind", "argument", "needs", "takes", "install", "aliases", "models", "dialects"},
    }
    assert (agents["claude"]["models"], agents["claude"]["dialects"]) == ("gateway", ["anthropic"])
    ways = {name: agents[name]["models"] for name in ("oracle", "script", "acp", "model")}
    assert ways == {"oracle": "none", "script": "variables", "acp": "variables", "model": "machine"}


def test_one_agent_says_whether_it_is_ready_and_how_it_is_called(bench, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    shown = bench("agents", "claude-code")
    assert shown.returncode == 0
    for words in (
        "needs one of the variables ANTHROPIC_API_KEY",
        "calls models through the gateway (anthropic)",
        "from npm in the sandbox",
        "not ready: The agent 'claude-code' needs one of the variables",
        "also called claude-code",
        "bench run PACKAGE --agent claude-code",
    ):
        assert words in shown.stdout
    assert "codex" not in shown.stdout
    ready = bench("agents", "claude", env={"ANTHROPIC_API_KEY": "k"})
    assert "ready on this machine" in ready.stdout
    assert "not ready: The model 'gpt-4o' needs the variable OPENAI_API_KEY" in bench("agents", "model:gpt-4o").stdout


def test_an_agent_that_takes_an_argument_is_shown_with_it(bench):
    shown = bench("agents", "acp")
    assert "bench run PACKAGE --agent acp:COMMAND" in shown.stdout
    assert "ready" not in shown.stdout


def test_an_agent_that_nobody_knows_is_wrong_usage(bench):
    shown = bench("agents", "nobody")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "Unknown agent 'nobody'; available: oracle" in shown.stderr
