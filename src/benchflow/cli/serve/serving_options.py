"""Options that all servers share, and how they begin: listen, announce in one line, serve until a signal."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from benchflow.cli.arguments import ISOLATIONS, PATH, complete_paths, json_option
from benchflow.cli.rollouts.model_options import served_limit_options
from benchflow.cli.terminal import emit, printable
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.serve.http_server import Port
    from benchflow.serve.opening import EpisodeSettings, Opener
    from benchflow.serve.remote.cluster_opener import ClusterOpener
    from benchflow.serve.sessions import Sessions

    AnyOpener = Opener | ClusterOpener

Command = TypeVar("Command", bound=Callable[..., Any])
_NEEDED: Final = ("httpx", "mcp", "starlette", "uvicorn", "websockets")
_OPTIONS: Final = (
    click.argument("sources", metavar="PATH|cube:NAME...", nargs=-1, required=True, shell_complete=complete_paths),
    click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to listen on."),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        metavar="N",
        default=0,
        show_default=True,
        help="Port; 0 for a free one.",
    ),
    click.option("--token-file", type=PATH, metavar="FILE", help="File with the token; default: a random token."),
    click.option("--no-token", is_flag=True, help="Accept requests without a token; on loopback only."),
    click.option(
        "--sandbox", default="auto", show_default=True, metavar="NAME", help="Sandbox to use; see `bench sandboxes`."
    ),
    click.option("--base-image", metavar="host|NAME", help="Substitute for a base image that is not available."),
    click.option(
        "--pull",
        type=click.Choice(["missing", "always", "never"]),
        default="missing",
        help="When to pull images from their registries.",
    ),
    click.option(
        "--isolation",
        type=click.Choice(ISOLATIONS),
        metavar="VALUE",
        help="Which of the agent's changes verifiers see, overriding the packages.",
    ),
    click.option(
        "--agent-timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SEC",
        help="Time limit for a step, overriding the package's.",
    ),
    click.option(
        "--max-calls",
        type=click.IntRange(min=1),
        metavar="N",
        help="Maximum number of tool calls per episode; the episode is then scored.",
    ),
    click.option("--records", type=PATH, metavar="DIR", help="Record the model calls of judges and users in DIR."),
    served_limit_options,
    click.option(
        "--max-sessions",
        type=click.IntRange(min=1),
        metavar="N",
        default=256,
        show_default=True,
        help="Maximum number of concurrent episodes.",
    ),
    click.option(
        "--reap-after",
        type=click.FloatRange(min=0, min_open=True),
        default=900.0,
        show_default=True,
        metavar="SEC",
        help="Close sessions that have been idle for this long.",
    ),
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Run episodes on this machine, or on the nodes of a Ray cluster.",
    ),
    click.option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Address of the Ray cluster; default: RAY_ADDRESS, or the cluster of this machine.",
    ),
    json_option,
)


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """The values of the shared options."""

    sources: tuple[str, ...]
    host: str
    port: int
    token_file: Path | None
    no_token: bool
    sandbox: str
    base_image: str | None
    pull: str
    isolation: str | None
    agent_timeout: float | None
    max_calls: int | None
    records: Path | None
    max_model_calls: int | None
    max_tokens: int | None
    max_cost_usd: float | None
    max_model_time: float | None
    server_max_model_calls: int | None
    server_max_tokens: int | None
    server_max_cost_usd: float | None
    server_max_model_time: float | None
    concurrent_calls: int | None
    max_sessions: int
    reap_after: float
    engine: str
    ray_address: str | None
    as_json: bool

    def opener(self) -> AnyOpener:
        """What is served; refuses wrong usage before anything listens."""
        require_extra()
        if self.ray_address is not None and self.engine != "ray":
            raise UsageError("--ray-address applies to --engine ray.", code="unused-option")
        from benchflow.models.gateway.call_limits import CallLimits
        from benchflow.serve.opening import EpisodeSettings, Opener
        from benchflow.serve.package_episode import EpisodeLimits

        limits = EpisodeLimits(self.agent_timeout, self.max_calls)
        each = CallLimits(self.max_model_calls, self.max_tokens, self.max_cost_usd, self.max_model_time)
        settings = EpisodeSettings(self.sandbox, self.base_image, self.pull, self.isolation, limits, each)
        whole = (
            self.server_max_model_calls,
            self.server_max_tokens,
            self.server_max_cost_usd,
            self.server_max_model_time,
            self.concurrent_calls,
        )
        if self.engine == "ray":
            if any(limit is not None for limit in whole):
                message = (
                    "Limits on the model calls of the whole server cannot be held over the nodes of --engine ray; limit"
                    " each episode instead."
                )
                raise UsageError(message, code="ray-limit")
            return self._on_nodes(settings)
        return Opener(self.sources, settings, records=self.records, server_limits=CallLimits(*whole))

    def _on_nodes(self, settings: EpisodeSettings) -> ClusterOpener:
        """The same on a cluster that this process is connected to now."""
        from benchflow.serve.remote.ray_opener import ray_opener
        from benchflow.serve.server_log import ServerLog

        return ray_opener(self.sources, settings, self.ray_address, records=self.records, log=ServerLog())

    def sessions(self, opener: AnyOpener) -> Sessions:
        """A table of sessions that writes its log to standard error."""
        from benchflow.serve.server_log import ServerLog
        from benchflow.serve.sessions import Sessions

        return Sessions(opener.open, most=self.max_sessions, reap_sec=self.reap_after, log=ServerLog())

    def open_port(self) -> Port:
        from benchflow.serve.http_server import open_port

        return open_port(self.host, self.port, token_file=self.token_file, no_token=self.no_token)

    def announcement(self, protocol: str, how: str, opener: AnyOpener, port: Port) -> Callable[[], None]:
        """Says that everything is served at one port; `how` names the protocol to people, as in "over ORS"."""

        def say() -> None:
            names, words = ", ".join(opener.tasks.environments), token_words(port.token, self.token_file)
            sentence = f"Serving {names} {how} at {port.url} ({words}; Ctrl+C to stop)"
            announce(protocol, sentence, {"url": port.url, "token": port.token}, as_json=self.as_json)

        return say


def serving_options(command: Command) -> Command:
    """All of them; the command takes them as the fields of `ServingOptions`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def background(
    opener: AnyOpener, sessions: Sessions, own: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
) -> Callable[[], Any]:
    """What lives as long as a server: what is its own, its sessions, the backends and benchmarks that they use."""

    @asynccontextmanager
    async def run() -> AsyncIterator[None]:
        async with opener, sessions.running(), own():
            yield

    return run


def announce(protocol: str, sentence: str, fields: dict[str, str | None], *, as_json: bool) -> None:
    """The one line that says where a server listens."""
    if as_json:
        emit(json.dumps({"protocol": protocol, **fields}))
    else:
        emit(printable(sentence))
    if sys.stdout is not None:
        sys.stdout.flush()


def token_words(token: str | None, file: Path | None) -> str:
    """What the announcement for people says about a token: it shows only one that is in no file."""
    return f"token in {file}" if file is not None else f"token {token}" if token is not None else "no token"


def require_extra() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        from cube.extras import extra_command

        raise UsageError(f"Servers need the extra 'serve': {extra_command('serve')}", code="extra-missing")
