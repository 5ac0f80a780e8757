"""The values that a rollout must not record, and a last check of the files it leaves.

Values of declared secrets, of variables that look like secrets, and of what a package takes from the machine go into
one redactor, in every spelling they may appear in. Records, logs and trajectories pass it as they are written; files
that come out of a sandbox are looked through once they are there.
"""

from __future__ import annotations

import base64
import os
import re
import stat
import urllib.parse
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from benchflow.files.atomic import temporary_sibling
from benchflow.files.redaction import Redactor

SHORTEST_DECLARED: Final = 4
"""A shorter value cannot be distinguished from ordinary text, so a declared secret must be at least this long."""
SHORTEST_GUESSED: Final = 8
"""The same for values that are only assumed to be secret."""

_BLOCK: Final = 1 << 20
_SECRET_NAME: Final = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|COOKIE|AUTHORIZATION|AUTH|BEARER"
    r"|PAT|CONNECTION_STRING|DSN)(_|$|[0-9])",
    re.IGNORECASE,
)
_PLAIN_NAMES: Final = frozenset(
    {
        "HOME", "USER", "LOGNAME", "PATH", "PWD", "OLDPWD", "SHELL", "LANG", "LANGUAGE", "TERM", "TZ", "EDITOR",
        "HOSTNAME", "TMPDIR", "SSH_AUTH_SOCK", "XAUTHORITY", "OPENAI_BASE_URL", "OPENAI_API_BASE",
        "ANTHROPIC_BASE_URL",
    }
)  # fmt: skip


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    return name not in _PLAIN_NAMES and _SECRET_NAME.search(name) is not None


def secret_values(machine: Mapping[str, str], *, declared: Iterable[str] = (), taken: Iterable[str] = ()) -> set[str]:
    """Values that must not be recorded.

    `declared` are variables that hold declared secrets, `taken` those that a package or an agent takes from the
    machine. All other variables of the machine count when they look like secrets.
    """
    guessed = [value for name, value in machine.items() if looks_secret(name)]
    guessed += [machine[name] for name in taken if name in machine and name not in _PLAIN_NAMES]
    found = {value for value in guessed if len(value) >= SHORTEST_GUESSED}
    return found | {machine[name] for name in declared if len(machine.get(name, "")) >= SHORTEST_DECLARED}


def make_redactor(values: Iterable[str]) -> Redactor:
    """A redactor that also knows how the values look inside a URL and in base64."""
    spellings = set()
    for value in values:
        encoded = base64.b64encode(value.encode(errors="surrogateescape")).decode().rstrip("=")
        quoted = urllib.parse.quote(value, safe="", errors="surrogateescape")
        spellings |= {value, quoted, quoted.replace("%20", "+"), encoded, encoded.translate(_URL_SAFE)}
    return Redactor(spellings)


_URL_SAFE: Final = str.maketrans("+/", "-_")


def redact_folder(redactor: Redactor, root: Path) -> list[str]:
    """Remove secrets from the regular files below a folder, in place; return the changed paths.

    Names that hold a secret are changed too, links that do are removed. Links are not followed.
    """
    if not redactor.values:
        return []
    changed: list[str] = []
    for folder, folders, files in os.walk(root, topdown=False):
        for name in (*files, *folders):
            path = Path(folder, name)
            touched = _redact_entry(redactor, path)
            if redactor.text(name) != name and os.path.lexists(path):
                path = path.rename(Path(folder, redactor.text(name)))
                touched = True
            if touched:
                changed.append(path.relative_to(root).as_posix())
    return changed


def _redact_entry(redactor: Redactor, path: Path) -> bool:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        target = str(path.readlink())
        if redactor.text(target) == target:
            return False
        path.unlink()
        return True
    if not stat.S_ISREG(found.st_mode) or not found.st_size or not _holds_secret(redactor, path):
        return False
    _redact_file(redactor, path, stat.S_IMODE(found.st_mode))
    return True


def _holds_secret(redactor: Redactor, path: Path) -> bool:
    """Most files contain none: they are read once and not changed."""
    stream = redactor.stream()
    with path.open("rb") as source:
        while not stream.found and (block := source.read(_BLOCK)):
            stream.feed(block)
    stream.finish()
    return stream.found


def _redact_file(redactor: Redactor, path: Path, mode: int) -> None:
    """Rewrite a file block by block; it is replaced as a whole."""
    stream = redactor.stream()
    copy = temporary_sibling(path)
    try:
        with path.open("rb") as source, copy.open("xb") as target:
            while block := source.read(_BLOCK):
                target.write(stream.feed(block))
            target.write(stream.finish())
        copy.chmod(mode)
        copy.replace(path)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
