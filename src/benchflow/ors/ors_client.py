"""A client of ORS servers: what they offer, and one episode at a time.

Every way in which a server or the connection to it fails is an `EnvironmentFailure`: a rollout of it has no score. A
call that the server refuses (`ok: false`) is an answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Any, Final, Self

import anyio
import httpx

from benchflow.errors import EnvironmentFailure

PING_SEC: Final = 10.0
START_SEC: Final = 600.0
"""How long an environment may say that it is still starting."""
MAX_ANSWER: Final = 64 << 20
_TIMEOUT: Final = httpx.Timeout(60.0, read=120.0)


@dataclass(frozen=True, slots=True)
class OrsTool:
    """A tool of an environment."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OrsOutput:
    """The answer to a call: what it showed, its reward, and whether the episode is over."""

    text: str
    reward: float | None = None
    finished: bool = False
    ok: bool = True
    """False: the server refused the call, and `text` says why."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


def spec_digest(spec: Mapping[str, Any]) -> str:
    """What pins the specification of a task."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


PROMPT_IMAGES: Final = "/prompt-images"
"""Where a sandbox has the images of a prompt."""
_IMAGE_TYPES: Final = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}
_MAX_IMAGES: Final = 32 << 20
"""Bytes of all images of a prompt."""


@dataclass(frozen=True, slots=True)
class OrsPrompt:
    """A prompt as a package can hold it: text, which says where in the sandbox its images are, and those by name."""

    text: str
    images: Mapping[str, bytes] = field(default_factory=dict)


def read_prompt(blocks: Any) -> OrsPrompt:
    """What a server gave as a prompt; blocks other than text and images are an `EnvironmentFailure`."""
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise EnvironmentFailure("The ORS server gave a prompt that is not a list of blocks.", code="ors-protocol")
    texts: list[str] = []
    images: dict[str, bytes] = {}
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text", "")))
            case "image":
                name = f"image-{len(images) + 1}.{_image_type(block)}"
                images[name] = _image(block)
                texts.append(f"[Image: {PROMPT_IMAGES}/{name}]")
            case other:
                message = f"The prompt has a block of the type {str(other)[:40]!r}, which a package cannot hold."
                raise EnvironmentFailure(message, code="ors-prompt")
    if sum(map(len, images.values())) > _MAX_IMAGES:
        message = f"The images of the prompt have more than {_MAX_IMAGES >> 20} MB."
        raise EnvironmentFailure(message, code="ors-prompt")
    return OrsPrompt("\n\n".join(texts), images)


def _image_type(block: Mapping[str, Any]) -> str:
    given = str(block.get("mimeType"))
    if given not in _IMAGE_TYPES:
        known = ", ".join(_IMAGE_TYPES)
        raise EnvironmentFailure(
            f"The prompt has an image of the type {given[:40]!r}; use one of {known}.", code="ors-prompt"
        )
    return _IMAGE_TYPES[given]


def _image(block: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(str(block.get("data")), validate=True)
    except ValueError as error:
        raise EnvironmentFailure("The prompt has an image that is not base64.", code="ors-protocol") from error


class OrsClient:
    """A connection to a server; `async with` closes it."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {} if token is None else {"X-API-Key": token, "Authorization": f"Bearer {token}"}
        self.url: Final = url.rstrip("/")
        self._http: Final = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=_TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def environments(self) -> list[str]:
        return [str(name) for name in await self.request("GET", "/list_environments")]

    async def splits(self, environment: str) -> list[str]:
        return [str(split["name"]) for split in await self.request("GET", f"/{environment}/splits")]

    async def count(self, environment: str, split: str) -> int:
        answer = await self.request("POST", f"/{environment}/num_tasks", {"split": split})
        return int(answer["num_tasks"])

    async def task(self, environment: str, split: str, index: int) -> dict[str, Any]:
        answer = await self.request("POST", f"/{environment}/task", {"split": split, "index": index})
        return dict(answer["task"])

    @asynccontextmanager
    async def session(self, environment: str, spec: Mapping[str, Any]) -> AsyncIterator[OrsSession]:
        """An episode of a task; it is always deleted at the end of the block."""
        session = OrsSession(self, environment, token_urlsafe(24))
        body = {"env_name": environment, "task_spec": dict(spec)}
        await self.request("POST", "/create", body, session.id)
        async with anyio.create_task_group() as pinging:
            pinging.start_soon(session.keep)
            try:
                yield session
            finally:
                pinging.cancel_scope.cancel()
                with anyio.move_on_after(15, shield=True):
                    await session.delete()

    async def request(self, method: str, path: str, body: Any = None, sid: str | None = None) -> Any:
        """The JSON of an answer; one that says that the environment is starting is asked for again."""
        deadline = anyio.current_time() + START_SEC
        while True:
            headers = {} if sid is None else {"X-Session-ID": sid}
            try:
                answer = await self._http.request(method, path, json=body, headers=headers, follow_redirects=True)
                if answer.headers.get("X-Backend-State") == "starting" and anyio.current_time() < deadline:
                    await anyio.sleep(2)
                    continue
                answer.raise_for_status()
                return answer.json()
            except httpx.HTTPStatusError as error:
                raise _refused(self.url, path, error.response) from error
            except (httpx.HTTPError, ValueError) as error:
                raise _lost(self.url, path, error) from error

    async def events(self, path: str, body: Any, sid: str) -> tuple[str, str]:
        """The name of the last event of a stream, and the text of all its chunks."""
        text, size = "", 0
        try:
            async with self._http.stream("POST", path, json=body, headers={"X-Session-ID": sid}) as answer:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    raise _refused(self.url, path, answer)
                name = ""
                async for line in answer.aiter_lines():
                    size += len(line)
                    if size > MAX_ANSWER:
                        raise EnvironmentFailure(f"The ORS server at {self.url} sent too much.", code="ors-protocol")
                    if line.startswith("event:"):
                        name = line[6:].strip()
                    elif line.startswith("data:") and name in ("chunk", "end", "error"):
                        text += line[5:].removeprefix(" ")
                    elif not line and name in ("end", "error"):
                        return name, text
        except httpx.HTTPError as error:
            raise _lost(self.url, path, error) from error
        message = f"The ORS server at {self.url} ended the answer of {path} too early."
        raise EnvironmentFailure(message, code="ors-connection")


class OrsSession:
    """One episode."""

    def __init__(self, client: OrsClient, environment: str, sid: str) -> None:
        self.id: Final = sid
        self._client: Final = client
        self._environment: Final = environment

    async def prompt(self) -> OrsPrompt:
        return read_prompt(await self._client.request("GET", f"/{self._environment}/prompt", sid=self.id))

    async def tools(self) -> list[OrsTool]:
        path = f"/{self._environment}/task_tools"
        listed = dict(await self._client.request("GET", path, sid=self.id)).get("tools") or []
        empty: Mapping[str, Any] = {"type": "object", "properties": {}}
        return [
            OrsTool(each["name"], each.get("description") or "", each.get("input_schema") or empty) for each in listed
        ]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> OrsOutput:
        body = {"name": name, "input": dict(arguments)}
        event, text = await self._client.events(f"/{self._environment}/call", body, self.id)
        if event == "error":
            raise EnvironmentFailure(f"The ORS environment failed: {text[:500]}", code="ors-tool-failed")
        try:
            answer = json.loads(text)
            if not answer["ok"]:
                return OrsOutput(str(answer.get("error", "refused")), ok=False)
            output = answer["output"]
            shown = "\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in output["blocks"])
            reward, finished = output.get("reward"), output.get("finished", False)
            if not (reward is None or isinstance(reward, (int, float))) or not isinstance(finished, bool):
                raise ValueError("reward or finished is of a wrong type")
            return OrsOutput(shown, reward, finished, metadata=output.get("metadata") or {})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"The ORS server at {self._client.url} gave an answer that is not one of the protocol: {error}"
            raise EnvironmentFailure(message, code="ors-protocol") from error

    async def keep(self) -> None:
        """Ping, so that the server keeps the session; calls notice if it is gone."""
        while True:
            await anyio.sleep(PING_SEC)
            try:
                await self._client.request("POST", "/ping", {}, self.id)
            except EnvironmentFailure:
                continue

    async def delete(self) -> None:
        for path in ("/delete", "/delete_session"):
            try:
                await self._client.request("POST", path, {}, self.id)
            except EnvironmentFailure:
                continue


def _refused(url: str, path: str, answer: httpx.Response) -> EnvironmentFailure:
    said = " ".join(answer.text.split())[:300]
    message = f"The ORS server at {url} answered {path} with status {answer.status_code}: {said}"
    return EnvironmentFailure(message, code="ors-status")


def _lost(url: str, path: str, error: Exception) -> EnvironmentFailure:
    message = f"The connection to the ORS server at {url} failed in {path}: {type(error).__name__}: {error}"
    return EnvironmentFailure(message[:1000], code="ors-connection")
