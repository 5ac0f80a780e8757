"""The HTTP side of the model server: routes, bodies, server-sent events, and connections that end on demand."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

from benchflow.testing.replies import (
    Answer,
    Disconnect,
    Fault,
    Malformed,
    ModelRequest,
    Silence,
    SpelledReply,
    chunks,
    completion,
    error_body,
)

MAX_BODY: Final = 64 << 20
DEFAULT_MODEL: Final = "test-model"


class Answerer(Protocol):
    """Chooses the reply to a request."""

    models: tuple[str, ...]

    def answer(
        self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> tuple[ModelRequest, SpelledReply]: ...


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
    """A request that is not a chat request."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: WireServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Quiet: tests read `requests` instead."""

    def do_GET(self) -> None:
        models = self.server.answerer.models or (DEFAULT_MODEL,)
        known = [{"id": name, "object": "model", "created": 0, "owned_by": "test"} for name in models]
        path = self._route()
        if path == "/models":
            self._send_json(200, {"object": "list", "data": known})
            return
        found = [entry for entry in known if path == f"/models/{entry['id']}"]
        if found:
            self._send_json(200, found[0])
        else:
            self._send_json(404, error_body(404, f"there is nothing at {self.path}"))

    def do_POST(self) -> None:
        try:
            body = self._read_body()
            if self._route() != "/chat/completions":
                self._send_json(404, error_body(404, f"there is nothing at {self.path}"))
                return
            _require_chat(body)
        except _BadRequest as error:
            self.close_connection = True
            self._send_json(400, error_body(400, str(error)))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request, reply = self.server.answerer.answer(self.path, headers, body)
        self._reply(request, reply)

    def _reply(self, request: ModelRequest, reply: SpelledReply) -> None:
        match reply:
            case Answer():
                if self.server.stopping.wait(reply.delay_sec):
                    self.close_connection = True
                elif request.stream:
                    self._send_stream(chunks(reply, request))
                else:
                    self._send_json(200, completion(reply, request))
            case Fault():
                wait = reply.retry_after_sec
                headers = {} if wait is None else {"Retry-After": f"{wait:g}"}
                self._send_json(reply.status, error_body(reply.status, reply.message, reply.code), headers)
            case Malformed():
                self._send(200, reply.body, {"Content-Type": reply.content_type})
            case Silence():
                self.server.stopping.wait(reply.seconds)
                self.close_connection = True
            case Disconnect():
                if request.stream and reply.after:
                    self._send_stream(chunks(reply.answer, request), limit=reply.after)
                self.close_connection = True

    def _route(self) -> str:
        """The path below the base URL, with or without its `/v1`."""
        return self.path.split("?", 1)[0].removeprefix("/v1")

    def _read_body(self) -> Mapping[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise _BadRequest(f"a body with a length of at most {MAX_BODY:,} bytes is required")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise _BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise _BadRequest("the body must be an object")
        return body

    def _send_json(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
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

    def _send_stream(self, pieces: Iterator[Mapping[str, Any]], limit: int | None = None) -> None:
        """Server-sent events in HTTP chunks; with a limit the stream stops after that many."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index, piece in enumerate(pieces):
            if index == limit:
                self.wfile.flush()
                return
            self._send_event(json.dumps(piece))
        self._send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _send_event(self, text: str) -> None:
        event = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.flush()


def _require_chat(body: Mapping[str, Any]) -> None:
    messages = body.get("messages")
    if not isinstance(body.get("model"), str):
        raise _BadRequest("model must be a string")
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise _BadRequest("messages must be a list of at least one object")
