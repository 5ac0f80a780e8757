"""What an agent changed: the paths of its kept workspace, and their difference to what was there before.

What was there before is known where an earlier step kept the same path, or where the package brings a file of that name
for its environment; the page says which. Everything else is shown as it was left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.record.reading.kept_workspace import KeptPath, KeptWorkspace, list_workspace, read_kept_file
from benchflow.record.reading.rollout_story import RolloutStory

MOST_BYTES: Final = 200_000
"""A larger file is listed, but not compared."""
MOST_COMPARED: Final = 40
_NOT_AGENTS: Final = ("/instruction.md", "/logs")
"""What the engine puts there for the agent."""
LineKind = Literal["add", "del", "hunk", "same"]


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file with its difference."""

    path: str
    size: int
    compared_with: str
    """Where the earlier content is from; empty if there is none."""
    lines: tuple[tuple[LineKind, str], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What was kept of one step, or of a rollout without steps."""

    step: str | None
    workspace: KeptWorkspace
    files: tuple[ChangedFile, ...]
    others: tuple[KeptPath, ...]
    """Paths without a comparison: folders, links, deletions, and files beyond the limit."""


def changes_of(story: RolloutStory, directory: str) -> list[Changes]:
    """The changes of every step that was kept; `directory` is where the paths of the job begin."""
    result = story.result
    names = [step.name for step in result.steps] if result is not None and result.steps else [None]
    originals = _package_files(Path(directory) / result.task.path) if result is not None else {}
    found: list[Changes] = []
    earlier: dict[str, tuple[str, bytes]] = {}
    for name in names:
        archive = story.folder.step(name).workspace
        listed = list_workspace(archive)
        if listed is not None:
            found.append(_step_changes(name, archive, listed, originals, earlier))
    return found


def _step_changes(
    step: str | None,
    archive: Path,
    listed: KeptWorkspace,
    originals: dict[str, list[Path]],
    earlier: dict[str, tuple[str, bytes]],
) -> Changes:
    files: list[ChangedFile] = []
    others: list[KeptPath] = []
    for kept in listed.paths:
        if kept.path.startswith(_NOT_AGENTS):
            continue
        if kept.kind != "file" or kept.size > MOST_BYTES or len(files) >= MOST_COMPARED:
            others.append(kept)
            continue
        content = read_kept_file(archive, kept.path, max_bytes=MOST_BYTES)
        if content is None:
            others.append(kept)
            continue
        before = earlier.get(kept.path) or _original(kept.path, originals)
        files.append(_compared(kept, content, before))
        earlier[kept.path] = (f"step {step}" if step else "", content)
    return Changes(step, listed, tuple(file for file in files if file.lines or file.note), tuple(others))


def _compared(kept: KeptPath, content: bytes, before: tuple[str, bytes] | None) -> ChangedFile:
    if b"\0" in content[:8_000]:
        return ChangedFile(kept.path, kept.size, "", (), "not a text")
    source, old = before if before is not None else ("", b"")
    left, right = (data.decode(errors="replace").splitlines() for data in (old, content))
    lines = tuple(_lines(left, right))
    return ChangedFile(kept.path, kept.size, source, lines, "" if lines or not content else f"as in {source}")


def _lines(left: list[str], right: list[str]) -> Iterator[tuple[LineKind, str]]:
    for number, line in enumerate(unified_diff(left, right, lineterm="", n=3)):
        if number < 2:
            continue  # the names, which the page has already
        kind: LineKind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "same")  # type: ignore[assignment]
        yield kind, line


def _package_files(package: Path) -> dict[str, list[Path]]:
    """The files that a package brings for its environment, by name."""
    found: dict[str, list[Path]] = {}
    folder = package / "environment"
    try:
        for path in sorted(folder.rglob("*"))[:2_000]:
            if path.is_file() and not path.is_symlink():
                found.setdefault(path.name, []).append(path.relative_to(package))
    except OSError:
        return {}
    return {name: [package / path for path in paths] for name, paths in found.items()}


def _original(path: str, originals: dict[str, list[Path]]) -> tuple[str, bytes] | None:
    """The file of the package that has the longest end of a path in common; None if two are equally good."""
    wanted = PurePosixPath(path).parts
    ranked = sorted(
        ((_common_end(wanted, file.parts), file) for file in originals.get(wanted[-1], [])), key=lambda pair: -pair[0]
    )
    if not ranked or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
        return None
    file = ranked[0][1]
    try:
        content = read_regular(file, max_bytes=MOST_BYTES)
    except (OSError, RefusedFileError):
        return None
    parts = file.parts
    return "/".join(parts[len(parts) - 1 - parts[::-1].index("environment") :]), content


def _common_end(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    count = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if left != right:
            break
        count += 1
    return count
