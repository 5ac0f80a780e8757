"""How many modules of ours one oracle rollout runs code of: those with a function that is called while it runs.

Called as a script with a package and a folder for the record; prints the number, with `--list` the names. What runs
while modules are imported does not count, nor does the command line.
"""

from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path
from types import FrameType

import anyio

SOURCE = str(Path(__file__).resolve().parents[2] / "src") + "/"


class Calls:
    """A profile function that remembers the files of the functions that are called."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        del argument
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(SOURCE) and file not in self.files and not _imports(frame):
            self.files.add(file)


def _imports(frame: FrameType) -> bool:
    """Whether a module or class body is being executed: here, or in whoever called."""
    place: FrameType | None = frame
    while place is not None:
        if place.f_code.co_filename.startswith(SOURCE) and not place.f_code.co_flags & inspect.CO_OPTIMIZED:
            return True
        place = place.f_back
    return False


def main() -> None:
    from benchflow.rollout import RolloutConfig, run_rollout

    calls = Calls()
    threading.setprofile(calls)
    sys.setprofile(calls)
    result = anyio.run(run_rollout, RolloutConfig(Path(sys.argv[1]), "oracle", sandbox="local"), Path(sys.argv[2]))
    sys.setprofile(None)
    threading.setprofile(None)
    if result.reward != 1.0:
        raise SystemExit(f"The rollout was not scored 1: {result.error}")
    names = sorted(file.removeprefix(SOURCE) for file in calls.files)
    print("\n".join(names) if "--list" in sys.argv else len(names))


if __name__ == "__main__":
    main()
