"""Agents and a client made with a2a-sdk 1.x, in its own environment; they know nothing of this project.

stock_v1.py serve echo|loop|slow PORT_FILE
stock_v1.py ask URL [--token T] [--rest] [--plain]    the message on standard input; prints a JSON line per event
"""

import argparse
import asyncio
import json
import socket
import sys
from pathlib import Path

import httpx
import uvicorn
from a2a.client import ClientConfig, create_client
from a2a.helpers import get_message_text, new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Role, SendMessageRequest
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette


class Echo(AgentExecutor):
    """Answers with a bare message."""

    async def execute(self, context, queue):
        text = get_message_text(context.message)
        await queue.enqueue_event(new_text_message(text, context_id=context.context_id))

    async def cancel(self, context, queue):
        raise NotImplementedError


class Loop(AgentExecutor):
    """Works on a task: thinks a few times, then answers with the last line of what it was told."""

    async def execute(self, context, queue):
        task = context.current_task or new_task_from_user_message(context.message)
        if not context.current_task:
            await queue.enqueue_event(task)
        updater = TaskUpdater(queue, task.id, task.context_id)
        for number in range(3):
            await updater.start_work(updater.new_agent_message([new_text_part(f"thought {number}")]))
        last = get_message_text(context.message).strip().splitlines()[-1]
        await updater.complete(updater.new_agent_message([new_text_part(f"I say\n{last}")]))

    async def cancel(self, context, queue):
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


class Slow(Loop):
    """Begins a task and never ends it."""

    async def execute(self, context, queue):
        task = new_task_from_user_message(context.message)
        await queue.enqueue_event(task)
        await TaskUpdater(queue, task.id, task.context_id).start_work()
        await asyncio.sleep(3600)


def serve(kind: str, port_file: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    card = AgentCard(
        name=kind,
        description="A stock agent.",
        version="1",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text"],
        default_output_modes=["text"],
        skills=[AgentSkill(id="talk", name="talk", description="Talks.", tags=[])],
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
    )
    executor = {"echo": Echo, "loop": Loop, "slow": Slow}[kind]()
    handler = DefaultRequestHandler(agent_executor=executor, task_store=InMemoryTaskStore(), agent_card=card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/"), *create_rest_routes(handler)]
    port_file.write_text(url)
    uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning")).run(sockets=[listener])


async def ask(url: str, token: str | None, *, rest: bool, plain: bool) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        bindings = ["HTTP+JSON"] if rest else ["JSONRPC"]
        config = ClientConfig(streaming=not plain, httpx_client=http, supported_protocol_bindings=bindings)
        client = await create_client(url, client_config=config)
        message = new_text_message(sys.stdin.read(), role=Role.ROLE_USER)
        async for event in client.send_message(SendMessageRequest(message=message)):
            print(json.dumps(MessageToDict(event)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    serving = verbs.add_parser("serve")
    serving.add_argument("kind")
    serving.add_argument("port_file", type=Path)
    asking = verbs.add_parser("ask")
    asking.add_argument("url")
    asking.add_argument("--token")
    asking.add_argument("--rest", action="store_true")
    asking.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    if given.verb == "serve":
        serve(given.kind, given.port_file)
    else:
        asyncio.run(ask(given.url, given.token, rest=given.rest, plain=given.plain))


main()
