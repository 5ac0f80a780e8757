"""Image names as Docker reads them: registry, repository, tag and digest. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from benchflow.errors import UsageError

DOCKER_HUB: Final = "docker.io"
_HUB_NAMES: Final = (DOCKER_HUB, "index.docker.io", "registry-1.docker.io")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_REPOSITORY: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG: Final = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Reference:
    """An image name in its parts."""

    registry: str
    """Host and port; `docker.io` where the name has none."""
    repository: str
    tag: str | None = None
    digest: str | None = None
    """The content that is required; it wins over the tag."""

    @property
    def target(self) -> str:
        """What a registry is asked for."""
        return self.digest or self.tag or "latest"

    @property
    def repository_name(self) -> str:
        return f"{self.registry}/{self.repository}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository_name}{tag}" + (f"@{self.digest}" if self.digest else "")

    def pinned(self, digest: str | None) -> Reference:
        """The same image, required to be `digest`; a name that requires another one is a `UsageError`."""
        if digest is None:
            return self
        if not DIGEST.fullmatch(digest):
            raise UsageError(f"{digest!r} is not a digest: sha256: and 64 hexadecimal digits.", code="image-name")
        if self.digest not in (None, digest):
            raise UsageError(f"{self} names one digest, but {digest} is pinned for it.", code="image-digest-differs")
        return replace(self, digest=digest)


def parse_reference(name: str) -> Reference:
    """The parts of an image name; a name that no registry accepts is a `UsageError`."""
    rest, at, digest = name.partition("@")
    first, slash, remainder = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first.startswith("[")):
        registry, rest = first, remainder
    else:
        registry = DOCKER_HUB
    repository, colon, tag = rest.rpartition(":")
    if not colon:
        repository, tag = rest, ""
    if registry in _HUB_NAMES:
        registry = DOCKER_HUB
        repository = repository if "/" in repository else f"library/{repository}"
    wrong = (
        not _HOST.fullmatch(registry)
        or not _REPOSITORY.fullmatch(repository)
        or len(name) > 512
        or (colon and not _TAG.fullmatch(tag))
        or (at and not DIGEST.fullmatch(digest))
    )
    if wrong:
        raise UsageError(f"{name!r} is not an image name.", code="image-name")
    return Reference(registry, repository, tag or (None if at else "latest"), digest or None)
