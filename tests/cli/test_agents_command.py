"""`bench agents`: what people and scripts learn about agents."""

import json


def test_agents_are_listed_with_what_they_need(bench):
    shown = bench("agents")
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in ("script:FILE", "model:MODEL", "acp:COMMAND", "ANTHROPIC_API_KEY", "also called claude-code"):
        assert words in shown.stdout


def test_agents_are_one_json_document(bench):
    shown = bench("agents", "--json")
    agents = {agent["name"]: agent for agent in json.loads(shown.stdout)["agents"]}
    assert {"oracle", "nop", "script", "acp", "model", "claude", "goose"} <= agents.keys()
    assert set(agents["oracle"]) == {"name", "description", "kind", "argument", "needs", "install", "aliases"}
