"""Images as an engine describes them, in the protocol's form."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchflow.errors import EnvironmentFailure
from benchflow.files.scratch import scratch
from benchflow.sandbox.engine.machine.engine_client import EngineClient, last_words
from benchflow.sandbox.images.distribution.credentials import parse_secret, secret_for
from benchflow.sandbox.images.distribution.pull import pinned_reference
from benchflow.sandbox.images.distribution.reference import DOCKER_HUB, Reference
from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.protocol import Image
from benchflow.sandbox.pulling import Credentials, PullSettings

_PULL_TIMEOUT_SEC = 1800.0
SUBSTITUTES: Final = (
    "`--sandbox local` runs on a substitute: a base of `bench images add --recipe`, or this machine's userland with "
    "`--base-image host`."
)
"""What helps where an engine lacks an image."""


async def find_image(client: EngineClient, name: str) -> Image | None:
    """The image if the engine has it."""
    done = await client.run("image", "inspect", name)
    if done.exit_code != 0:
        return None
    found = json.loads(done.stdout)
    return read_image(name, found[0]) if found else None


class EngineImages:
    """The images of one engine, pulled by it as the policy of a command says; each is asked for once."""

    def __init__(self, client: EngineClient) -> None:
        self._client: Final = client
        self._pulled: Final[set[str]] = set()
        self._refused: Final[dict[tuple[str, str | None], str]] = {}
        """Why images could not be pulled, by name and the credentials that were used."""

    async def resolve(self, name: str, pull: PullSettings) -> Image:
        """The image, pulled if necessary; one that is not available is an `EnvironmentFailure` that says what to do.

        One that is pinned is asked for by its digest, which the engine verifies.
        """
        reference = pinned_reference(name, pull)
        if reference.digest is not None:
            name = f"{reference.repository_name}@{reference.digest}"
        if pull.policy != "always" or name in self._pulled:
            found = await find_image(self._client, name)
            if found is not None:
                return found
        engine = self._client.dialect.name
        if pull.policy == "never":
            raise EnvironmentFailure(
                f"The image '{name}' is not on this {engine} engine, and `--pull never` forbids pulling it. "
                f"{SUBSTITUTES}",
                code="image-missing",
            )
        secret = secret_for(reference, pull.credentials)
        why = self._refused.get((name, secret)) or await self._pull(name, reference, secret)
        found = await find_image(self._client, name) if not why else None
        if found is None:
            raise EnvironmentFailure(
                f"The image '{name}' is not on this {engine} engine and could not be pulled ({why}); "
                f"`{engine} pull {name}` or `{engine} build -t {name} FOLDER` provides it. {SUBSTITUTES}",
                code="image-missing",
            )
        return found

    async def _pull(self, name: str, reference: Reference, secret: str | None) -> str:
        """Pull; why it failed, or nothing."""
        given = parse_secret(secret, reference) if secret is not None else None
        with ExitStack() as stack:
            args: list[str] = []
            env = None
            if given is not None:
                folder = stack.enter_context(scratch("pull-"))
                env = self._client.environment()[1]
                _write_config(folder, reference.registry, given, _config_folder(env))
                args = ["--authfile", str(folder / "config.json")] if self._client.dialect.name == "podman" else []
                env["DOCKER_CONFIG"] = str(folder)
            done = await self._client.run("pull", "--quiet", *args, name, env=env, timeout=_PULL_TIMEOUT_SEC)
        if done.exit_code != 0:
            why = self._refused[name, secret] = last_words(done.stderr.decode(errors="replace"), 200)
            return why
        self._pulled.add(name)
        return ""


def _config_folder(env: Mapping[str, str]) -> Path:
    """Where Docker's client has its configuration."""
    return Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or Path.home()) / ".docker")


def _write_config(folder: Path, registry: str, given: Credentials, usual: Path) -> None:
    """The configuration of an engine's client with these credentials, which only this user can read.

    Of the `usual` one it has what says which engine is meant.
    """
    server = "https://index.docker.io/v1/" if registry == DOCKER_HUB else registry
    entry = {
        "auth": base64.b64encode(f"{given.username}:{given.password}".encode()).decode() if given.username else "",
        "identitytoken": given.identity_token,
        "registrytoken": given.registry_token,
    }
    auths = {server: {key: value for key, value in entry.items() if value}}
    path = folder / "config.json"
    path.touch(mode=0o600)
    context = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        context = {"currentContext": json.loads((usual / "config.json").read_text(encoding="utf-8"))["currentContext"]}
    if (usual / "contexts").is_dir():
        (folder / "contexts").symlink_to(usual.absolute() / "contexts")
    path.write_text(json.dumps({"auths": auths, **context}), encoding="utf-8")


def read_image(name: str, inspected: dict[str, Any]) -> Image:
    """An image from what `image inspect` says. Pure."""
    given = dict(inspected.get("Config") or {})
    given["Healthcheck"] = given.get("Healthcheck") or inspected.get("HealthCheck")  # the latter is podman's
    config = ImageConfig.from_oci(given)
    if not given.get("Env"):
        config = replace(config, env={})
    identity = str(inspected["Id"]).removeprefix("sha256:")
    known = [text.partition("@")[::2] for text in inspected.get("RepoDigests") or ()]
    # Of several, the one that was asked for, or one of the same repository; an image that was built or loaded has none.
    known.sort(key=lambda item: (not name.endswith(item[1]), not name.startswith((f"{item[0]}:", f"{item[0]}@"))))
    digest = known[0][1] if known else None
    return replace(config.image(f"sha256:{identity}", base=name), reference=identity, base_digest=digest)
