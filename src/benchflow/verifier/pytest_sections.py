"""The part of `pyproject.toml`, `setup.cfg` and `tox.ini` that configures pytest, restored from the environment.

Pure: the agent's text and the pristine one in, the text for the verifier out. The rest of the file stays the
agent's.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

_SECTIONS: Final = {"setup.cfg": ("tool:pytest", "pytest"), "tox.ini": ("pytest", "tool:pytest")}
_HEADER: Final = re.compile(r"\[(.*?)\]")


def settle_section(name: str, text: str, pristine: str | None) -> str | None:
    """The text of a file called `name` with the pytest section of `pristine` (None: there was no file).

    None if the text needs no change. A file that cannot be parsed is left alone: pytest refuses it too.
    """
    return _toml(text, pristine) if name == "pyproject.toml" else _ini(text, pristine, _SECTIONS[name])


def _toml(text: str, pristine: str | None) -> str | None:
    found, former = _parse(text), _parse(pristine or "")
    if found is None or _pytest(found) == _pytest(former or {}):
        return None
    import tomli_w

    tool = {key: value for key, value in found.get("tool", {}).items() if key != "pytest"}
    wanted = _pytest(former or {})
    if wanted is not None:
        tool["pytest"] = wanted
    return tomli_w.dumps({**{key: value for key, value in found.items() if key != "tool"}, "tool": tool})


def _parse(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _pytest(document: dict[str, Any]) -> Any:
    tool = document.get("tool")
    return tool.get("pytest") if isinstance(tool, dict) else None


def _ini(text: str, pristine: str | None, names: tuple[str, ...]) -> str | None:
    rest, found = _cut(text, names)
    _, former = _cut(pristine or "", names)
    if found == former:
        return None
    return "".join([rest if rest.endswith("\n") or not rest else rest + "\n", *former])


def _cut(text: str, names: tuple[str, ...]) -> tuple[str, list[str]]:
    """A text without the named sections, and those sections."""
    rest: list[str] = []
    cut: list[str] = []
    target = rest
    for line in text.splitlines(keepends=True):
        header = _HEADER.match(line)
        if header:
            target = cut if header[1].strip() in names else rest
        target.append(line if line.endswith("\n") else line + "\n")
    return "".join(rest) if cut else text, cut
