"""What all benchmark scripts share: an environment for the peer, compiled bytecode, and the table."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "benchcube" / "peers"


@dataclass(frozen=True)
class Row:
    """One figure: the peer's, ours, and the target."""

    what: str
    peer: float | None
    ours: float
    target: float
    unit: str
    higher_is_better: bool = False

    @property
    def reached(self) -> bool:
        return self.ours >= self.target if self.higher_is_better else self.ours <= self.target

    def cells(self) -> list[str]:
        ratio = None
        if self.peer:
            ratio = self.ours / self.peer if self.higher_is_better else self.peer / self.ours
        sign = ">=" if self.higher_is_better else "<="
        return [
            self.what,
            "–" if self.peer is None else f"{self.peer:,.3g} {self.unit}",
            f"{self.ours:,.3g} {self.unit}",
            "–" if ratio is None else f"{ratio:,.1f}x",
            f"{sign} {self.target:,g} {self.unit}",
            "yes" if self.reached else "NO",
        ]


def print_table(rows: list[Row]) -> None:
    """The figures as a Markdown table."""
    table = [["", "peer", "ours", "ratio", "target", "reached"], *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(6)]
    table.insert(1, ["-" * width for width in widths])
    for line in table:
        print(f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |")


def compile_bytecode(*roots: Path) -> None:
    """Compile modules before start-up is measured, as for users, even if writing bytecode is disabled."""
    for root in roots:
        compileall.compile_dir(root, quiet=2, workers=2)


def compile_ours() -> None:
    compile_bytecode(Path(sys.prefix), Path(__file__).resolve().parents[2] / "src")


def peer_environment(requirement: str) -> Path:
    """The `bin` folder of the peer's own environment, which is created once."""
    home = CACHE / requirement.replace("==", "-")
    ready = home / ".ready"
    if not ready.exists():
        shutil.rmtree(home, ignore_errors=True)
        print(f"Installing {requirement} into {home}", file=sys.stderr)
        command, environment = newer_python()
        subprocess.run([*command, "-m", "venv", str(home)], check=True, env=environment)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, requirement], check=True)
        compile_bytecode(home)
        ready.touch()
    return home / "bin"


def newer_python() -> tuple[list[str], dict[str, str]]:
    """A Python that the peers support: this one, or a newer one on PATH, also behind pyenv's shims."""
    if sys.version_info >= (3, 12):
        return [sys.executable], dict(os.environ)
    for version in ("3.12", "3.13"):
        environment = {**os.environ, "PYENV_VERSION": version}
        name = f"python{version}"
        if not shutil.which(name):
            continue
        if subprocess.run([name, "-V"], capture_output=True, check=False, env=environment).returncode == 0:
            return [name], environment
    raise SystemExit("The peer needs Python 3.12 or newer on PATH; use --no-peer to measure without it.")


def run_json(
    python: Path | str, code: str, *arguments: str | Path, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run measuring code in an environment; it prints one JSON object as its last line."""
    command = [str(python), "-c", code, *(str(argument) for argument in arguments)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    measured: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return measured
