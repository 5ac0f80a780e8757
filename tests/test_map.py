"""The map in the design pages shows the packages as they are: every folder, and none that is gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAP = ROOT / "docs/design/map.md"


def _drawn() -> set[str]:
    """The folders in the first drawing; deeper indentation means below, and a line may name several."""
    drawing = re.findall(r"```text\n(.*?)```", MAP.read_text(), re.DOTALL)[0]
    folders: set[str] = set()
    above: list[tuple[int, str]] = []
    for line in filter(str.strip, drawing.splitlines()):
        indent = len(line) - len(line.lstrip())
        names = [name.rstrip("/") for name in re.match(r"(?:[\w./]+/ *)*", line.lstrip())[0].split()]  # type: ignore[index]
        while above and above[-1][0] >= indent:
            above.pop()
        parent = above[-1][1] + "/" if above else ""
        folders |= {parent + name for name in names}
        if names:
            above.append((indent, parent + names[0]))
    return folders


def _existing() -> set[str]:
    """The folders that hold files; one with nothing but compiled leftovers is gone."""
    files = [path.relative_to(ROOT) for top in ("cube", "benchflow") for path in (ROOT / "src" / top).rglob("*.*")]
    folders = {parent.as_posix() for path in files for parent in path.parents if "__pycache__" not in path.parts}
    return {
        folder for folder in folders if folder.startswith(("src/cube", "src/benchflow")) and "template/" not in folder
    }


def test_the_map_shows_every_package_and_no_other():
    assert _drawn() == _existing()


def test_files_that_the_map_names_exist():
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", MAP.read_text())
    assert named
    assert [name for name in named if not (ROOT / "src/benchflow" / name).is_file()] == []
