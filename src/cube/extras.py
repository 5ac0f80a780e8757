"""The command that installs something into this environment: with pip, or with uv where the environment has no pip.

An extra is installed from where the distribution came from: a folder, a wheel, a Git address, or an index.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "benchcube"


def extra_command(extra: str) -> str:
    """The command that adds an extra of this distribution."""
    origin = _origin()
    url = origin.get("url")
    if not isinstance(url, str):
        return f"{installer()} '{DISTRIBUTION}[{extra}]'"
    if "dir_info" in origin and url.startswith("file:"):
        return f"{installer()} {_editable(origin)}{shlex.quote(f'{unquote(urlsplit(url).path)}[{extra}]')}"
    vcs = origin.get("vcs_info")
    if isinstance(vcs, dict):
        url = f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', 'HEAD')}"
    return f"{installer()} {shlex.quote(f'{DISTRIBUTION}[{extra}] @ {url}')}"


def folder_command(folder: Path) -> str:
    """The command that installs a project's folder, so that changes of it take effect."""
    return f"{installer()} -e {shlex.quote(str(folder))}"


def installer() -> str:
    """`pip install`, or its counterpart of uv, which installs into the environment of a Python that it is given."""
    if importlib.util.find_spec("pip") is not None:
        return "pip install"
    return f"uv pip install --python {shlex.quote(sys.executable)}"


def _editable(origin: dict[str, Any]) -> str:
    about = origin.get("dir_info")
    return "-e " if isinstance(about, dict) and about.get("editable") else ""


def _origin() -> dict[str, Any]:
    """What was recorded when this distribution was installed; empty for one from an index."""
    try:
        found = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
