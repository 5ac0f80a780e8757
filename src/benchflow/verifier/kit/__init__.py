"""Files that run inside a sandbox, beside a verifier's own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = ".rewardkit"
"""Their location in the verifier's folder."""

_LAUNCHER: Final = '#!/bin/sh\nPYTHONPATH="${0%/bin/*}${PYTHONPATH:+:$PYTHONPATH}" exec python3 -m rewardkit "$@"\n'


def kit_files() -> dict[str, bytes]:
    """The modules of `rewardkit` and its command, by their path in the verifier's folder."""
    source = Path(__file__).parent / "rewardkit"
    files = {f"{FOLDER}/rewardkit/{path.name}": path.read_bytes() for path in sorted(source.glob("*.py"))}
    return {**files, f"{FOLDER}/bin/rewardkit": _LAUNCHER.encode()}
