"""Images as an engine describes them, in the protocol's form."""

from __future__ import annotations

import json
import shlex
from typing import Any

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.engine.machine.engine_client import EngineClient, last_words
from benchflow.sandbox.protocol import Healthcheck, Image

_PULL_TIMEOUT_SEC = 1800.0


async def find_image(client: EngineClient, name: str) -> Image | None:
    """The image if the engine has it."""
    done = await client.run("image", "inspect", name)
    if done.exit_code != 0:
        return None
    found = json.loads(done.stdout)
    return read_image(name, found[0]) if found else None


async def resolve_image(client: EngineClient, name: str) -> Image:
    """The image, pulled if necessary; one that is not available is an `EnvironmentFailure` that says what to do."""
    found = await find_image(client, name)
    if found is not None:
        return found
    pulled = await client.run("pull", "--quiet", name, timeout=_PULL_TIMEOUT_SEC)
    found = await find_image(client, name) if pulled.exit_code == 0 else None
    if found is None:
        engine = client.dialect.name
        why = last_words(pulled.stderr.decode(errors="replace"), 200)
        raise EnvironmentFailure(
            f"The image '{name}' is not on this {engine} engine and could not be pulled ({why}); "
            f"`{engine} pull {name}` or `{engine} build -t {name} FOLDER` provides it.",
            code="image-missing",
        )
    return found


def read_image(name: str, inspected: dict[str, Any]) -> Image:
    """An image from what `image inspect` says. Pure."""
    config = inspected.get("Config") or {}
    identity = str(inspected["Id"]).removeprefix("sha256:")
    pairs = [str(item).partition("=") for item in config.get("Env") or []]
    return Image(
        reference=identity,
        digest=f"sha256:{identity}",
        env={key: value for key, _, value in pairs},
        workdir=config.get("WorkingDir") or None,
        user=config.get("User") or None,
        entrypoint=_words(config.get("Entrypoint")),
        command=_words(config.get("Cmd")),
        healthcheck=_healthcheck(config.get("Healthcheck") or inspected.get("HealthCheck")),
        base=name,
    )


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(shlex.split(value))
    return tuple(str(word) for word in value) if isinstance(value, list) else ()


def _healthcheck(value: object) -> Healthcheck | None:
    """The engine counts in nanoseconds and takes 0 for its own defaults (30 s, 30 s, 0 s, 3 tries)."""
    if not isinstance(value, dict) or not (test := value.get("Test")) or test[0] == "NONE":
        return None
    command: str | tuple[str, ...] = test[1] if test[0] == "CMD-SHELL" else tuple(test[1:])

    def seconds(key: str, default: float) -> float:
        return (value.get(key) or 0) / 1e9 or default

    return Healthcheck(
        command=command,
        interval_sec=seconds("Interval", 30.0),
        timeout_sec=seconds("Timeout", 30.0),
        start_period_sec=seconds("StartPeriod", 0.0),
        start_interval_sec=seconds("StartInterval", 5.0),
        retries=value.get("Retries") or 3,
    )
