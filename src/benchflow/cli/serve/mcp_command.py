"""`bench serve mcp`: a task for one agent that connects itself, and its harness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchflow.cli.arguments import PATH
from benchflow.cli.failures import GOOD
from benchflow.cli.serve.serving_options import ServingOptions, announce, background, serving_options, token_words
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.serve.http_server import Port


@click.command()
@click.option("--task", "task_id", metavar="ID", help="Start with this task; not needed if there is only one.")
@click.option(
    "--agent-port", type=click.IntRange(0, 65535), metavar="N", default=0, show_default=True, help="Port of the agent."
)
@click.option(
    "--agent-token-file", type=PATH, metavar="FILE", help="File with the agent's token; default: a random token."
)
@serving_options
def mcp(task_id: str | None, agent_port: int, agent_token_file: Path | None, **values: Any) -> int:
    """Serve a task over MCP to one agent: its tools, its objective, and submit.

    There are two ports with separate tokens. The agent's port speaks MCP and never returns a reward. The harness's
    port speaks JSON-RPC: cube/reset, cube/episode, cube/end. A single task starts at once; if there are several,
    select one with --task or cube/reset.
    """
    options = ServingOptions(**values)
    opener = options.opener()
    from benchflow.serve.http_server import open_port, serve
    from benchflow.serve.mcp.agent_server import AgentServer

    sessions = options.sessions(opener)
    server = AgentServer(opener.tasks, sessions, task_id)
    harness = options.open_port()
    try:
        agent = open_port(options.host, agent_port, token_file=agent_token_file, no_token=options.no_token)
        _require_different(harness, agent)
    except BaseException:
        harness.listener.close()
        raise
    path = server.harness_path(harness.token)
    urls = {"url": f"{harness.url}{path}", "agent_url": f"{agent.url}{server.agent_path}"}

    def say() -> None:
        tokens = {"token": harness.token, "agent_token": agent.token}
        words = [token_words(harness.token, options.token_file), token_words(agent.token, agent_token_file)]
        sentence = f"Serving over MCP: agent {urls['agent_url']} ({words[1]}), harness {urls['url']} ({words[0]})"
        announce("mcp", sentence, {**urls, **tokens}, as_json=options.as_json)

    serve(server.applications(harness, agent), background(opener, sessions, server.running), say, sessions.log)
    return GOOD


def _require_different(harness: Port, agent: Port) -> None:
    if harness.token is not None and harness.token == agent.token:
        agent.listener.close()
        raise UsageError("The tokens of the harness and the agent must differ.", code="token")
