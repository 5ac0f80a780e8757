"""Small clients of the wires of servers: OpenEnv's messages, and the agent's side of MCP."""

import json
from contextlib import contextmanager

import anyio
from websockets.sync.client import connect

from mcp_players import mcp_player


class Talk:
    """A connection, and short ways to use it."""

    def __init__(self, socket):
        self.socket = socket

    def ask(self, message):
        self.socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
        return self.heard()

    def heard(self):
        return json.loads(self.socket.recv(timeout=120))

    def reset(self, **keywords):
        return self.ask({"type": "reset", "data": keywords})["data"]

    def step(self, tool, **arguments):
        return self.ask({"type": "step", "data": {"tool_name": tool, "arguments": arguments}})["data"]

    def state(self):
        return self.ask({"type": "state"})["data"]


@contextmanager
def talking(server, path="/ws", **headers):
    url = server.url.replace("http://", "ws://")
    token = server.address["token"]
    own = {"Authorization": f"Bearer {token}"} if token else {}
    with connect(url + path, additional_headers={**own, **headers}, proxy=None, open_timeout=60) as socket:
        yield Talk(socket)


def agent(mcp, drive):
    """What `drive` returns, given a client of the agent's port."""

    async def run():
        async with mcp_player(mcp.address["agent_url"], mcp.address["agent_token"]) as client:
            return await drive(client)

    return anyio.run(run)
