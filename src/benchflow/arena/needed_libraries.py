"""What an arena needs beside the core."""

from __future__ import annotations

from importlib.util import find_spec

from benchflow.errors import UsageError


def require_arena(who: str = "Arenas need") -> None:
    """Refuse an arena without the libraries that its peers speak through; `who` begins the sentence."""
    if all(map(find_spec, ("httpcore", "httpx", "starlette", "uvicorn"))):
        return
    from cube.extras import extra_command

    raise UsageError(f"{who} the extra 'arena': {extra_command('arena')}", code="extra-missing")
