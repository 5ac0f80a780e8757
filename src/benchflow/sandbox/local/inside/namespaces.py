"""Why the kernel refuses the namespaces of a sandbox, and what to do about it.

Its error numbers mislead: a limit of zero user namespaces reads "No space left on device". The settings of the machine
say what is meant; a number goes in, a sentence comes out.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

_KINDS: Final = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_REFUSED: Final = (errno.EPERM, errno.EACCES)


class NamespacesRefused(OSError):
    """Carries the explanation as its message."""


def refused(error: OSError) -> NamespacesRefused:
    """The same error with its explanation."""
    return NamespacesRefused(error.errno, explain(error, _setting))


def explain(error: OSError, setting: Callable[[str], str | None]) -> str:
    """One sentence with the remedy. `setting` gives the value of a kernel setting, None where there is none."""
    if error.errno in (errno.ENOSPC, errno.EUSERS):
        return _limit(setting)
    if error.errno in _REFUSED and setting("kernel/unprivileged_userns_clone") == "0":
        return "unprivileged user namespaces are switched off: run `sysctl kernel.unprivileged_userns_clone=1` as root"
    if error.errno in _REFUSED and setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor restricts unprivileged user namespaces: "
            "run `sysctl kernel.apparmor_restrict_unprivileged_userns=0` as root, "
            "or give this Python an AppArmor profile that allows `userns`"
        )
    if error.errno in (errno.EINVAL, errno.ENOSYS) and setting("user/max_user_namespaces") is None:
        return "this kernel is built without user namespaces"
    return f"{error.strerror or error}: allow user namespaces, or give the surrounding container the rights to mount"


def _limit(setting: Callable[[str], str | None]) -> str:
    names = [f"user.max_{kind}_namespaces" for kind in _KINDS if setting(f"user/max_{kind}_namespaces") == "0"]
    if names:
        return f"namespaces are switched off by {' and '.join(names)} = 0: run `sysctl {names[0]}=10000` as root"
    return "the limit of namespaces is reached: raise user.max_user_namespaces and its siblings with `sysctl` as root"


def _setting(name: str) -> str | None:
    try:
        fd = os.open(f"/proc/sys/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 64).decode("ascii", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)
