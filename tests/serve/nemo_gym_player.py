"""Runs in NeMo Gym's own environment: its stock agent plays rows against a resources server, with a scripted model.

Standard input is `{"plays": [{"host", "port", "row", "calls": [[tool, arguments], …]}]}`. The output has, for every
play, the status and the body of the agent's reply, and the statistics that NeMo Gym makes of them.
"""

import asyncio
import json
import socket
import sys

import httpx
import nemo_gym.server_utils as server_utils
import uvicorn
from fastapi import FastAPI, Request
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.reward_profile import compute_aggregate_metrics
from omegaconf import OmegaConf
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def model_of(calls):
    """A model that calls these tools one after the other, and then says that it is done."""
    model, left = FastAPI(), list(calls)

    @model.post("/v1/responses")
    async def responses(request: Request):
        await request.json()
        if left:
            name, arguments = left.pop(0)
            call = {"id": f"f{len(left)}", "call_id": f"c{len(left)}", "name": name, "status": "completed"}
            output = {"type": "function_call", "arguments": json.dumps(arguments), **call}
        else:
            content = [{"type": "output_text", "text": "done", "annotations": []}]
            output = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
        about = {"id": "r", "created_at": 0, "model": "m", "object": "response", "parallel_tool_calls": False}
        return {**about, "output": [output], "tool_choice": "auto", "tools": []}

    return model


async def listening(app, port):
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    return server, task


async def played(play):
    model_port, agent_port = free_port(), free_port()

    def place(kind, host, port):
        return {kind: {"x": {"host": host, "port": port, "entrypoint": "app.py"}}}

    config = OmegaConf.create(
        {
            "resources": place("resources_servers", play["host"], play["port"]),
            "model": place("responses_api_models", "127.0.0.1", model_port),
            "agent": place("responses_api_agents", "127.0.0.1", agent_port),
        }
    )
    client = server_utils.ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=config
    )
    agent = SimpleAgent(
        config=SimpleAgentConfig(
            host="127.0.0.1",
            port=agent_port,
            entrypoint="app.py",
            name="agent",
            resources_server={"type": "resources_servers", "name": "resources"},
            model_server={"type": "responses_api_models", "name": "model"},
        ),
        server_client=client,
    )
    app = agent.setup_webserver()
    agent.setup_exception_middleware(app)
    servers = [await listening(model_of(play["calls"]), model_port), await listening(app, agent_port)]
    async with httpx.AsyncClient(timeout=300) as http:
        reply = await http.post(f"http://127.0.0.1:{agent_port}/run", json=play["row"])
    for server, task in servers:
        server.should_exit = True
        await task
    return {"status": reply.status_code, "body": reply.json()}


async def main():
    asked = json.loads(sys.stdin.read())
    limits = {"global_aiohttp_connector_limit": 100, "global_aiohttp_connector_limit_per_host": 100}
    server_utils.set_global_aiohttp_client(server_utils.GlobalAIOHTTPAsyncClientConfig(**limits))
    outcomes = [await played(play) for play in asked["plays"]]
    bodies = [outcome["body"] for outcome in outcomes if outcome["status"] == 200]
    rows = [{**body, "_ng_task_index": number, "_ng_rollout_index": 0} for number, body in enumerate(bodies)]
    metrics = compute_aggregate_metrics(rows).model_dump()
    await server_utils.get_global_aiohttp_client().close()
    server_utils._GLOBAL_AIOHTTP_CLIENT = None
    print("\n" + json.dumps({"played": outcomes, "rows": rows, "metrics": metrics}))


asyncio.run(main())
