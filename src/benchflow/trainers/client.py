"""A client of packages that are served (`bench serve ors`), in one file that may be copied into another project.

    with Client(url, token=token) as client:
        for task in client.tasks():
            with client.open(task) as session:
                print(session.prompt)
                session.call("bash", command="ls")
                session.submit()
                reward = session.score()

It needs nothing but the standard library and httpx. An end without a score is never a number: `Output.reward` and
`Session.reward` are None then, `unscored` says why, and `Session.score()` raises `Unscored`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

PING_SEC = 60.0
"""How often open sessions say that their client is alive; servers end those of which they hear nothing."""
START_SEC = 900.0
"""How long an environment may take to start."""
SILENT_SEC = 60.0
"""How long a connection may be silent; servers send something every few seconds while a call runs."""
ATTEMPTS = 3
"""How often a call is picked up again after its connection was lost."""
SUBMIT = "submit"


class ClientError(Exception):
    """Anything that goes wrong between this client and its server."""


class CallRefused(ClientError):
    """A call that was not carried out; the session continues. `reason` is a word, `str()` a sentence."""

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Unscored(ClientError):
    """No score exists: mask the sample or repeat it. `error` has `category`, `code`, `phase` and `reason`."""

    def __init__(self, error: Mapping[str, str]) -> None:
        self.error = dict(error)
        super().__init__(f"{error.get('category')}/{error.get('code')}: {error.get('reason')}")


@dataclass(frozen=True)
class Task:
    """A task of a server. `digest` is that of its content."""

    environment: str
    split: str
    index: int
    id: str
    digest: str

    def row(self) -> dict[str, Any]:
        """As a row of a dataset, from which `Task(**row)` makes it again."""
        return {name: getattr(self, name) for name in ("environment", "split", "index", "id", "digest")}


@dataclass(frozen=True)
class Tool:
    """A tool that can be called in a session."""

    name: str
    description: str
    input_schema: dict[str, Any]


@dataclass(frozen=True)
class Output:
    """What a call gave. `reward` is None where there is none, which is never the same as 0."""

    text: str
    reward: float | None
    finished: bool
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def unscored(self) -> dict[str, str] | None:
        """Why there is no score, if that is so."""
        if self.metadata.get("status") == "unscored":
            return dict(self.metadata.get("error") or {})
        if self.finished and self.reward is None:
            return _error("The server gave no reward.", "reward-missing", "verifier")
        return None


class Client:
    """A connection to a server; `with` ends it together with all its sessions. Threads may share it."""

    def __init__(self, url: str, *, token: str | None = None, http: httpx.Client | None = None) -> None:
        """`http` replaces the connection, for other transports; `url` and `token` are then its own affair."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = http or httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(SILENT_SEC))
        self._open: dict[str, Session] = {}
        self._guard = threading.Lock()
        """Protects the open sessions and the start of the thread."""
        self._ended = threading.Event()
        self._pinging: threading.Thread | None = None

    def environments(self) -> list[str]:
        """The environments of the server, the default first."""
        return [str(name) for name in self._json("GET", "/list_environments")]

    def splits(self, environment: str | None = None) -> list[str]:
        return [str(each["name"]) for each in self._json("GET", self._path(environment, "splits"))]

    def tasks(self, split: str | None = None, environment: str | None = None) -> list[Task]:
        """The tasks of a split, or of all; of the default environment, or the one named."""
        found = []
        for name in [split] if split is not None else self.splits(environment):
            listed = self._json("POST", self._path(environment, "tasks"), {"split": name})
            of = str(listed["env_name"])
            found += [Task(of, name, int(t["index"]), str(t["id"]), str(t["digest"])) for t in listed["tasks"]]
        return found

    def open(self, task: Task) -> Session:
        """Start a task and wait until it is ready. Raises `Unscored` if its environment cannot start."""
        try:
            sid = next((data for name, data in self._events("/create_session", {}) if name == "task_id"), None)
        except httpx.HTTPError as error:
            raise ClientError(f"/create_session: {str(error) or type(error).__name__}") from error
        if sid is None:
            raise ClientError("The server gave no session.")
        spec = {"id": task.id, "digest": task.digest, "index": task.index}
        session = Session(self, sid, task)
        try:
            self._json("POST", "/create", {"env_name": task.environment, "task_spec": spec}, sid)
            session._begin()
        except BaseException:
            session.close()
            raise
        return session

    def attach(self, task: Task, sid: str) -> Session:
        """A session that another process opened; its owner closes it."""
        return Session(self, sid, task)

    def close(self) -> None:
        """End all sessions that it opened, and the connection."""
        self._ended.set()
        for session in list(self._open.values()):
            session.close()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _path(self, environment: str | None, name: str) -> str:
        return f"/{name}" if environment is None else f"/{environment}/{name}"

    def _json(self, method: str, path: str, body: Any = None, sid: str | None = None) -> Any:
        headers = {"X-Session-ID": sid} if sid is not None else {}
        try:
            answer = self._http.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise ClientError(f"{method} {path}: {str(error) or type(error).__name__}") from error
        return _checked(answer)

    def _events(self, path: str, body: Any, sid: str | None = None) -> Iterator[tuple[str, str]]:
        """The events of a stream, as they come."""
        headers = {"X-Session-ID": sid} if sid is not None else {}
        with self._http.stream("POST", path, json=body, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                _checked(answer)
            name = ""
            for line in answer.iter_lines():
                if line.startswith("event:"):
                    name = line.removeprefix("event:").strip()
                elif line.startswith("data:"):
                    yield name, line.removeprefix("data:").removeprefix(" ")

    def _note(self, session: Session) -> None:
        with self._guard:
            self._open[session.id] = session
            if self._pinging is None:
                self._pinging = threading.Thread(target=self._ping, name="session-pings", daemon=True)
                self._pinging.start()

    def _drop(self, session: Session) -> None:
        with self._guard:
            self._open.pop(session.id, None)

    def _ping(self) -> None:
        while not self._ended.wait(PING_SEC):
            for sid in list(self._open):
                with contextlib.suppress(ClientError):  # a session that is gone says so when it is used
                    self._json("POST", "/ping", {}, sid)


class Session:
    """One task under way. Its calls run one after the other; the first that finishes it decides."""

    def __init__(self, client: Client, sid: str, task: Task) -> None:
        self.id = sid
        self.task = task
        self.prompt = ""
        self.tools: list[Tool] = []
        self.reward: float | None = None
        """The last reward; None while there is none, and where there is no score."""
        self.unscored: dict[str, str] | None = None
        """Why the end has no score."""
        self.finished = False
        self._client = client

    def call(self, name: str, /, **arguments: Any) -> Output:
        """Call a tool. Raises `CallRefused`, and `Unscored` if the environment broke, which ends the session."""
        output = self._called({"name": name, "input": arguments})
        self.unscored = output.unscored
        if output.unscored is not None:
            self.reward = None
        elif output.reward is not None:
            self.reward = output.reward
        self.finished = output.finished
        return output

    def submit(self, message: str | None = None) -> Output:
        """Hand in the work. Where another instruction follows, it is the text, and the session is not finished."""
        return self.call(SUBMIT, **({} if message is None else {"message": message}))

    def score(self) -> float:
        """The reward of the finished session. Work that was not handed in is handed in now; `Unscored` if none."""
        while not self.finished and self.unscored is None:
            self.submit()
        if self.unscored is not None:
            raise Unscored(self.unscored)
        if self.reward is None:
            raise Unscored(_error("The session ended without a reward.", "reward-missing", "verifier"))
        return self.reward

    def close(self) -> None:
        """End it with all that runs in it; safe to call again."""
        self._client._drop(self)
        for path in ("/delete", "/delete_session"):
            with contextlib.suppress(ClientError):  # gone already, or the whole server is
                self._client._json("POST", path, {}, self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        self._client._note(self)
        self.prompt = _text(self._when_ready("prompt"))
        self.tools = [
            Tool(str(each["name"]), str(each.get("description") or ""), dict(each.get("input_schema") or {}))
            for each in self._when_ready("task_tools")["tools"]
        ]

    def _when_ready(self, name: str) -> Any:
        until = time.monotonic() + START_SEC
        while True:
            try:
                return self._client._json("GET", self._client._path(self.task.environment, name), None, self.id)
            except _Starting as starting:
                if time.monotonic() > until:
                    raise ClientError(f"The environment did not start within {START_SEC:g} s.") from None
                time.sleep(starting.retry_sec)

    def _called(self, body: dict[str, Any]) -> Output:
        """The output of a call; after a lost connection its result is picked up, and nothing is called twice."""
        path = self._client._path(self.task.environment, "call")
        for attempt in range(1, ATTEMPTS + 1):
            data = ""
            try:
                for name, piece in self._client._events(path, body, self.id):
                    if name == "task_id":
                        body = {"task_id": piece}
                    elif name == "error":
                        self.finished, self.reward = True, None
                        self.unscored = _error(piece, "environment-lost", "environment")
                        raise Unscored(self.unscored)
                    elif name in ("chunk", "end"):
                        data += piece
                    if name == "end":
                        return _output(data)
            except httpx.HTTPError as error:
                if "task_id" not in body or attempt == ATTEMPTS:
                    lost = str(error) or type(error).__name__
                    raise ClientError(f"The connection was lost during a call: {lost}") from error
            if "task_id" not in body:
                break  # asking again would call again
        raise ClientError("The server ended its answer to a call before the result.")


class _Starting(ClientError):
    def __init__(self, retry_sec: float) -> None:
        super().__init__("The environment is still starting.")
        self.retry_sec = retry_sec


def _checked(answer: httpx.Response) -> Any:
    """The JSON of an answer; anything but success is an exception."""
    try:
        told = answer.json()
    except ValueError:
        told = None
    if answer.is_success and told is not None:
        return told
    if answer.headers.get("X-Backend-State") == "starting":
        retry = answer.headers.get("Retry-After", "1")
        raise _Starting(float(retry) if retry.isdigit() else 1.0)
    if isinstance(told, dict) and told.get("status") == "unscored":
        raise Unscored(told.get("error") or {})
    sentence = (
        next((told[key] for key in ("detail", "error") if told.get(key)), None) if isinstance(told, dict) else None
    )
    raise ClientError(f"{answer.request.url.path}: {answer.status_code} {sentence or answer.reason_phrase}")


def _output(data: str) -> Output:
    try:
        told = json.loads(data)
        if not told["ok"]:
            raise CallRefused(str(told["error"]), str(told.get("reason") or "refused"))
        output = told["output"]
        reward = output["reward"]
        return Output(
            _text(output["blocks"]),
            None if reward is None else float(reward),
            bool(output["finished"]),
            dict(output.get("metadata") or {}),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ClientError(f"The server gave an answer that is not one of ORS: {data[:200]!r}") from error


def _text(blocks: Any) -> str:
    return "\n".join(str(block["text"]) for block in blocks if block.get("type") == "text")


def _error(reason: str, code: str, category: str) -> dict[str, str]:
    return {
        "category": category,
        "code": code,
        "phase": "verify" if category == "verifier" else "agent",
        "reason": reason,
    }
