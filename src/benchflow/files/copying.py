"""One file copied as it is: content and permissions, nothing followed, nothing but regular files."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file to a path that does not exist; missing folders are made. Raises `OSError`.

    The last part of `source` is never followed as a link, and opening it never blocks. Permissions are those
    of the source without its set-id and sticky bits.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(f"{source} is not a regular file")
        with target.open("xb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
            os.fchmod(copy.fileno(), stat.S_IMODE(mode) & 0o777)
