"""Where this project keeps what it can make or fetch again: layers, proofs, packages of bundles and registries."""

from __future__ import annotations

import os
from pathlib import Path


def default_store() -> Path:
    """`$BENCHCUBE_STORE`, else `benchcube` in the user's cache folder."""
    if chosen := os.environ.get("BENCHCUBE_STORE"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "benchcube"
