"""Programs that end with the process that started them, even if that is killed.

The kernel watches the thread that started a program, not its process. All of them are therefore started by one thread,
which lives as long as the process. This file is also run as a program, with the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_PR_SET_PDEATHSIG: Final = 1
_STARTERS: Final[dict[int, ThreadPoolExecutor]] = {}
"""By process id: a forked process does not have the threads of its parent."""


def start(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """`subprocess.Popen`, for a program that does not outlive this process."""
    if sys.platform != "linux":
        return subprocess.Popen(words, **options)
    leashed = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]
    return _starter().submit(_started, leashed, options).result()


def _started(words: list[str], options: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, **options)


def _starter() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return _STARTERS.setdefault(os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="leash"))


def main() -> None:
    """Become the program, unless the parent has already ended."""
    import ctypes

    parent, *words = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python itself, and a program inherits that
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)  # noqa: S606  # the words are the caller's
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main()
