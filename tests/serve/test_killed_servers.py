"""Servers that are killed: nothing of them runs on, and the next start finds nothing in its way."""

import os
import signal
from contextlib import contextmanager

import anyio
import httpx
import pytest

from cube.client import TaskClient
from episode_server import processes, serving, until, write_package
from mcp_players import mcp_player

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]


def over_nemo_gym(server, command):
    """Begin an episode and run a command in it."""
    http = httpx.Client(base_url=server.url, timeout=120)
    with http:
        [row] = http.get("/rows").text.splitlines()
        assert http.post("/seed_session", content=row).status_code == 200
        assert "exit code 0" in http.post("/bash", json={"command": command}).text


def over_mcp(server, command):
    async def act():
        async with mcp_player(server.address["agent_url"], None) as client:
            await client.call_tool("bash", {"command": command})

    with TaskClient(server.url, timeout=120) as harness:
        harness.reset("set/plain")
        anyio.run(act)


@contextmanager
def served(tmp_path, wire):
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    with serving(tmp_path, tmp_path / "set", "--sandbox", "local", wire=wire, TMPDIR=str(scratch)) as server:
        yield server


@pytest.mark.parametrize(("wire", "act"), [("nemo-gym", over_nemo_gym), ("mcp", over_mcp)])
def test_a_server_that_is_killed_leaves_nothing_behind(tmp_path, wire, act):
    write_package(tmp_path / "set/plain", "set/plain")
    mark = f"3{os.getpid()}.{len(wire)}"
    with served(tmp_path, wire) as server:
        act(server, f"nohup sleep {mark} >/dev/null 2>&1 &")
        until(lambda: processes(mark))
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not processes(mark))
    with served(tmp_path, wire) as server:
        act(server, "true")
        assert server.stop() == 0
    assert [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()] == []
