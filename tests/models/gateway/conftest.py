"""A gateway between a real HTTP client and a raw upstream."""

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from benchflow.files.redaction import make_redactor
from benchflow.models.gateway import Access, Gateway, Grant, GrantRequest, Patience
from benchflow.record import CallParts, CallPlace, ModelCalls, RolloutFolder, read_model_calls
from raw_upstream import KEY, Stream, Upstream

QUICK = Patience(retries=2, first_pause_sec=0.01, longest_pause_sec=5.0, connect_sec=5.0, answer_sec=20.0)


@dataclass
class Wired:
    """A client in a box, as far as the gateway can tell, and everything behind it."""

    upstream: Upstream
    gateway: Gateway
    grant: Grant
    access: Access
    client: httpx.AsyncClient
    folder: RolloutFolder

    async def post(self, path="/openai/v1/chat/completions", body=None, *, token=None, **options):
        headers = {"authorization": f"Bearer {token or self.access.token}", **options.pop("headers", {})}
        asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]} if body is None else body
        return await self.client.post(path, json=asked, headers=headers, **options)

    async def recorded(self):
        """Wait until there is a call in the record."""
        for _ in range(2000):
            if self.calls:
                return
            await asyncio.sleep(0.01)

    @property
    def calls(self):
        return list(read_model_calls(self.folder.model_calls))

    @property
    def parts(self):
        return CallParts(self.folder)


@pytest.fixture
def wired(tmp_path):
    """Opens gateways: `async with wired(answers, **settings) as it`."""

    @asynccontextmanager
    async def wire(answers, *, environ=None, patience=QUICK, job=None, place=None, **request):
        upstream = Upstream(answers if isinstance(answers, list) and not isinstance(answers, Stream) else [answers])
        async with AsyncExitStack() as stack:
            server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            known = {
                "OPENAI_API_KEY": KEY,
                "OPENAI_BASE_URL": f"{upstream.url}/v1",
                "ANTHROPIC_API_KEY": KEY,
                "ANTHROPIC_BASE_URL": upstream.url,
                "GEMINI_API_KEY": KEY,
                "GOOGLE_GEMINI_BASE_URL": upstream.url,
            }
            limits = {"limits": job} if job is not None else {}
            gateway = await stack.enter_async_context(Gateway(environ or known, patience=patience, **limits))
            folder = RolloutFolder(tmp_path)
            calls = ModelCalls(folder, make_redactor([KEY]))
            stack.callback(calls.close)
            grant = gateway.open(GrantRequest(calls, **request))
            listener = socket.create_server(("127.0.0.1", 0))
            access = grant.admit(place or CallPlace("agent"), listener)
            base = f"http://127.0.0.1:{access.port}"
            plain = httpx.AsyncClient(base_url=base, timeout=60, trust_env=False, verify=False)  # loads no certificates
            client = await stack.enter_async_context(plain)
            yield Wired(upstream, gateway, grant, access, client, folder)

    return wire
