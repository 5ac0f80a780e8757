"""`bench serve a2a`: the assessor of an arena package, for clients and agents of others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchflow.arena.needed_libraries import require_arena
from benchflow.cli.arguments import PATH, json_option, package_path
from benchflow.cli.failures import GOOD
from benchflow.cli.serve.serving_options import announce, token_words
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.serve.http_server import Port
    from benchflow.task.package import TaskPackage


@click.command()
@package_path
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=0, show_default=True, help="Port; 0 for a free one."
)
@click.option("--token-file", type=PATH, metavar="FILE", help="File with the token; default: a random token.")
@click.option(
    "--agent-port", type=click.IntRange(0, 65535), metavar="N", default=0, show_default=True, help="Port of the agents."
)
@click.option(
    "--agent-token-file", type=PATH, metavar="FILE", help="File with the agents' token; default: a random token."
)
@click.option("--no-token", is_flag=True, help="Accept requests without a token; on loopback only.")
@click.option(
    "--path", "where", metavar="PATH", help="Path of the assessor; default: / with a token, otherwise a random one."
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="HOST[:PORT]", help="Allow participants on this host; repeatable."
)
@click.option(
    "--max-games",
    type=click.IntRange(min=1),
    metavar="N",
    default=16,
    show_default=True,
    help="Maximum number of concurrent games.",
)
@click.option(
    "--game-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=3600.0,
    show_default=True,
    metavar="SEC",
    help="Time limit for a game.",
)
@json_option
def a2a(
    path: Path,
    host: str,
    port: int,
    token_file: Path | None,
    agent_port: int,
    agent_token_file: Path | None,
    no_token: bool,
    where: str | None,
    hosts: tuple[str, ...],
    max_games: int,
    game_timeout: float,
    as_json: bool,
) -> int:
    """Serve the assessor of an arena package over A2A, so that other people's agents can play its game.

    A client sends {"participants": {ROLE: URL}, "config": {"seed": N}} and reads the verdict from the artifact. The
    assessor only calls participants on hosts given with --allow-host and, if it listens on loopback, on this machine.
    There are two ports with separate tokens: the agents' port returns the rules of the game and nothing else.
    """
    require_arena()
    from benchflow.serve.a2a.reachable import Reachable, read_hosts
    from benchflow.serve.a2a.served_assessor import AssessorServer
    from benchflow.serve.http_server import open_port, serve
    from benchflow.serve.server_log import ServerLog
    from cube.access import is_loopback

    if where is not None and not re.fullmatch(r"/[A-Za-z0-9_.~/-]*", where):
        raise UsageError(f"--path takes a path such as /assess, not {where[:60]!r}.", code="usage")
    package, named, log = _package(path), read_hosts(hosts), ServerLog()
    harness = open_port(host, port, token_file=token_file, no_token=no_token)
    try:
        agent = open_port(host, agent_port, token_file=agent_token_file, no_token=no_token)
        _require_different(harness, agent)
        reachable = Reachable(is_loopback(harness.listener.getsockname()[0]), named)
        server = AssessorServer(package, reachable, log, most_games=max_games, game_timeout=game_timeout, path=where)
    except BaseException:
        harness.listener.close()
        raise
    url = server.harness_url(harness)

    def say() -> None:
        fields = {"url": url, "token": harness.token, "agent_url": agent.url, "agent_token": agent.token}
        words = [token_words(harness.token, token_file), token_words(agent.token, agent_token_file)]
        sentence = (
            f"Serving the assessor of {package.name} over A2A at {url} ({words[0]}); rules for agents at {agent.url}"
            f" ({words[1]}); Ctrl+C to stop"
        )
        announce("a2a", sentence, fields, as_json=as_json)

    serve(server.applications(harness, agent), server.running, say, log)
    return GOOD


def _package(path: Path) -> TaskPackage:
    from benchflow.cli.tasks.selection import one_package
    from benchflow.errors import IssuesError
    from benchflow.serve.a2a.served_assessor import served_strategy
    from benchflow.task.package import load_package

    package = load_package(one_package(path).path)
    IssuesError.require(package, package.issues)
    served_strategy(package)
    return package


def _require_different(harness: Port, agent: Port) -> None:
    if harness.token is not None and harness.token == agent.token:
        agent.listener.close()
        raise UsageError("The tokens of the harness and the agents must differ.", code="token")
