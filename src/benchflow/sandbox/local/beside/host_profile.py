"""The machine's own userland as an environment, composed from what is named here and nothing else.

`/usr` is used in place, copy-on-write. The rest is a small layer: a filtered `/etc`, the package database,
empty folders. Nothing is taken that not everybody on the machine may read, and no file that carries a login
in an address.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Final

from benchflow.sandbox.inside.accounts import AGENT, AGENT_ID

_FORMAT: Final = "4"
IN_PLACE: Final = ("/usr",)
"""Folders that are layers themselves."""
_MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC: Final = (
    "alternatives", "apt/apt.conf.d", "apt/preferences.d", "apt/sources.list", "apt/sources.list.d",
    "apt/trusted.gpg.d",
    "apt/keyrings", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debconf.conf", "debian_version",
    "default",
    "dpkg", "fonts", "gai.conf", "groff", "host.conf", "inputrc", "issue", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "locale.alias", "locale.conf", "locale.gen", "localtime", "login.defs", "magic", "magic.mime", "manpath.config",
    "mime.types", "netconfig", "networks", "nsswitch.conf", "os-release", "perl", "pip.conf", "profile", "profile.d",
    "protocols", "python3", "rpc", "services", "sgml", "shells", "skel", "ssl/certs", "ssl/openssl.cnf", "terminfo",
    "timezone", "vim", "wgetrc", "xml",
)  # fmt: skip
_ETC_PATTERNS: Final = ("python3.*", "java-*", "php*")
_DATABASES: Final = ("var/lib/dpkg",)
_FOLDERS: Final = {
    "app": 0o755, "dev": 0o755, "home": 0o755, "media": 0o755, "mnt": 0o755, "opt": 0o755, "proc": 0o555, "root": 0o700,
    "run": 0o755, "run/lock": 0o1777, "srv": 0o755, "sys": 0o555, "tmp": 0o1777, "usr": 0o755, "var": 0o755,
    "var/cache": 0o755, "var/cache/apt": 0o755, "var/cache/apt/archives": 0o755,
    "var/cache/apt/archives/partial": 0o755,
    "var/lib": 0o755, "var/lib/apt": 0o755, "var/lib/apt/lists": 0o755, "var/lib/apt/lists/partial": 0o755,
    "var/local": 0o755, "var/log": 0o755, "var/log/apt": 0o755, "var/mail": 0o755, "var/spool": 0o755,
    "var/tmp": 0o1777,
}  # fmt: skip
_LINKS: Final = {"var/run": "/run", "var/lock": "/run/lock", "etc/mtab": "/proc/self/mounts"}
_LOGIN_IN_ADDRESS: Final = re.compile(rb"://[^/\s@]+:[^/\s@]+@|_authToken|password\s*=", re.IGNORECASE)
_LARGEST_SETTING: Final = 1 << 20
_PIP_MARK: Final = "lib/python3*/EXTERNALLY-MANAGED"
"""Below `/usr`: Debian's request to pip not to install anything. Images of Python have no such file."""
_FIRST_PERSON: Final = 1000
_NOBODY: Final = 65534


def profile_key(root: Path = Path("/")) -> str:
    """Changes when what the profile is made of changes."""
    digest = hashlib.sha256(_FORMAT.encode())
    for name in (
        "var/lib/dpkg/status",
        "etc",
        "etc/passwd",
        "etc/ld.so.cache",
        "etc/ssl/certs",
        "etc/apt",
        "etc/alternatives",
    ):
        try:
            info = (root / name).stat()
        except OSError:
            continue
        digest.update(f"{name}:{info.st_mtime_ns}:{info.st_size}".encode())
    return f"host-{digest.hexdigest()[:16]}"


def compose(target: Path, root: Path = Path("/"), *, owners: bool = True, bare: bool = False) -> None:
    """Write the layer. `owners`: whether more than one user id is there to give files to.

    A `bare` one is for images that are built on it: it has no user `agent`, because a Dockerfile may create one, or
    another user with the same id.
    """
    target.mkdir(mode=0o755)
    for name in _MERGED:
        if (root / name).is_symlink():
            (target / name).symlink_to((root / name).readlink())
    (target / "etc").mkdir(mode=0o755)
    for name in _named_settings(root):
        _copy(root / "etc" / name, target / "etc" / name)
    for name, mode in _FOLDERS.items():
        (target / name).mkdir(exist_ok=True)
        (target / name).chmod(mode)
    for name in _DATABASES:
        _copy(root / name, target / name)
    for name, leads_to in _LINKS.items():
        if not os.path.lexists(target / name):
            (target / name).symlink_to(leads_to)
    _write_accounts(target, root, bare=bare)
    _hide_pip_mark(target, root)
    for name in ("hosts", "hostname", "resolv.conf"):
        (target / "etc" / name).write_text("")
    home = target / "home" / AGENT
    if not bare:
        home.mkdir(mode=0o755)
    if owners and not bare:
        for folder in (home, target / "app"):
            os.chown(folder, AGENT_ID, AGENT_ID)


def compose_folders(target: Path) -> None:
    """Write a layer with the folders of what is used in place, and nothing in them.

    For a driver that is not root the machine's own folders belong to users that it cannot become; these belong to
    its root, so that packages can be installed over them.
    """
    target.mkdir(mode=0o755)
    for top in IN_PLACE:
        for folder, names, _ in os.walk(top):
            names[:] = [name for name in names if not os.path.islink(f"{folder}/{name}")]
            os.makedirs(f"{target}{folder}", 0o755, exist_ok=True)


def _named_settings(root: Path) -> list[str]:
    names = list(_ETC)
    for pattern in _ETC_PATTERNS:
        names += sorted(path.name for path in (root / "etc").glob(pattern))
    return names


def _copy(source: Path, target: Path) -> None:
    """Copy what everybody may read; leave out the rest and everything special."""
    try:
        info = source.lstat()
    except OSError:
        return
    if stat.S_ISLNK(info.st_mode):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.readlink())
    elif stat.S_ISDIR(info.st_mode) and info.st_mode & 0o005 == 0o005:
        target.mkdir(parents=True, exist_ok=True)
        for entry in source.iterdir():
            _copy(entry, target / entry.name)
    elif stat.S_ISREG(info.st_mode) and info.st_mode & 0o004 and not _carries_login(source, info.st_size):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(stat.S_IMODE(info.st_mode) & 0o755)


def _carries_login(path: Path, size: int) -> bool:
    return "etc" in path.parts and size < _LARGEST_SETTING and bool(_LOGIN_IN_ADDRESS.search(path.read_bytes()))


def _hide_pip_mark(target: Path, root: Path) -> None:
    """Delete the mark for the environment: in an overlay, a device 0:0 means that a file of a lower layer is gone."""
    for mark in (root / "usr").glob(_PIP_MARK):
        place = target / mark.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # not every user may make one; then pip itself says how it installs
            os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))


def _write_accounts(target: Path, root: Path, *, bare: bool) -> None:
    """The system's users and groups and, unless `bare`, the sandbox's own; the people of this machine are not named."""
    people = {"passwd": f"{AGENT}:x:{AGENT_ID}:{AGENT_ID}::/home/{AGENT}:/bin/sh", "group": f"{AGENT}:x:{AGENT_ID}:"}
    for name, own in people.items():
        lines = [line for line in (root / "etc" / name).read_text().splitlines() if _is_system(line)]
        cleaned = lines if name == "passwd" else [line.rpartition(":")[0] + ":" for line in lines]
        (target / "etc" / name).write_text("\n".join([*cleaned, *([] if bare else [own])]) + "\n")


def _is_system(line: str) -> bool:
    fields = line.split(":")
    if len(fields) < 4 or fields[0] == AGENT or not fields[2].isdigit():
        return False
    return int(fields[2]) < _FIRST_PERSON or int(fields[2]) == _NOBODY
