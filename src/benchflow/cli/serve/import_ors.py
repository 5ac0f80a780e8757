"""`bench tasks import-ors`: tasks of an environment that another server offers over ORS, as packages."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import click

from benchflow.cli.arguments import PATH, json_option
from benchflow.cli.failures import GOOD
from benchflow.cli.terminal import emit, emit_json, printable
from benchflow.errors import UsageError


@click.command("import-ors")
@click.argument("url", metavar="URL")
@click.argument("target", metavar="OUT", type=PATH)
@click.option("--environment", metavar="NAME", help="Environment to import; default: the first on the server.")
@click.option("--split", metavar="NAME", help="Split to import; default: the first of the environment.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Import only the first N tasks.")
@click.option(
    "--token-env", metavar="NAME", help="Environment variable with the token; only its name is stored, never its value."
)
@json_option
def import_ors(
    url: str,
    target: Path,
    environment: str | None,
    split: str | None,
    limit: int | None,
    token_env: str | None,
    as_json: bool,
) -> int:
    """Write the tasks of an ORS environment at URL as packages below the folder OUT.

    Each package is pinned to the specification that the server returned. Rollouts play it on the server: models get
    its tools as functions, ACP agents as an MCP server, and its rewards are the score.
    """
    if find_spec("httpx") is None:
        from cube.extras import extra_command

        raise UsageError(f"ORS needs the extra 'serve': {extra_command('serve')}", code="extra-missing")
    token = os.environ.get(token_env) if token_env is not None else None
    if token_env is not None and not token:
        raise UsageError(f"The variable {token_env} of --token-env is not set.", code="variable-missing")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} already exists and is not empty.", code="target-exists")
    import anyio

    from benchflow.ors.ors_client import OrsClient
    from benchflow.ors.ors_import import OrsSelection, import_tasks

    written: list[str] = []

    async def run() -> None:
        async with OrsClient(url, token) as client:
            async for place in import_tasks(client, OrsSelection(environment, split, limit, token_env), target):
                written.append(str(place))
                if not as_json:
                    emit(printable(f"imported {place}"))

    anyio.run(run)
    if as_json:
        emit_json({"url": url, "packages": written})
    return GOOD
