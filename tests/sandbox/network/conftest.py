"""Real parts for egress tests: HTTP and TLS servers on loopback, and egresses in an event loop of their own.

Names end in `.test` and resolve to 127.0.0.1 by an injected resolver with an explicit permission; nothing
here leaves the machine.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import http.server
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from benchflow.sandbox.inside.egress_gateway import Role
from benchflow.sandbox.network.egress import Egress
from benchflow.sandbox.network.proxying.dialer import Dialer
from benchflow.sandbox.protocol import NetworkPolicy

LOOPBACK = ip_network("127.0.0.0/8")


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A dialler that is about to connect beyond loopback is stopped before it does, and fails the test."""
    strayed: list[str] = []
    connect = Dialer._connect

    async def guarded(self: Dialer, address: Any, port: int) -> socket.socket:
        if not address.is_loopback:
            strayed.append(f"{address}:{port}")
            raise OSError(errno.ENETUNREACH, "stopped by the test")
        return await connect(self, address, port)

    monkeypatch.setattr(Dialer, "_connect", guarded)
    yield
    assert strayed == []


async def resolve_tests(host: str) -> list[Any]:
    """Names below `.test` are on this machine, two of them elsewhere in private; others do not exist."""
    if host == "private.test":
        return [ip_address("10.1.2.3")]
    if host == "metadata.test":
        return [ip_address("169.254.169.254")]
    if host.endswith(".test"):
        return [ip_address("127.0.0.1")]
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


class LoopThread:
    """An event loop beside the test, so that blocking clients can be used."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = 20) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    """Whatever a handler did not foresee fails the test."""
    thread = LoopThread()
    yield thread
    thread.close()
    assert thread.errors == []


def listen(kind: int = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind(("127.0.0.1", 0))
    if kind == socket.SOCK_STREAM:
        sock.listen(64)
    return sock


@dataclass
class Served:
    """An egress and where it listens."""

    egress: Egress
    ports: dict[str, int]

    @property
    def proxy(self) -> str:
        return f"http://127.0.0.1:{self.ports['proxy']}"

    @property
    def verdicts(self) -> list[tuple[str, str, str]]:
        return [(attempt.channel, attempt.host, attempt.verdict) for attempt in self.egress.attempts]

    def dial(self, role: str = "proxy") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[role]), timeout=10)

    def exchange(self, data: bytes, role: str = "proxy") -> bytes:
        """Send bytes, say that no more come, and give back all that is answered."""
        with self.dial(role) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionResetError):
        while block := sock.recv(65536):
            data += block
    return data


@pytest.fixture
def serve(loop: LoopThread) -> Iterator[Callable[..., Served]]:
    """Start an egress: `serve("a.test", "*.b.test")` with an allowlist, `serve(mode="public")` without."""
    with ExitStack() as stack:

        def start(*hosts: str, mode: str = "allowlist", roles: tuple[Role, ...] = ("proxy",), **options: Any) -> Served:
            options = {"resolver": resolve_tests, "permitted": [LOOPBACK]} | options
            sockets: list[tuple[Role, socket.socket]] = [(role, listen()) for role in roles]
            ports: dict[str, int] = {role: sock.getsockname()[1] for role, sock in sockets}
            if "dns" in roles:
                datagrams = listen(socket.SOCK_DGRAM)
                sockets.append(("dns", datagrams))
                ports["udp"] = datagrams.getsockname()[1]

            async def begin() -> Egress:
                egress = Egress(NetworkPolicy(mode, hosts), **options)  # type: ignore[arg-type]
                await egress.start(sockets)
                return egress

            egress = loop.run(begin())
            stack.callback(lambda: loop.run(egress.stop()))
            return Served(egress, ports)

        yield start


@dataclass
class Origin:
    """A server that remembers what it was asked."""

    port: int
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    connections: int = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    origin: Origin

    def setup(self) -> None:
        self.origin.connections += 1
        super().setup()

    def answer(self) -> None:
        body = self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.origin.requests.append((self.command, self.path, headers, body))
        if self.path.startswith("/chunked"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for word in (b"one", b"two", b"three"):
                self.wfile.write(b"%x;note=1\r\n%s\r\n" % (len(word), word))
            self.wfile.write(b"0\r\nTrailer: x\r\n\r\n")
            return
        if self.path.startswith("/until-close"):
            self.close_connection = True
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\nto the end")
            return
        if self.path.startswith("/nonsense"):
            self.close_connection = True
            self.wfile.write(b"\x00\x01 nothing of the kind\r\n\r\n")
            return
        data = body or f"hello from {self.headers.get('Host')}".encode()
        if self.path.startswith("/big/"):
            data = bytes(int(self.path.rsplit("/", 1)[1]))
        self.send_response({"/empty": 204, "/down": 503}.get(self.path, 200))
        if self.path != "/empty":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD" and self.path != "/empty":
            self.wfile.write(data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    do_GET = do_POST = do_HEAD = do_PUT = answer  # noqa: N815 - the names that the server looks for

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the name it has above


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients break off in these tests."""


@pytest.fixture(scope="session")
def certificate() -> Iterator[Path]:
    """A self-signed certificate for `good.test` and `*.wild.test` that every user may read, key included."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "good.test")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("good.test"), x509.DNSName("*.wild.test"), x509.IPAddress(ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        path = Path(file.name)
        path.chmod(0o644)
        path.write_bytes(
            key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            + signed.public_bytes(encoding)
        )
        yield path


@pytest.fixture
def origins(certificate: Path) -> Iterator[Callable[..., Origin]]:
    """Start a server: `origins()` on a free port, `origins("127.77.0.1", 443, tls=True)` at a given one."""
    with ExitStack() as stack:

        def start(host: str = "127.0.0.1", port: int = 0, *, tls: bool = False) -> Origin:
            server = stack.enter_context(_Server((host, port), _Handler))
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(certificate)
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            origin = Origin(server.server_address[1])
            server.RequestHandlerClass = type("Handler", (_Handler,), {"origin": origin})
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return origin

        yield start


@pytest.fixture
def origin(origins: Callable[..., Origin]) -> Origin:
    """A plain HTTP server."""
    return origins()


@pytest.fixture
def tls_origin(origins: Callable[..., Origin]) -> Origin:
    """The same over TLS."""
    return origins(tls=True)
