"""A2A peers for tests: executors of ours and raw applications, served in this process; stock ones as processes."""

import json
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from peers import peer_environment

from benchflow.arena.a2a_app import a2a_app
from benchflow.arena.a2a_cards import Card
from benchflow.arena.a2a_serving import serving
from benchflow.arena.a2a_types import Reply
from cube.listening import listen, make_server, url_of

SCRIPTS = Path(__file__).parent / "arena" / "peers"
STOCK = {
    "1.x": ("a2a-sdk==1.3.0", "a2a-sdk[http-server]==1.3.0", "uvicorn", "stock_v1.py"),
    "0.3": ("a2a-sdk==0.3.26", "a2a-sdk[http-server]==0.3.26", "uvicorn", "stock_v03.py"),
}


def stock_python(version):
    """The interpreter with the stock SDK of a version."""
    return str(peer_environment(*STOCK[version][:-1]) / "python")


def stock_command(version, *arguments):
    return [stock_python(version), str(SCRIPTS / STOCK[version][-1]), *arguments]


@contextmanager
def stock_agent(version, kind, folder):
    """The address of an agent made with a stock SDK."""
    port_file = folder / f"{version}-{kind}-{time.monotonic_ns()}"
    process = subprocess.Popen(stock_command(version, "serve", kind, str(port_file)))
    try:
        yield wait_for_url(process, port_file)
    finally:
        process.kill()
        process.wait()


def wait_for_url(process, port_file):
    deadline = time.monotonic() + 120
    while not (port_file.exists() and port_file.read_text()):
        assert process.poll() is None, "the agent ended"
        assert time.monotonic() < deadline, "the agent did not start"
        time.sleep(0.05)
    return port_file.read_text()


def stock_ask(version, url, text, *options):
    """The events that a stock client prints for one message."""
    command = stock_command(version, "ask", url, *options)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class Says:
    """An executor that answers with texts in turn, the last again and again; it keeps what it was asked."""

    def __init__(self, *texts):
        self.texts, self.asked = texts, []

    async def answer(self, message, context_id, updates):
        self.asked.append((context_id, message.text))
        mine = sum(context == context_id for context, _ in self.asked)
        return Reply.text(self.texts[min(mine, len(self.texts)) - 1])

    async def cancel(self, context_id):
        pass


@asynccontextmanager
async def served(executor, token=None, **settings):
    """The address of an executor that is served for as long as the block lasts."""
    listener = listen("127.0.0.1", 0)
    url = url_of(listener) + settings.get("prefix", "")
    app = a2a_app(Card("test", "A peer of a test.", url), executor, **settings)
    async with serving(app, listener, token):
        yield url


@asynccontextmanager
async def served_raw(app):
    """The address of any application."""
    listener = listen("127.0.0.1", 0)
    server = make_server(app, lifespan="off", log_config=None)
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve, [listener])
        yield url_of(listener)
        server.should_exit = server.force_exit = True
    listener.close()
