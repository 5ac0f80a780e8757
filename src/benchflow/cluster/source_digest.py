"""What a machine has installed of this project, as one digest: two machines with equal digests run the same code."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import benchflow
import cube


@dataclass(frozen=True, slots=True)
class Installed:
    """The versions of one machine."""

    benchcube: str
    source: str
    """The digest of all modules."""
    python: str

    def difference(self, other: Installed) -> str | None:
        """How another machine differs, as the rest of a sentence that begins with that machine; None if it does not."""
        if other.benchcube != self.benchcube:
            return f"has benchcube {other.benchcube} where this machine has {self.benchcube}"
        if other.source != self.source:
            return f"has other source files of benchcube {other.benchcube} than this machine"
        if other.python != self.python:
            return f"has Python {other.python} where this machine has {self.python}"
        return None


@cache
def installed() -> Installed:
    """What this machine has."""
    try:
        number = version("benchcube")
    except PackageNotFoundError:
        number = "unknown"
    return Installed(number, _digest(), platform.python_version())


def _digest() -> str:
    total = hashlib.sha256()
    for package in (benchflow, cube):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            total.update(f"{root.name}/{path.relative_to(root)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
