"""The package mirror that this machine's apt is configured with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from benchflow.errors import InfrastructureFailure

_ONE_LINE: Final = re.compile(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)", re.MULTILINE)
_FIELD: Final = re.compile(r"^URIs:\s*(\S+)", re.MULTILINE)


def debian_mirror(apt: Path = Path("/etc/apt")) -> str:
    """The first archive of the apt configuration; an `InfrastructureFailure` when there is none."""
    sources = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for path in sources:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        pattern = _FIELD if path.suffix == ".sources" else _ONE_LINE
        match = pattern.search(path.read_text(encoding="utf-8", errors="replace"))
        if match:
            return match[1]
    raise InfrastructureFailure(f"No package mirror is configured in {apt}.", code="mirror-missing")
