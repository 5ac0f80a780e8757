"""The HTTP side of the model server: routes, bodies, streams, and connections that end on demand."""

from __future__ import annotations

import json
import socket
import sys
import threading
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, islice
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from benchflow.testing.dialects.scripted_chat import Chat
from benchflow.testing.dialects.scripted_gemini import Gemini
from benchflow.testing.dialects.scripted_messages import Messages
from benchflow.testing.dialects.scripted_responses import Responses
from benchflow.testing.dialects.spoken import Dialect
from benchflow.testing.replies import CUT, Answer, Disconnect, Fault, Malformed, ModelRequest, Silence, SpelledReply

MAX_BODY: Final = 64 << 20
DEFAULT_MODEL: Final = "test-model"
_CHAT: Final = Chat()
_MESSAGES: Final = Messages()
_GEMINI: Final = Gemini()
DIALECTS: Final[tuple[Dialect, ...]] = (_CHAT, Responses(), _MESSAGES, _GEMINI)


class Answerer(Protocol):
    """Chooses the reply to a request."""

    models: tuple[str, ...]

    def answer(
        self, dialect: Dialect, path: str, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> tuple[ModelRequest, SpelledReply]: ...

    def count(
        self, dialect: Dialect, path: str, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> tuple[ModelRequest, Fault | None]: ...


class WireServer(ThreadingHTTPServer):
    """Serves one `Answerer` on the loopback, with a thread per connection; all end with it."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, answerer: Answerer, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answerer = answerer
        self.stopping = threading.Event()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()  # protects the connections

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not an error; anything else is a defect of this module and is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def end_connections(self) -> None:
        """Wake every thread that is waiting for a client or delaying one."""
        self.stopping.set()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _BadRequest(Exception):
    """A request that its dialect does not allow."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: WireServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Quiet: tests read `requests` instead."""

    def do_GET(self) -> None:
        dialect = self._listing()
        models = self.server.answerer.models or (DEFAULT_MODEL,)
        path = self._route()
        if path == "/models":
            self._send_json(200, dialect.model_list([dialect.model_entry(name) for name in models]))
            return
        found = [name for name in models if path == f"/models/{name}"]
        if found:
            self._send_json(200, dialect.model_entry(found[0]))
        else:
            self._send_fault(dialect, Fault(404, f"there is nothing at {self.path}"))

    def do_POST(self) -> None:
        route = self._route()
        dialect = next((dialect for dialect in DIALECTS if dialect.route(route)), None)
        try:
            body = self._read_body()
            if dialect is None:
                self._send_fault(self._listing(), Fault(404, f"there is nothing at {self.path}"))
                return
            problem = dialect.problem(body)
            if problem:
                raise _BadRequest(problem)
        except _BadRequest as error:
            self.close_connection = True
            self._send_fault(dialect or self._listing(), Fault(400, str(error)))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        if dialect.route(route) == "answer":
            request, reply = self.server.answerer.answer(dialect, self.path, headers, body)
            self._reply(dialect, request, reply)
            return
        request, fault = self.server.answerer.count(dialect, self.path, headers, body)
        if fault is None:
            self._send_json(200, dialect.count(request))
        else:
            self._send_fault(dialect, fault)

    def _reply(self, dialect: Dialect, request: ModelRequest, reply: SpelledReply) -> None:
        match reply:
            case Answer():
                if self.server.stopping.wait(reply.delay_sec):
                    self.close_connection = True
                elif request.stream:
                    self._stream(dialect, request, dialect.events(reply, request), pause=reply.pause_sec)
                    self._end_stream()
                else:
                    self._send_json(200, dialect.whole(reply, request))
            case Fault():
                if request.stream and reply.after:
                    before = islice(dialect.events(CUT, request), reply.after)
                    self._stream(dialect, request, chain(before, [dialect.error_event(reply, request)]))
                    self._end_stream()
                else:
                    self._send_fault(dialect, reply)
            case Malformed():
                self._send(200, reply.body, {"Content-Type": reply.content_type})
            case Silence():
                self.server.stopping.wait(reply.seconds)
                self.close_connection = True
            case Disconnect():
                if request.stream and reply.after:
                    self._stream(dialect, request, islice(dialect.events(reply.answer, request), reply.after))
                self.server.stopping.wait(reply.hang_sec)
                self.close_connection = True

    def _listing(self) -> Dialect:
        """The dialect of a request that is not for an answer."""
        if self.path.startswith("/v1beta") or "x-goog-api-key" in self.headers:
            return _GEMINI
        return _MESSAGES if "anthropic-version" in self.headers else _CHAT

    def _route(self) -> str:
        """The path below the base URL, with or without its version."""
        return urlsplit(self.path).path.removeprefix("/v1beta").removeprefix("/v1")

    def _read_body(self) -> Mapping[str, Any]:
        data = self._read_bytes()
        try:
            if self.headers.get("Content-Encoding") == "gzip":
                data = zlib.decompressobj(wbits=31).decompress(data, MAX_BODY)
            body = json.loads(data)
        except (ValueError, zlib.error) as error:
            raise _BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise _BadRequest("the body must be an object")
        return body

    def _read_bytes(self) -> bytes:
        limit = f"a body with a length of at most {MAX_BODY:,} bytes is required"
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = bytearray()
            while size := self._chunk_size():
                if len(data) + size > MAX_BODY:
                    raise _BadRequest(limit)
                data += self.rfile.read(size)
                self.rfile.readline(3)
            while self.rfile.readline(1 << 16).strip():
                """Trailers end with an empty line."""
            return bytes(data)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise _BadRequest(limit)
        return self.rfile.read(int(length))

    def _chunk_size(self) -> int:
        try:
            return int(self.rfile.readline(1 << 10).partition(b";")[0], 16)
        except ValueError as error:
            raise _BadRequest("the body has a chunk without a size") from error

    def _send_fault(self, dialect: Dialect, fault: Fault) -> None:
        body, headers = dialect.error(fault, self.path)
        self._send_json(fault.status, body, headers)

    def _send_json(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        content = {"Content-Type": "application/json", **(headers or {})}
        self._send(status, json.dumps(body).encode(), content)

    def _send(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _stream(self, dialect: Dialect, request: ModelRequest, events: Iterable[bytes], pause: float = 0.0) -> None:
        """Each event in its own HTTP chunk, without the chunk that ends the stream."""
        self.send_response(200)
        self.send_header("Content-Type", dialect.stream_type(request))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index, event in enumerate(events):
            if pause and index and self.server.stopping.wait(pause):
                self.close_connection = True
                return
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()

    def _end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()
