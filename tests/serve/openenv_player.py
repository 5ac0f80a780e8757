"""Runs in OpenEnv's own environment: its stock clients play what standard input says, and print what they saw.

A line of input is `{"url", "token", "plays": [{"task", "calls": [[tool, arguments], …]}]}`.
"""

import asyncio
import json
import sys

from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient


async def played(url, headers, play):
    """The last observation of an episode, the state after it, and what a wrong action is answered with."""
    async with GenericEnvClient(base_url=url, headers=headers, message_timeout_s=300) as client:
        first = await client.reset(seed=7, task=play["task"])
        try:
            await client.step({"tool_name": "no-such-tool"})
            refused = None
        except RuntimeError as error:
            refused = str(error)
        rewards = []
        for tool, arguments in play["calls"]:
            last = await client.step({"tool_name": tool, "arguments": arguments})
            rewards.append(last.reward)
        state = await client.state()
    return {
        "prompt": first.observation["prompt"],
        "first_reward": first.reward,
        "refused": refused,
        "rewards": rewards,
        "done": last.done,
        "metadata": last.metadata,
        "state": state,
    }


async def called_as_tools(url, headers, task):
    """The same through the client that calls tools with JSON-RPC."""
    async with MCPToolClient(base_url=url, headers=headers, message_timeout_s=300) as client:
        await client.reset(task=task)
        names = [tool.name for tool in await client.list_tools()]
        return {"tools": names, "pwd": await client.call_tool("bash", command="pwd")}


async def main():
    asked = json.loads(sys.stdin.read())
    headers = {"Authorization": f"Bearer {asked['token']}"}
    outcomes = await asyncio.gather(*(played(asked["url"], headers, play) for play in asked["plays"]))
    tools = await called_as_tools(asked["url"], headers, asked["plays"][0]["task"])
    print(json.dumps({"played": outcomes, "tools": tools}))


asyncio.run(main())
