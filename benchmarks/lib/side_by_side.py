"""What all benchmark scripts share: an environment for the peer, compiled bytecode, and the table."""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import peers


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
    print_cells([["", "peer", "ours", "ratio", "target", "reached"], *(row.cells() for row in rows)])


def print_cells(table: list[list[str]]) -> None:
    """A Markdown table; the first line is its head."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in (table[0], ["-" * width for width in widths], *table[1:]):
        print(f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |")


def compile_bytecode(*roots: Path) -> None:
    """Compile modules before start-up is measured, as for users, even if writing bytecode is disabled."""
    for root in roots:
        compileall.compile_dir(root, quiet=2, workers=2)


def compile_ours() -> None:
    compile_bytecode(Path(sys.prefix), Path(__file__).resolve().parents[2] / "src")


def peer_environment(requirement: str) -> Path:
    """The `bin` folder of the peer's own environment, which is created once, with compiled bytecode."""
    try:
        found = peers.peer_environment(requirement)
    except peers.PeerUnavailable as error:
        raise SystemExit(f"{error}; use --no-peer to measure without it.") from error
    compiled = found / ".compiled"
    if not compiled.exists():
        compile_bytecode(found.parent)
        compiled.touch()
    return found


def run_json(
    python: Path | str, code: str, *arguments: str | Path, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run measuring code in an environment; it prints one JSON object as its last line."""
    command = [str(python), "-c", code, *(str(argument) for argument in arguments)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    measured: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return measured
