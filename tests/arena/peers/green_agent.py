"""A green agent as the public starters of AgentBeats have it: a server of a2a-sdk 0.3 that takes `--host`, `--port` and
`--card-url`, plays a game with its participants and leaves an artifact. It knows nothing of this project.

The game: each participant names a number from 1 to 9 in each round, and the higher one takes the round.
"""

import argparse
import json
import re
from uuid import uuid4

import httpx
import uvicorn
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentSkill,
    DataPart,
    InvalidParamsError,
    Message,
    Part,
    Role,
    TextPart,
    UnsupportedOperationError,
)
from a2a.utils import new_agent_text_message, new_task
from a2a.utils.errors import ServerError


async def talk_to(message: str, url: str, context_id: str | None) -> tuple[str, str | None]:
    """What a participant answers, and the conversation that it belongs to."""
    async with httpx.AsyncClient(timeout=300) as http:
        card = await A2ACardResolver(httpx_client=http, base_url=url).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=True)).create(card)
        outgoing = Message(
            kind="message",
            role=Role.user,
            parts=[Part(root=TextPart(text=message))],
            message_id=uuid4().hex,
            context_id=context_id,
        )
        last = None
        async for event in client.send_message(outgoing):
            last = event
        if isinstance(last, Message):
            return _text(last.parts), last.context_id
        task, _ = last
        said = _text(task.status.message.parts) if task.status.message else ""
        said += "".join(_text(artifact.parts) for artifact in task.artifacts or [])
        return said, task.context_id


def _text(parts: list[Part]) -> str:
    return "\n".join(part.root.text for part in parts if isinstance(part.root, TextPart))


class HigherNumber(AgentExecutor):
    """Runs one assessment per task."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        try:
            request = json.loads(context.get_user_input())
            urls = {role: str(url) for role, url in request["participants"].items()}
            rounds = int(request.get("config", {}).get("rounds", 2))
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(error=InvalidParamsError(message=f"bad request: {error}")) from error
        if len(urls) != 2:
            raise ServerError(error=InvalidParamsError(message="this game has two participants"))
        task = new_task(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work(new_agent_text_message("Starting the assessment.", task.context_id, task.id))
        points = dict.fromkeys(urls, 0)
        talks: dict[str, str | None] = dict.fromkeys(urls)
        for number in range(1, rounds + 1):
            said = {}
            for role, url in urls.items():
                text, talks[role] = await talk_to(f"Round {number}: name a number from 1 to 9.", url, talks[role])
                found = re.findall(r"\b[1-9]\b", text)
                said[role] = int(found[-1]) if found else 0
            best = max(said, key=said.__getitem__)
            if list(said.values()).count(said[best]) == 1:
                points[best] += 1
            await updater.start_work(new_agent_text_message(f"Round {number}: {said}", task.context_id, task.id))
        top = max(points, key=points.__getitem__)
        winner = top if list(points.values()).count(points[top]) == 1 else None
        result = {
            "winner": winner,
            "rewards": {role: points[role] / rounds for role in urls},
            "detail": {"points": points},
        }
        await updater.add_artifact(
            [Part(root=TextPart(text=f"The winner is {winner}.")), Part(root=DataPart(data=result))], name="Result"
        )
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise ServerError(error=UnsupportedOperationError())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9019)
    parser.add_argument("--card-url")
    given = parser.parse_args()
    card = AgentCard(
        name="higher-number",
        description="The higher number takes the round.",
        url=given.card_url or f"http://{given.host}:{given.port}/",
        version="1.0.0",
        default_input_modes=["text"],
        default_output_modes=["text"],
        capabilities=AgentCapabilities(streaming=True),
        skills=[AgentSkill(id="host", name="host", description="Hosts the game.", tags=["green"])],
    )
    handler = DefaultRequestHandler(agent_executor=HigherNumber(), task_store=InMemoryTaskStore())
    app = A2AStarletteApplication(agent_card=card, http_handler=handler).build()
    uvicorn.run(app, host=given.host, port=given.port, log_level="warning")


main()
