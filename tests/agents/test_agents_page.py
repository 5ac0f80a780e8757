"""What the page about agents shows works as it stands."""

import re
from pathlib import Path

import pytest

from benchflow.agents import AgentRequest, list_agents

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()


@pytest.mark.anyio
async def test_the_agent_of_the_page_runs(opened, inside, recorder):
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(code, "docs/agents.md", "exec"), names)
    kind = names["KIND"]
    [result] = await opened(kind.agent(AgentRequest(kind.info.name)), "Say hello.")
    assert result.exit_code == 0
    assert await inside("cat /app/greeting.txt") == "hello\n"
    assert recorder.of("agent_message")


@pytest.mark.parametrize("info", list_agents(), ids=lambda info: info.name)
def test_the_page_tells_of_every_agent(info):
    named = f"{info.name}:{info.argument}" if info.argument and not info.install else info.name
    assert f"`{named}`" in PAGE
    for alias in info.aliases:
        assert f"`{alias}`" in PAGE
