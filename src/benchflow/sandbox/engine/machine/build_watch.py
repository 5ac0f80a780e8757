"""Runs `podman build` and leaves nothing of it behind when its caller goes away; uses the standard library only.

Podman ends at once on a signal and leaves the command of the RUN running and its working container in the storage. This
program is told to stop by the end of its standard input, which also comes when its caller is killed. It then kills
everything below it, and removes the working containers that have the marker of this build among their volumes.

    python build_watch.py MARKER ENGINE_WORDS BUILD_ARGUMENT...

ENGINE_WORDS is the number of the first arguments that call the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_STOPPED = 130
_PATIENCE_SEC = 20.0
_ANSWER_SEC = 60.0


def main(marker: str, words: int, argv: list[str]) -> int:
    """The exit code of the build, or 130 when it was stopped."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of podman become our children
    build = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=_default_signals)  # noqa: PLW1509 - no threads
    ended = os.pidfd_open(build.pid)
    ready, _, _ = select.select([ended, 0], [], [])
    if ended in ready:
        code = build.wait()
        return 128 - code if code < 0 else code
    until = time.monotonic() + _PATIENCE_SEC
    while _kill(os.getpid()) and time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)
    remove_working_containers(argv[:words], marker)
    return _STOPPED


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _kill(root: int) -> bool:
    """Kill everything below a process; whether there was anything."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    waiting, found = [root], False
    while waiting:
        for child in parents.get(waiting.pop(), ()):
            waiting.append(child)
            found = True
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
    return found


def remove_working_containers(engine: list[str], marker: str) -> None:
    """Remove the working containers of the build with this marker."""
    root = Path(_ask([*engine, "info", "--format", "{{.Store.GraphRoot}}"]) or "/nonexistent")
    for file in root.glob("*-containers/*/userdata/buildah.json"):
        with contextlib.suppress(OSError):
            if marker.encode() in file.read_bytes():
                _ask([*engine, "rm", "--force", file.parent.parent.name])


def _ask(argv: list[str]) -> str:
    nothing = subprocess.DEVNULL
    done = subprocess.run(
        argv, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, timeout=_ANSWER_SEC, check=False, text=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
