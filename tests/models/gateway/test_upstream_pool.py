"""Connections to upstreams over real sockets: kept, cut, too slow, through proxies and with TLS."""

import asyncio
import contextlib
import ssl
import subprocess

import pytest

from benchflow.models.gateway import Patience
from benchflow.models.gateway.upstream.upstream_pool import UpstreamPool
from benchflow.models.gateway.upstream.upstream_wire import WireError, WireTimeout
from raw_upstream import Stream, Upstream, answer

pytestmark = pytest.mark.anyio

CHUNKED = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def served(handler, **options):
    tasks = []

    async def handled(reader, writer):
        tasks.append(asyncio.current_task())
        await handler(reader, writer)

    server = await asyncio.start_server(handled, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if tasks:
            await asyncio.wait(tasks, timeout=10)


@contextlib.asynccontextmanager
async def pooled(answer_sec=20.0):
    pool = UpstreamPool(Patience(connect_sec=5.0, answer_sec=answer_sec))
    try:
        yield pool
    finally:
        pool.close()


def asked(pool, port):
    return pool.asked("POST", f"http://127.0.0.1:{port}", "/chat", {}, b"{}")


async def fetched(pool, base, *, content=b"{}", headers=None):
    pieces = []
    async with pool.asked("POST", base, "/chat", headers or {}, content) as response:
        while piece := await response.piece():
            pieces.append(piece)
    return response.status, b"".join(pieces)


def connections(handler):
    """The handler, and the list of the connections that it got."""
    seen = []

    async def counted(reader, writer):
        seen.append(writer)
        await handler(reader, writer)

    return counted, seen


async def test_one_connection_serves_calls_that_follow_each_other():
    upstream = Upstream([Stream([b"a", b"b"]), answer(b"whole"), answer(b"", 429)])
    handler, seen = connections(upstream.serve)
    async with served(handler) as port, pooled() as pool:
        base = f"http://127.0.0.1:{port}/v1"
        assert [await fetched(pool, base) for _ in range(3)] == [(200, b"ab"), (200, b"whole"), (429, b"")]
        assert (len(seen), upstream.asked[0].target) == (1, "/v1/chat")
        assert upstream.asked[0].headers["host"] == f"127.0.0.1:{port}"


async def test_an_answer_that_is_left_takes_its_connection_with_it():
    upstream = Upstream([Stream([b"a"], hang=True), answer(b"next")])
    handler, seen = connections(upstream.serve)
    async with served(handler) as port, pooled() as pool:
        base = f"http://127.0.0.1:{port}"
        async with asked(pool, port) as response:
            assert await response.piece() == b"a"
        await asyncio.wait_for(upstream.left.wait(), 10)
        assert await fetched(pool, base) == (200, b"next")
        assert len(seen) == 2


async def test_a_connection_that_the_server_closed_is_not_used_again():
    closed = asyncio.Event()

    async def once(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        closed.set()

    async with served(once) as port, pooled() as pool:
        base = f"http://127.0.0.1:{port}"
        assert await fetched(pool, base) == (200, b"ok")
        await closed.wait()
        await asyncio.sleep(0.05)
        assert await fetched(pool, base) == (200, b"ok")


@pytest.mark.parametrize(
    ("sent", "pieces"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 X\r\ncontent-", b""),
        (b"SSH-2.0-OpenSSH\r\n\r\n", b""),
        (CHUNKED + b"3\r\nabc\r\n5\r\nab", b"abcab"),
        (CHUNKED + b"3\r\nabc\r\nzz\r\n", b"abc"),
        (b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 200 X\r\nx: " + b"y" * 200_000, b""),
    ],
    ids=["nothing", "half-head", "no-http", "half-chunk", "bad-chunk", "short-body", "huge-head"],
)
async def test_what_came_before_an_answer_breaks_off_is_passed_on_first(sent, pieces):
    async def broken(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    got = b""
    async with served(broken) as port, pooled() as pool:
        with pytest.raises(WireError):  # noqa: PT012 - what was read before is compared
            async with asked(pool, port) as response:
                while piece := await response.piece():
                    got += piece
    assert got == pieces


async def test_a_body_without_a_length_ends_with_the_connection():
    async def old(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 X\r\n\r\nto the end")
        writer.close()

    async with served(old) as port, pooled() as pool:
        assert await fetched(pool, f"http://127.0.0.1:{port}") == (200, b"to the end")


async def test_only_the_server_is_blamed_for_its_silence():
    quiet = asyncio.Event()

    async def slow(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(CHUNKED + b"3\r\nabc\r\n")
        await quiet.wait()
        writer.write(b"3\r\ndef\r\n")
        await reader.read()
        writer.close()

    async with served(slow) as port, pooled(answer_sec=0.3) as pool, asked(pool, port) as response:
        assert await response.piece() == b"abc"
        await asyncio.sleep(0.9)  # the caller is slow: three times what the server may take
        quiet.set()
        assert await response.piece() == b"def"
        with pytest.raises(WireTimeout, match=r"nothing came for 0\.3 s"):
            await response.piece()


async def test_a_server_cannot_fill_the_memory_of_a_slow_caller():
    written = 0

    async def flood(reader, writer):
        nonlocal written
        await reader.readuntil(b"{}")
        writer.write(CHUNKED)
        block = b"%x\r\n%s\r\n" % (1 << 16, bytes(1 << 16))
        with contextlib.suppress(ConnectionError):
            for _ in range(1600):  # 100 MB
                writer.write(block)
                await writer.drain()
                written += 1 << 16
        writer.close()

    async with served(flood) as port, pooled() as pool, asked(pool, port) as response:
        assert await response.piece()
        before = -1
        while written != before:
            before = written
            await asyncio.sleep(0.2)
        assert written < 32 << 20
        assert await response.piece()


@pytest.mark.parametrize("headers", [{"x-name": "a\r\nhost: other"}, {"x-name": "€"}])
async def test_a_header_that_is_not_http_is_not_sent(headers):
    upstream = Upstream([answer(b"")])
    async with served(upstream.serve) as port, pooled() as pool:
        with pytest.raises(WireError, match="cannot be written as HTTP"):
            await fetched(pool, f"http://127.0.0.1:{port}", headers=headers)
    assert upstream.asked == []


async def test_a_plain_request_is_sent_to_the_proxy_of_the_machine(monkeypatch):
    proxy = Upstream([answer(b"through a proxy")])
    async with served(proxy.serve) as port, pooled() as pool:
        monkeypatch.setenv("http_proxy", f"http://user:p%40ss@127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "direct.test")
        assert await fetched(pool, "http://models.test/v1") == (200, b"through a proxy")
        (asked,) = proxy.asked
        assert asked.target == "http://models.test/v1/chat"
        assert asked.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"
        with pytest.raises(WireError):
            await fetched(pool, "http://direct.test:1/v1")
        assert len(proxy.asked) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1"
    command = f"openssl req -x509 {key} -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=models.test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:models.test"]
    subprocess.run([*command.split(), *names], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def tls(certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


async def test_certificates_are_checked(tls, certificate, monkeypatch):
    upstream = Upstream([Stream([b"a", b"b"]), answer(b"again")])
    async with served(upstream.serve, ssl=tls) as port, pooled() as pool:
        with pytest.raises(WireError, match="certificate verify failed"):
            await fetched(pool, f"https://127.0.0.1:{port}")
        assert upstream.asked == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    async with served(upstream.serve, ssl=tls) as port, pooled() as pool:
        assert await fetched(pool, f"https://127.0.0.1:{port}") == (200, b"ab")
        assert await fetched(pool, f"https://127.0.0.1:{port}") == (200, b"again")


@pytest.mark.parametrize("refuses", [False, True])
async def test_tls_goes_through_a_proxy_which_sees_nothing_of_it(refuses, tls, certificate, monkeypatch):
    upstream = Upstream([answer(b"secret")])
    seen = b""

    async def copy(reader, writer):
        nonlocal seen
        while data := await reader.read(65536):
            seen += data
            writer.write(data)
        writer.close()

    async with served(upstream.serve, ssl=tls) as port:

        async def proxy(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"CONNECT models.test:443 HTTP/1.1\r\n")
            if refuses:
                writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
                writer.close()
                return
            there, back = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(copy(reader, back), copy(there, writer))

        async with served(proxy) as proxy_port, pooled() as pool:
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
            monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy_port}")
            if refuses:
                with pytest.raises(WireError, match=r"the proxy 127\.0\.0\.1 refused with status 403"):
                    await fetched(pool, "https://models.test")
                return
            assert await fetched(pool, "https://models.test") == (200, b"secret")
    assert upstream.asked[0].headers["host"] == "models.test"
    assert b"secret" not in seen


class SocksProxy:
    """A SOCKS5 proxy with which every name leads to one port of this machine."""

    def __init__(self, port, password=None, refusal=0):
        self.port, self.password, self.refusal, self.asked = port, password, refusal, []

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if await self._agreed(reader, writer):
                await self._carry(reader, writer)
        writer.close()

    async def _agreed(self, reader, writer):
        methods = await reader.readexactly((await reader.readexactly(2))[1])
        wanted = 0 if self.password is None else 2
        writer.write(bytes([5, wanted if wanted in methods else 255]))
        if self.password is not None and wanted in methods:
            await reader.readexactly(1)
            user, password = [await reader.readexactly((await reader.readexactly(1))[0]) for _ in range(2)]
            writer.write(bytes([1, 0 if (user, password) == (b"user", self.password) else 1]))
            return (user, password) == (b"user", self.password)
        return wanted in methods

    async def _carry(self, reader, writer):
        *_, kind = await reader.readexactly(4)
        size = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
        self.asked.append((kind, await reader.readexactly(size), int.from_bytes(await reader.readexactly(2), "big")))
        writer.write(bytes([5, self.refusal, 0, 1, 0, 0, 0, 0, 0, 0]))
        if self.refusal:
            return
        above, below = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(_copied(reader, below), _copied(above, writer))


async def _copied(reader, writer):
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_calls_go_through_a_socks_proxy_which_resolves_the_name(scheme, tls, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    upstream = Upstream([answer(b"behind"), answer(b"again")])
    async with served(upstream.serve, ssl=tls if scheme == "https" else None) as port:
        proxy = SocksProxy(port, password=b"p@ss")
        async with served(proxy.serve) as proxy_port:
            monkeypatch.setenv("all_proxy", f"socks5h://user:p%40ss@127.0.0.1:{proxy_port}")
            async with pooled() as pool:
                assert await fetched(pool, f"{scheme}://models.test/v1") == (200, b"behind")
                assert await fetched(pool, f"{scheme}://models.test/v1") == (200, b"again")
    assert proxy.asked == [(3, b"models.test", 443 if scheme == "https" else 80)]  # and the connection was kept
    assert [each.target for each in upstream.asked] == ["/v1/chat"] * 2


@pytest.mark.parametrize(
    ("url", "settings", "said"),
    [
        ("socks5://127.0.0.1:{}", {"refusal": 5}, "gave no connection to 10.9.8.7: the connection was refused"),
        ("socks5://127.0.0.1:{}", {"password": b"x"}, "accepts none of the ways to authenticate"),
        ("socks5://user:y@127.0.0.1:{}", {"password": b"x"}, "refused the user and the password"),
        ("socks4://127.0.0.1:{}", {}, "proxies of the kind socks4 are not supported; supported: http, https, socks5"),
    ],
)
async def test_a_proxy_that_gives_no_connection_says_why(url, settings, said, monkeypatch):
    proxy = SocksProxy(1, **settings)
    async with served(proxy.serve) as port, pooled() as pool:
        monkeypatch.setenv("http_proxy", url.format(port))
        with pytest.raises(WireError, match=said):
            await fetched(pool, "http://10.9.8.7/v1")
    assert all(kind == 1 for kind, *_ in proxy.asked)
