"""What a box may send: garbage, gigabytes, tokens of others. It gets an answer, and nothing gets out."""

import asyncio
import socket

import pytest

from benchflow.models.gateway import GrantRequest
from benchflow.models.gateway.pass_through import MAX_REQUEST
from benchflow.record import CallPlace
from raw_upstream import OPENAI, answer

pytestmark = pytest.mark.anyio


SMUGGLED = (
    b"POST /openai/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n"
    b"authorization: Bearer TOKEN\r\n\r\n0\r\n\r\nGET /openai/v1/models HTTP/1.1\r\n\r\n"
)


async def raw(port, data, *, patience=20.0):
    """What comes back on a bare connection until it ends or is silent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(1 << 16), patience)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01garbage\r\n\r\n",
        b"GET http://evil.example/openai/v1/models HTTP/1.1\r\nhost: evil\r\nauthorization: Bearer TOKEN\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nhost: evil.example:443\r\nauthorization: Bearer TOKEN\r\n\r\n",
        SMUGGLED,
        b"GET /openai/v1/models HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"GET /openai/v1/models HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * (1 << 17) + b"\r\n\r\n",
    ],
    ids=["garbage", "absolute", "connect", "smuggled", "websocket", "long-header"],
)
async def test_garbage_is_refused_and_reaches_nobody(data, wired):
    async with wired(answer(OPENAI)) as it:
        said = await raw(it.access.port, data.replace(b"TOKEN", it.access.token.encode()))
        assert said == b"" or said.split()[1] in (b"400", b"401", b"404", b"431")
        assert it.upstream.asked == []
        assert (await it.post()).status_code == 200


async def test_the_token_of_another_rollout_counts_only_there(wired):
    async with wired(answer(OPENAI)) as it:
        other = it.gateway.open(GrantRequest())
        access = other.admit(CallPlace("agent"), socket.create_server(("127.0.0.1", 0)))
        for token in (access.token, "nonsense", it.access.token + "x"):
            refused = await it.post(token=token)
            assert refused.status_code == 401
        nobody = await it.client.post("/openai/v1/responses", json={})
        assert nobody.status_code == 401
        both = await it.post(headers={"x-api-key": access.token})
        assert both.status_code == 401
        assert it.upstream.asked == []
        assert (it.grant.usage, other.usage) == ({}, {})
        await other.close()


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000, b'"text"'])
async def test_a_body_that_is_no_object_is_refused_in_the_dialect(body, wired):
    async with wired(answer(OPENAI)) as it:
        headers = {"x-api-key": it.access.token, "content-type": "application/json"}
        reply = await it.client.post("/anthropic/v1/messages", content=body, headers=headers)
        assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
        assert it.upstream.asked == []


async def test_gigabytes_are_refused_before_they_are_read(wired):
    async with wired(answer(OPENAI)) as it:
        _, writer = await asyncio.open_connection("127.0.0.1", it.access.port)
        head = f"POST /openai/v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {it.access.token}\r\n"
        writer.write(f"{head}content-length: {5 << 30}\r\n\r\n".encode())
        block, sent = b"x" * (1 << 20), 0
        try:
            while sent < 4 * MAX_REQUEST:
                writer.write(block)
                await asyncio.wait_for(writer.drain(), 10)
                sent += len(block)
        except (ConnectionError, TimeoutError):
            pass
        assert sent < 4 * MAX_REQUEST
        writer.close()
        assert (await it.post()).status_code == 200


async def test_a_flood_of_connections_waits_and_leaves_the_others_alone(wired):
    async with wired(answer(OPENAI)) as it:
        other = it.gateway.open(GrantRequest())
        access = other.admit(CallPlace("agent"), socket.create_server(("127.0.0.1", 0), backlog=1000))
        flood = [await asyncio.open_connection("127.0.0.1", access.port) for _ in range(400)]
        assert (await it.post()).status_code == 200
        for _, writer in flood:
            writer.close()
        await other.close()


async def test_refused_calls_cannot_fill_the_disk(wired):
    async with wired(answer(OPENAI)) as it:
        it.grant._refusals = 95
        for _ in range(10):
            await it.client.post("/openai/v1/responses", content=b"{", headers={"api-key": it.access.token})
        assert len(it.calls) == 5


async def test_models_cannot_be_called_while_a_verifier_works(wired):
    async with wired(answer(OPENAI)) as it:
        it.grant.suspended = True
        assert (await it.post()).status_code == 403
        it.grant.suspended = False
        assert (await it.post()).status_code == 200
