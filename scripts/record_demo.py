"""Records `make demo` in a terminal and draws it as a small moving picture: `python scripts/record_demo.py`.

The demo runs in a pseudo-terminal. Each line appears in the picture when it appeared there, with shorter waits; what
was erased again (progress) is left out. The picture is one SVG file without scripts or fonts; where motion is unwanted,
it is still.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "assets" / "demo.svg"
COLUMNS: Final = 104
LONGEST_WAIT_SEC: Final = 1.2
"""Between two lines of the picture."""
LAST_SEC: Final = 6.0
"""How long the complete picture stays, before it begins again."""

_ESCAPE: Final = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")
_BOLD: Final = "1"
_DIM: Final = "2"


@dataclass(frozen=True)
class Line:
    """A line as it was when the next one began: when it ended, and its pieces with their styles."""

    at: float
    pieces: tuple[tuple[str, str], ...]


def record(command: list[str]) -> list[Line]:
    """Run a command in a terminal; its lines, without those that were erased."""
    driver, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    lines: list[Line] = []
    rest = ""
    while chunk := _read(driver):
        *whole, rest = (rest + chunk.decode(errors="replace")).split("\n")
        now = time.monotonic() - started
        lines += [Line(now, pieces(text)) for text in whole]
    os.close(driver)
    if process.wait() != 0:
        sys.exit(f"{' '.join(command)} exited with {process.returncode}")
    return lines


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the last process that had the terminal has ended
        return b""


def pieces(text: str) -> tuple[tuple[str, str], ...]:
    """The text that is left on a line, in pieces of one style: `bold`, `dim` or none."""
    shown = re.split(r"\r(?!$)|\x1b\[2?K", text.rstrip("\r"))[-1]
    found: list[tuple[str, str]] = []
    style = ""
    done = 0
    for code in _ESCAPE.finditer(shown):
        found.append((style, shown[done : code.start()]))
        done = code.end()
        if code[2] == "m":
            words = code[1].split(";")
            style = "bold" if _BOLD in words else "dim" if _DIM in words else ""
    found.append((style, shown[done:]))
    return tuple((style, part) for style, part in found if part.strip("\r"))


def cut(lines: list[Line]) -> list[Line]:
    """The same lines with shorter waits between them."""
    shorter: list[Line] = []
    before = now = 0.0
    for line in lines:
        now += min(line.at - before, LONGEST_WAIT_SEC)
        before = line.at
        shorter.append(Line(now, line.pieces))
    return shorter


def draw(lines: list[Line]) -> str:
    """The picture: every line is hidden until its time, in a loop."""
    height, width = 17, 8.1
    total = lines[-1].at + LAST_SEC
    size = (round(COLUMNS * width + 32), len(lines) * height + 52)
    rules = []
    rows = []
    for number, line in enumerate(lines):
        start = 100 * line.at / total
        rules.append(f"@keyframes l{number}{{0%,{start:.2f}%{{opacity:0}}{start + 0.01:.2f}%,100%{{opacity:1}}}}")
        spans = "".join(f'<tspan class="{style}">{escape(part)}</tspan>' for style, part in line.pieces)
        animated = f"animation:l{number} {total:.1f}s infinite"
        rows.append(f'<text x="16" y="{number * height + 52}" style="{animated}">{spans}</text>')
    style = (
        "text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d6deeb;white-space:pre}"
        ".bold{font-weight:700;fill:#fff}.dim{fill:#8b98ad}"
        "@media (prefers-reduced-motion:reduce){text{animation:none!important}}"
    )
    dots = "".join(f'<circle cx="{22 + 18 * n}" cy="18" r="5.5" fill="#3b4a63"/>' for n in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" role="img">'
        f"<title>make demo: the example packages are evaluated, then one is stepped through as a gym task</title>"
        f"<style>{style}{''.join(rules)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#10192b"/>{dots}{"".join(rows)}</svg>\n'
    )


def main() -> None:
    lines = record(["make", "demo"])
    prompt = Line(0.0, (("dim", "$ "), ("bold", "make demo")))
    PICTURE.write_text(draw(cut([prompt, *lines])))
    print(f"{PICTURE.relative_to(ROOT)}: {len(lines)} lines, {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
