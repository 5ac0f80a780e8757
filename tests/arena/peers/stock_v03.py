"""Agents and a client made with a2a-sdk 0.3, in its own environment; they know nothing of this project.

stock_v03.py serve echo|loop PORT_FILE
stock_v03.py ask URL [--token T] [--plain]      the message on standard input; prints one JSON line per event
"""

import argparse
import asyncio
import json
import socket
import sys
from pathlib import Path
from uuid import uuid4

import httpx
import uvicorn
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Message, Part, Role, TextPart
from a2a.utils import get_message_text, new_agent_text_message, new_task


class Echo(AgentExecutor):
    """Answers with a bare message."""

    async def execute(self, context, queue):
        await queue.enqueue_event(new_agent_text_message(get_message_text(context.message), context.context_id))

    async def cancel(self, context, queue):
        raise NotImplementedError


class Loop(AgentExecutor):
    """Works on a task: its answer is an artifact with the last line of what it was told."""

    async def execute(self, context, queue):
        task = context.current_task or new_task(context.message)
        await queue.enqueue_event(task)
        updater = TaskUpdater(queue, task.id, task.context_id)
        await updater.start_work(updater.new_agent_message([Part(root=TextPart(text="thinking"))]))
        last = get_message_text(context.message).strip().splitlines()[-1]
        await updater.add_artifact([Part(root=TextPart(text=f"I say\n{last}"))])
        await updater.complete()

    async def cancel(self, context, queue):
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


def serve(kind: str, port_file: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    card = AgentCard(
        name=kind,
        description="A stock agent.",
        url=url,
        version="1",
        capabilities=AgentCapabilities(streaming=kind == "loop"),
        default_input_modes=["text"],
        default_output_modes=["text"],
        skills=[AgentSkill(id="talk", name="talk", description="Talks.", tags=[])],
    )
    executor = Echo() if kind == "echo" else Loop()
    handler = DefaultRequestHandler(agent_executor=executor, task_store=InMemoryTaskStore())
    app = A2AStarletteApplication(agent_card=card, http_handler=handler).build()
    port_file.write_text(url)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


async def ask(url: str, token: str | None, *, plain: bool) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        card = await A2ACardResolver(httpx_client=http, base_url=url).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=not plain)).create(card)
        part = Part(root=TextPart(text=sys.stdin.read()))
        async for event in client.send_message(Message(role=Role.user, parts=[part], message_id=uuid4().hex)):
            shown = event if isinstance(event, Message) else (event[1] or event[0])
            print(json.dumps(shown.model_dump(mode="json", exclude_none=True, by_alias=True)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    serving = verbs.add_parser("serve")
    serving.add_argument("kind")
    serving.add_argument("port_file", type=Path)
    asking = verbs.add_parser("ask")
    asking.add_argument("url")
    asking.add_argument("--token")
    asking.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    if given.verb == "serve":
        serve(given.kind, given.port_file)
    else:
        asyncio.run(ask(given.url, given.token, plain=given.plain))


main()
