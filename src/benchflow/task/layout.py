"""Which folders of a package count, and whether two spellings of the same thing agree.

Selection is by existence alone: `verifier/` before `tests/`, `oracle/` before `solution/`, never falling
back from an empty or broken native folder. Alias trees are equal when their file maps are.
"""

from __future__ import annotations

from typing import Final

from benchflow.task.config.issues import IssueLog
from benchflow.task.filemap import FileMap

TASK_TOML: Final = "task.toml"
INSTRUCTION: Final = "instruction.md"
ALIASES: Final = (("verifier", "tests"), ("oracle", "solution"))
_PARTS: Final = frozenset(
    {
        "task.md",
        "task.toml",
        "instruction.md",
        "verifier",
        "tests",
        "oracle",
        "solution",
        "environment",
        "prompts",
        "steps",
    }
)
_FILES: Final = frozenset({"task.md", "task.toml", "instruction.md"})
SOURCE_FOLDERS: Final = (
    "environment",
    "oracle",
    "solution",
    "verifier",
    "tests",
    "prompts",
    "steps",
)


def select(files: FileMap, native: str, legacy: str) -> str | None:
    """The folder that counts, or None when neither exists."""
    if native in files.folders or native in files.links or native in files:
        return native
    return legacy if legacy in files.folders or legacy in files.links or legacy in files else None


def check_parts(files: FileMap, problems: IssueLog) -> None:
    """The parts of a package must be what they are called: files or folders, not links."""
    if not files.links and not _PARTS & files.files.keys() - _FILES and not _FILES & files.folders:
        return
    for part in sorted(link for link in files.links if link in _PARTS or _is_document(link)):
        if part in ("tests", "solution") and files.links[part].rstrip("/") in ("verifier", "oracle"):
            continue
        problems.error(
            "linked-part", part, f"{part} is a link; a part of a package must be a file or folder of its own"
        )
    for part in sorted(_PARTS):
        is_file = part in _FILES
        if (is_file and part in files.folders) or (not is_file and part in files):
            problems.error("wrong-part", part, f"{part} must be a {'file' if is_file else 'folder'}")


def _is_document(link: str) -> bool:
    """Whether a link stands where a text is read from."""
    return link.startswith("prompts/") or link.endswith(("/verifier.md", "/instruction.md"))


def check_aliases(files: FileMap, problems: IssueLog) -> None:
    """Alias trees that both exist must hold the same files."""
    if not files.folders & {"tests", "solution", "steps"}:
        return
    pairs = [*ALIASES]
    steps = {path.split("/")[1] for path in files.folders if path.startswith("steps/")}
    pairs += [
        (f"steps/{step}/{native}", f"steps/{step}/{legacy}") for step in sorted(steps) for native, legacy in ALIASES
    ]
    for native, legacy in pairs:
        if native not in files.folders or legacy not in files.folders:
            continue
        ours, theirs = files.hashes(native), files.hashes(legacy)
        if ours != theirs:
            differing = sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))
            message = f"{native}/ and {legacy}/ differ in {', '.join(differing[:3])}"
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""  # three are shown
            problems.error("alias-drift", f"{native}|{legacy}", message + more)


def source_hashes(files: FileMap) -> dict[str, str]:
    """Path to SHA-256 of the files that define a task."""
    prefixes = tuple(f"{folder}/" for folder in SOURCE_FOLDERS)
    return {path: entry.sha256 for path, entry in files.files.items() if path in _FILES or path.startswith(prefixes)}
