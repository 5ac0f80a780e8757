"""The program through which commands enter a sandbox, built from `entry.c` by `scripts/build-programs`.

Starting it costs a fraction of what a copy of the supervisor's interpreter would. It follows a list of system calls
(`calls.CallList`) and decides nothing.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

_MFD_EXEC: Final = 0x10
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def open_program() -> int:
    """A descriptor of the program for this machine: a sealed copy in memory."""
    path = os.path.join(os.path.dirname(__file__), f"entry-{os.uname().machine}")
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(source, 1 << 16)
    finally:
        os.close(source)
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        program = os.memfd_create("entry", flags | _MFD_EXEC)
    except OSError:  # kernels before 6.3, where every such file can be executed
        program = os.memfd_create("entry", flags)
    os.write(program, data)
    fcntl.fcntl(program, fcntl.F_ADD_SEALS, _SEALS)
    return program
