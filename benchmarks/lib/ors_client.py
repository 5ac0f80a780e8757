"""A client of ORS servers that costs little itself: one connection, requests as bytes, answers as far as needed."""

from __future__ import annotations

import json
import socket


class LeanClient:
    """One keep-alive connection to a server on this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = self._connected()

    def _connected(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=120)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def ask(self, method: str, path: str, body: object = None, sid: str = "") -> bytes:
        """The body of the answer, which must be a good one."""
        data = b"" if method == "GET" else json.dumps(body or {}).encode()
        session = f"X-Session-ID: {sid}\r\n" if sid else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n{session}"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        answer = self._answered(head.encode() + data)
        if not answer:  # a server may close a connection that nobody used for a while
            self._socket.close()
            self._socket = self._connected()
            answer = self._answered(head.encode() + data)
        if not _complete(answer):
            raise SystemExit(f"{method} {path}: the server closed the connection after {bytes(answer)!r}")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{method} {path}: {bytes(answer)!r}")
        return bytes(answer.partition(b"\r\n\r\n")[2])

    def _answered(self, request: bytes) -> bytearray:
        """What came until the answer was whole or the connection was closed."""
        answer = bytearray()
        try:
            self._socket.sendall(request)
            while not _complete(answer) and (chunk := self._socket.recv(65536)):
                answer += chunk
        except ConnectionError:
            pass
        return answer

    def episode(self, environment: str, *calls: tuple[str, dict[str, object]]) -> None:
        """Create, prompt, calls of which the last gives the reward 1, delete."""
        sid = self.begin(environment)
        answer = b""
        for name, arguments in calls:
            answer = self.ask("POST", f"/{environment}/call", {"name": name, "input": arguments}, sid)
        if b'"reward":1.0' not in answer.replace(b": ", b":"):
            raise SystemExit(f"An episode did not get the reward 1: {answer!r}")
        self.end(sid)

    def begin(self, environment: str) -> str:
        sid = self.ask("POST", "/create_session").partition(b"data: ")[2].split()[0].decode()
        self.ask("POST", "/create", {"env_name": environment, "split": "test", "index": 0}, sid)
        self.ask("GET", f"/{environment}/prompt", sid=sid)
        return sid

    def end(self, sid: str) -> None:
        self.ask("POST", "/delete", sid=sid)
        self.ask("POST", "/delete_session", sid=sid)

    def close(self) -> None:
        self._socket.close()


def _complete(answer: bytearray) -> bool:
    head, separator, body = bytes(answer).partition(b"\r\n\r\n")
    if not separator:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return body.endswith(b"0\r\n\r\n")
