"""Images as an engine describes them, in the protocol's form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.engine.machine.engine_client import EngineClient, last_words
from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.protocol import Image

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
    given = dict(inspected.get("Config") or {})
    given["Healthcheck"] = given.get("Healthcheck") or inspected.get("HealthCheck")  # the latter is podman's
    config = ImageConfig.from_oci(given)
    if not given.get("Env"):
        config = replace(config, env={})
    identity = str(inspected["Id"]).removeprefix("sha256:")
    return replace(config.image(f"sha256:{identity}", base=name), reference=identity)
