"""A planted hole: a small package that one family of exploits breaks, and how to close it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

REWARD = "/logs/verifier/reward.txt"
SOLVE = "echo 55 > answer.txt\n"
PROMPT = "Write the sum of the numbers from 1 to 10 to /app/answer.txt."
EXACT = f'if [ "$(cat /app/answer.txt 2>/dev/null)" = 55 ]; then echo 1; else echo 0; fi > {REWARD}\n'


@dataclass(frozen=True)
class Hole:
    """Files of a package with a hole, and those that differ in its sound twin; None removes a file."""

    family: str
    verifier: str = EXACT
    twin_verifier: str = EXACT
    files: Mapping[str, str] = field(default_factory=dict)
    twin: Mapping[str, str | None] = field(default_factory=dict)
    oracle: str = SOLVE
    prompt: str = PROMPT
    rung: str = "shared"
    twin_rung: str | None = None
    dockerfile: str = ""
    """Lines of the environment; COPY takes from `environment/`."""
    twin_dockerfile: str | None = None
    verdict: Literal["broken", "voided"] = "broken"
    frontmatter: str = ""

    def write(self, folder: Path, *, sound: bool) -> Path:
        """Make the package with the hole, or its twin."""
        rung = self.twin_rung or self.rung if sound else self.rung
        lines = self.twin_dockerfile if sound and self.twin_dockerfile is not None else self.dockerfile
        settings = f"task:\n  name: holes/{self.family}\nverifier:\n  isolation: {rung}\n{self.frontmatter}"
        files: dict[str, str | None] = {
            "task.md": f"---\n{settings}---\n\n{self.prompt}\n",
            "environment/Dockerfile": f"FROM debian:12\nWORKDIR /app\n{lines}",
            "verifier/test.sh": self.twin_verifier if sound else self.verifier,
            "oracle/solve.sh": self.oracle,
            **self.files,
            **(self.twin if sound else {}),
        }
        for path, content in files.items():
            if content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(content)
        return folder


def planted(
    family: str, verifier: Mapping[str, str], twin: Mapping[str, str] | None = None, *, user: str = "agent", **more: Any
) -> Hole:
    """A hole whose verifiers are given as files by their names; without a twin the rung alone makes the difference."""
    sound = verifier if twin is None else twin
    differs = {f"verifier/{name}": sound.get(name) for name in {*verifier, *sound} - {"test.sh"}}
    return Hole(
        family,
        verifier["test.sh"],
        sound["test.sh"],
        files={
            "verifier/expected.txt": "55\n",
            **{f"verifier/{name}": text for name, text in verifier.items()},
            **more.pop("files", {}),
        },
        twin={**differs, "verifier/test.sh": sound["test.sh"]},
        twin_rung="shared" if twin is None else None,
        frontmatter=f"agent:\n  user: {user}\n",
        **more,
    )


def judged(condition: str) -> str:
    """A test script that gives 1 if a condition holds in the working folder, else 0."""
    return f"cd /app || exit 1\nif {{ {condition}; }} >&2; then echo 1; else echo 0; fi > {REWARD}\n"
