"""The verifier's side of a sandbox, assembled on this machine and copied in as one tree.

/verifier         the files of the verifier       /tests          a link to it
/logs/verifier    empty, the verifier's own
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from benchflow.files.scratch import scratch_folder
from benchflow.verifier.scope import TEST_SCRIPT, Scope

VERIFIER: Final = "/verifier"
TESTS: Final = "/tests"
LOGS: Final = "/logs/verifier"
_EXECUTABLE: Final = 0o755


class Staging:
    """Trees to copy to the root of a sandbox, each created once, however many threads request it.

    They are removed by `close`, or when this object is garbage collected.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[tuple[Path, ...], frozenset[tuple[str, bytes]]], Path] = {}
        self._making: Final = threading.Lock()

    def tree(self, scope: Scope, extra: Mapping[str, bytes]) -> Path:
        """The tree of a scope's files; `extra` are more files of the verifier by relative path."""
        with self._making:
            found = self.made(scope, extra)
            if found is None:
                found = scratch_folder("verifier-")
                weakref.finalize(self, shutil.rmtree, found, ignore_errors=True)
                _fill(found, scope.folders, extra)
                self._made[scope.folders, frozenset(extra.items())] = found
            return found

    def made(self, scope: Scope, extra: Mapping[str, bytes]) -> Path | None:
        """The tree, if it already exists."""
        return self._made.get((scope.folders, frozenset(extra.items())))

    def close(self) -> None:
        """Remove the trees; idempotent."""
        while self._made:
            _, root = self._made.popitem()
            shutil.rmtree(root, ignore_errors=True)


def _fill(root: Path, folders: Iterable[Path], extra: Mapping[str, bytes]) -> None:
    root.chmod(0o755)
    files = root / VERIFIER[1:]
    files.mkdir()
    for folder in folders:
        _lay_over(folder, files)
    for relative, data in extra.items():
        (files / relative).parent.mkdir(parents=True, exist_ok=True)
        (files / relative).write_bytes(data)
        (files / relative).chmod(_EXECUTABLE)
    (root / TESTS[1:]).symlink_to(VERIFIER)
    (root / LOGS[1:]).mkdir(parents=True)


def _lay_over(source: Path, target: Path) -> None:
    """Copy regular files and folders; anything else was refused when the package was loaded."""
    for entry in os.scandir(source):
        place = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            place.mkdir(exist_ok=True)
            _lay_over(Path(entry.path), place)
        elif entry.is_symlink():
            place.unlink(missing_ok=True)
            place.symlink_to(Path(entry.path).readlink())
        elif entry.is_file(follow_symlinks=False):
            _copy(Path(entry.path), place)


def _copy(source: Path, place: Path) -> None:
    """A hard link to the file where possible; a script is copied, so that it can be made executable."""
    place.unlink(missing_ok=True)
    mode = stat.S_IMODE(source.stat().st_mode)
    script = source.suffix == ".sh" or source.name == TEST_SCRIPT
    if not script and mode & stat.S_IROTH:
        try:
            os.link(source, place)
            return
        except OSError:
            pass
    shutil.copyfile(source, place)
    place.chmod(_EXECUTABLE if script else mode | 0o444)
