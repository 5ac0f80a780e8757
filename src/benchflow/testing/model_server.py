"""A local server that speaks the protocols of model providers and gives scripted replies.

In: a script of replies, one reply for every request, or a function. Out: real HTTP on the loopback, whole or
streamed, with tool calls, usage and every way a provider fails; and a record of the requests. It runs in
its own threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from benchflow.testing.dialects.spoken import Dialect
from benchflow.testing.model_wire import WireServer
from benchflow.testing.replies import Fault, ModelRequest, Reply, SpelledReply, spelled

Script = Reply | Sequence[Reply] | Callable[[ModelRequest], Reply]


class ModelServer:
    """A model with scripted replies.

    `replies` is a list (one reply per request, and an error once it is used up), a single reply
    (given to every request), or a function of the request (called for one request at a time). With `api_key`,
    requests without that key get 401; with `models`, requests for other models get 404. Neither uses up a
    reply.

        with ModelServer(["yes", Fault(429), Answer(tool_calls=[ToolCall("bash", {"command": "ls"})])]) as
        server: client = OpenAI(base_url=server.url, api_key=server.api_key)
    """

    def __init__(
        self, replies: Script, *, api_key: str | None = None, models: Sequence[str] = (), port: int = 0
    ) -> None:
        self._script = _script(replies)
        self._required_key = api_key
        self._port = port
        self.models = tuple(models)
        self._requests: list[ModelRequest] = []
        self._counts: list[ModelRequest] = []
        self._used = 0
        self._lock = threading.Lock()  # protects the three above, and serialises the reply function
        self._http: WireServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The base URL for clients of OpenAI, as used in `OPENAI_BASE_URL`; ends in `/v1`. Only while it runs."""
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        """The base URL for clients of Anthropic and Gemini. Only while it runs."""
        if self._http is None:
            raise RuntimeError("the model server is not running")
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def api_key(self) -> str:
        """A key that the server accepts."""
        return self._required_key or "test-key"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point a client or an agent here, in any dialect."""
        return {
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.root,
            "ANTHROPIC_API_KEY": self.api_key,
            "GOOGLE_GEMINI_BASE_URL": self.root,
            "GEMINI_API_KEY": self.api_key,
        }

    @property
    def requests(self) -> tuple[ModelRequest, ...]:
        """All requests for an answer so far, in order of arrival, including refused ones."""
        with self._lock:
            return tuple(self._requests)

    @property
    def counts(self) -> tuple[ModelRequest, ...]:
        """All requests for a count of tokens so far; they use up no reply."""
        with self._lock:
            return tuple(self._counts)

    @property
    def remaining(self) -> int | None:
        """How many replies of a list are left; None without a list."""
        with self._lock:
            return None if callable(self._script) else len(self._script) - self._used

    def start(self) -> Self:
        """Serve until `stop`; raises `OSError` if the port is in use."""
        if self._http is not None:
            raise RuntimeError("the model server is already running")
        self._http = WireServer(self, self._port)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="model-server")
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the server and close all connections, silent ones too; idempotent."""
        if self._http is None or self._thread is None:
            return
        self._http.shutdown()
        self._thread.join()
        self._http.end_connections()
        self._http.server_close()
        self._http = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def answer(
        self, dialect: Dialect, path: str, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> tuple[ModelRequest, SpelledReply]:
        """Record a request and choose its reply."""
        with self._lock:
            request, refused = self._record(self._requests, dialect, path, headers, body)
            if refused is not None:
                return request, refused
            try:
                return request, spelled(self._next(request))
            except Exception as error:  # noqa: BLE001 - a reply function may raise anything; the client must hear of it
                return request, Fault(500, f"the reply function failed: {error!r}", "script_failed")

    def count(
        self, dialect: Dialect, path: str, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> tuple[ModelRequest, Fault | None]:
        """Record a request for a count of tokens."""
        with self._lock:
            return self._record(self._counts, dialect, path, headers, body)

    def _record(
        self,
        requests: list[ModelRequest],
        dialect: Dialect,
        path: str,
        headers: Mapping[str, str],
        body: Mapping[str, Any],
    ) -> tuple[ModelRequest, Fault | None]:
        """The request, and why it is refused."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        authorized = self._required_key in (None, dialect.key(headers, query))
        heard = dialect.hear(path, body)
        request = ModelRequest(len(requests), dialect.name, path, dict(headers), body, heard, authorized)
        requests.append(request)
        if not authorized:
            return request, Fault(401, "the API key is not the expected one", "invalid_api_key")
        if self.models and request.model not in self.models:
            return request, Fault(404, f"unknown model {request.model!r}", "model_not_found")
        return request, None

    def _next(self, request: ModelRequest) -> Reply:
        if callable(self._script):
            return self._script(request)
        if self._used >= len(self._script):
            return Fault(400, f"the script has only {len(self._script)} replies", "script_exhausted")
        self._used += 1
        return self._script[self._used - 1]


def _script(replies: Script) -> tuple[Reply, ...] | Callable[[ModelRequest], Reply]:
    """A list or function unchanged; a single reply as a function that always returns it."""
    if isinstance(replies, str):
        return lambda _request: replies
    if isinstance(replies, Sequence):
        return tuple(replies)
    return replies if callable(replies) else lambda _request: replies
