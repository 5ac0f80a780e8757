"""`CubeResourcesServer`: a cube, or anything that can be played, as a resources server of NeMo Gym.

`POST /seed_session` begins an episode and sets a cookie, `POST /TOOL` calls a tool, `POST /verify` ends and scores it,
`POST /aggregate_metrics` sums up. `GET /tasks` lists the tasks, `GET /rows` is a dataset of them. A client without
cookies uses the `env_id` of the first reply with `/step`, `/verify` and `/close`. Needs the extra `serve`.

A `reward` of this protocol is a number. So an episode without a score is answered with status 500 and the reason; with
`mask_unscored` by a placeholder, and by the marks with which NeMo Gym and NeMo RL leave a rollout out.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cube.benchmark import BenchmarkConfig
from cube.core import Action
from cube.integrations.nemo_episodes import CubePlays, Play, Plays, Refusal, Verdict
from cube.integrations.nemo_metrics import FAILURE_CLASS, aggregate
from cube.resource import InfraConfig

logger = logging.getLogger(__name__)

COOKIE: Final = "cube_session"
MAX_BODY: Final = 64 * 1024 * 1024
"""Maximum bytes of a request: a model's whole answer comes with `/verify`, with its token ids."""
BODY_SEC: Final = 60.0
"""How long a request may take to arrive."""
MAX_SESSIONS: Final = 64
IDLE_SEC: Final = 900.0
RESERVED: Final = frozenset({"seed_session", "verify", "aggregate_metrics", "step", "close", "mcp"})
"""Paths that a tool cannot have."""

Handler = Callable[[Request, dict[str, Any]], Awaitable[Response]]


@dataclass(slots=True)
class _Session:
    play: Play
    used: float = field(default_factory=time.monotonic)
    busy: int = 0
    """How many requests are being answered."""


class CubeResourcesServer:
    """The application, and the episodes that its clients play."""

    def __init__(
        self,
        config: BenchmarkConfig[Any] | Plays,
        infra: InfraConfig | None = None,
        *,
        max_sessions: int = MAX_SESSIONS,
        idle_sec: float = IDLE_SEC,
        mask_unscored: bool = False,
    ) -> None:
        """`idle_sec`: after how long without a request an episode is closed, because its client may have died."""
        self._plays: Final[Plays] = CubePlays(config, infra) if isinstance(config, BenchmarkConfig) else config
        self._max_sessions: Final = max_sessions
        self._idle_sec: Final = idle_sec
        self._mask_unscored: Final = mask_unscored
        self._sessions: Final[dict[str, _Session]] = {}
        self._beginning = 0

    def app(self, *more: Route) -> Starlette:
        """The application, with routes of its owner; its lifespan is `running`."""
        post = {
            "/seed_session": self._seed,
            "/verify": self._verify,
            "/aggregate_metrics": self._aggregate,
            "/step": self._step,
            "/close": self._close,
            "/{tool}": self._call,
        }
        routes = [Route(path, _answering(handler), methods=["POST"]) for path, handler in post.items()]
        gets = [Route("/", _alive), Route("/health", _alive), Route("/tasks", self._tasks), Route("/rows", self._rows)]
        return Starlette(routes=[*more, *gets, *routes], lifespan=lambda _: self.running())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While it is entered, silent episodes are closed; at the end, all are."""
        async with anyio.create_task_group() as reaping:
            reaping.start_soon(self._reap)
            try:
                yield
            finally:
                reaping.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._end_all()

    async def _end_all(self) -> None:
        async with anyio.create_task_group() as closing:
            for session_id in list(self._sessions):
                closing.start_soon(self._drop, session_id)
        await self._plays.close()

    async def _reap(self) -> None:
        while True:
            await anyio.sleep(min(self._idle_sec / 4, 30.0))
            limit = time.monotonic() - self._idle_sec
            for session_id, session in list(self._sessions.items()):
                if not session.busy and session.used < limit:
                    logger.warning("Closing an episode of '%s': its client is idle.", session.play.task_id)
                    await self._drop(session_id)

    async def _drop(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        try:
            await session.play.close()
        except Exception:  # the task's own code; the other episodes go on
            logger.exception("Closing an episode of '%s' failed", session.play.task_id)

    async def _seed(self, request: Request, body: dict[str, Any]) -> Response:
        task_id, seed = self._chosen(body), body.get("seed")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
            raise Refusal(422, "'seed' must be an integer.")
        await self._drop(request.cookies.get(COOKIE, ""))
        if len(self._sessions) + self._beginning >= self._max_sessions:
            raise Refusal(503, f"The server plays {self._max_sessions} episodes, which is its limit.")
        self._beginning += 1
        try:
            play = await self._plays.begin(task_id, seed)
        finally:
            self._beginning -= 1
        session_id = secrets.token_urlsafe(32)
        self._sessions[session_id] = _Session(play)
        tools = play.tools()
        clash = next((tool.name for tool in tools if tool.name in RESERVED), None)
        if clash is not None:
            await self._drop(session_id)
            raise Refusal(422, f"The tool '{clash}' of '{task_id}' has the name of a path of this server.")
        if await request.is_disconnected():  # nobody will ever use it
            await self._drop(session_id)
        about = {"env_id": session_id, "task_id": task_id, "observation": play.prompt()}
        return _with_cookie(_json({**about, "tools": [tool.as_dict() for tool in tools]}), session_id)

    def _chosen(self, body: Mapping[str, Any]) -> str:
        """The id of the task that a seed asks for, by `task_id` or `task_idx`; the only task needs neither."""
        known = self._plays.task_ids()
        task_id, index = body.get("task_id"), body.get("task_idx")
        if task_id is not None:
            if not isinstance(task_id, str) or task_id not in known:
                raise Refusal(404, f"Unknown task '{str(task_id)[:200]}'; GET /tasks lists them.")
            return task_id
        if index is None and len(known) == 1:
            return known[0]
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(known):
            most = len(known) - 1
            raise Refusal(400, f"Name a task: 'task_id', or 'task_idx' from 0 to {most}. GET /tasks lists them.")
        return known[index]

    def _session(self, request: Request, body: Mapping[str, Any]) -> tuple[str, _Session]:
        session_id = body.get("env_id", request.cookies.get(COOKIE))
        session = self._sessions.get(session_id) if isinstance(session_id, str) else None
        if session is None or not isinstance(session_id, str):
            raise Refusal(404, "Unknown session; start one with /seed_session. Idle sessions are closed.")
        return session_id, session

    async def _call(self, request: Request, body: dict[str, Any]) -> Response:
        session_id, session = self._session(request, {})
        with _in_use(session):
            try:
                text = await session.play.call(request.path_params["tool"], body)
                return _with_cookie(Response(text.encode(errors="replace"), media_type="text/plain"), session_id)
            except Refusal as refusal:  # the session's next request takes its cookie from this reply
                return _with_cookie(_refused(refusal), session_id)

    async def _step(self, request: Request, body: dict[str, Any]) -> Response:
        session_id, session = self._session(request, body)
        try:
            action = Action.from_openai_tool_call(body.get("action") or {})
        except (ValueError, TypeError, AttributeError) as error:
            raise Refusal(422, "'action' must be a tool call: {'name': …, 'arguments': {…}}.") from error
        with _in_use(session):
            text = await session.play.call(action.name, action.arguments)
        message = {"role": "tool", "tool_call_id": action.id, "content": text}
        return _with_cookie(_json({"env_id": session_id, "observation": [message]}), session_id)

    async def _verify(self, request: Request, body: dict[str, Any]) -> Response:
        session_id, session = self._session(request, body)
        with _in_use(session):
            verdict = await session.play.verdict()
            await session.play.close()
        rewards = dict(verdict.details.get("rewards") or {})
        about = {"task_id": session.play.task_id, "rewards": rewards, **_limits(verdict)}
        if verdict.reward is not None:
            reply = _json({**body, **about, "reward": verdict.reward})
        else:
            reply = self._unscored(body, about, verdict)
        return _with_cookie(reply, session_id)

    def _unscored(self, body: Mapping[str, Any], about: Mapping[str, Any], verdict: Verdict) -> Response:
        reason = dict(verdict.unscored or {})
        if not self._mask_unscored:
            sentence = f"The episode has no score: {reason.get('reason', 'the reason is unknown')}"
            return _json({"error": sentence, "reward": None, "unscored": reason, **_limits(verdict)}, 500)
        marks = {FAILURE_CLASS: "unscored", "instance_config": {"mask_sample": True}}
        return _json({**body, **about, **marks, "reward": 0.0, "unscored": reason})

    async def _aggregate(self, request: Request, body: dict[str, Any]) -> Response:
        del request
        rows = body.get("verify_responses")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Refusal(422, "'verify_responses' must be a list of objects.")
        return _json(aggregate(rows))

    async def _close(self, request: Request, body: dict[str, Any]) -> Response:
        session_id, _ = self._session(request, body)
        await self._drop(session_id)
        return _json({"env_id": session_id, "closed": True})

    async def _tasks(self, request: Request) -> Response:
        del request
        return _json([{"task_idx": index, "task_id": known} for index, known in enumerate(self._plays.task_ids())])

    async def _rows(self, request: Request) -> Response:
        """A dataset of all tasks, as JSON lines; every task is begun once to ask for its prompt."""
        del request

        async def lines() -> AsyncIterator[bytes]:
            for index, task_id in enumerate(self._plays.task_ids()):
                play = await self._plays.begin(task_id, None)
                try:
                    row = {"responses_create_params": create_params(play), "task_id": task_id, "task_idx": index}
                finally:
                    await play.close()
                yield _encoded(row) + b"\n"

        return StreamingResponse(lines(), media_type="application/jsonl")


def create_params(play: Play) -> dict[str, Any]:
    """The prompt and the tools of an episode as parameters of the Responses API."""
    messages = [{"role": "user", "content": _input_content(message["content"])} for message in play.prompt()]
    tools = [{"type": "function", **tool.as_dict()["function"], "strict": False} for tool in play.tools()]
    return {"input": messages, "tools": tools}


def _input_content(content: str | list[dict[str, Any]]) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
        for part in content
    ]


def _answering(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """The handler with its body read and its errors told: a sentence of ours, never a traceback."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request, await _body(request))
        except Refusal as refusal:
            return _refused(refusal)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # the task's own code; the server must survive it
            logger.exception("%s failed", request.url.path)
            return _refused(Refusal(500, f"The environment failed: {type(error).__name__}: {error}"))

    return answer


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request; a larger one than allowed is never held in memory."""
    body = bytearray()
    with anyio.move_on_after(BODY_SEC) as waiting:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                raise Refusal(413, f"The request exceeds the limit of {MAX_BODY} bytes.")
    if waiting.cancelled_caught:
        raise Refusal(408, f"The request did not arrive within {BODY_SEC:g} s.")
    try:
        found = json.loads(body or b"{}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"The request is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refusal(422, "The request must be a JSON object.")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


@contextmanager
def _in_use(session: _Session) -> Iterator[None]:
    session.busy += 1
    try:
        yield
    finally:
        session.busy -= 1
        session.used = time.monotonic()


async def _alive(request: Request) -> Response:
    del request
    return _json({"status": "ok"})


def _refused(refusal: Refusal) -> Response:
    return _json({"error": str(refusal)}, refusal.status)


def _json(value: Any, status: int = 200) -> Response:
    return Response(_encoded(value), status, media_type="application/json")


def _encoded(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, default=str).encode("ascii")


def _with_cookie(response: Response, session_id: str) -> Response:
    """Sent with every reply: NeMo Gym's agents use the cookies of the latest one."""
    response.set_cookie(COOKIE, session_id, httponly=True)
    return response


def _limits(verdict: Verdict) -> dict[str, Any]:
    """Limits that the episode reached, if it is known to have reached any."""
    return {key: value for key, value in verdict.details.items() if key == "limits_reached"}
