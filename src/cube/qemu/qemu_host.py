"""What this machine has for virtual machines: the programs of QEMU, and KVM that really runs a guest."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from cube.qemu import kvm_probe

SYSTEM: Final = "qemu-system-x86_64"
IMAGES: Final = "qemu-img"
_PACKAGES: Final = {SYSTEM: "qemu-system-x86", IMAGES: "qemu-utils"}
"""The Debian package of each program."""
_DEVICE: Final = Path("/dev/kvm")
_PROBE_SEC: Final = 30


def missing_programs() -> str | None:
    """What is not installed and how to install it, as a clause; None if everything is."""
    missing = [name for name in _PACKAGES if shutil.which(name) is None]
    if not missing:
        return None
    packages = " ".join(_PACKAGES[name] for name in missing)
    noun = "command" if len(missing) == 1 else "commands"
    return f"the {noun} {' and '.join(missing)} cannot be found (Debian: `apt-get install {packages}`)"


def kvm_problem() -> str | None:
    """Why machines cannot run with KVM, as a clause; None if they can."""
    if platform.machine() != "x86_64":
        return f"this machine's processor ({platform.machine()}) does not run x86-64 images with KVM"
    if not _DEVICE.exists():
        return "/dev/kvm does not exist (is virtualisation enabled, and the kernel module `kvm` loaded?)"
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return "/dev/kvm cannot be opened by this user (is the user in the group `kvm`?)"
    return None if _kvm_runs() else "/dev/kvm exists but does not run guests on the processor"


@cache
def _kvm_runs() -> bool:
    """Asked once per process: nothing changes it while a process runs."""
    words = [sys.executable, "-I", "-S", kvm_probe.__file__]
    try:
        return subprocess.run(words, capture_output=True, timeout=_PROBE_SEC, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
