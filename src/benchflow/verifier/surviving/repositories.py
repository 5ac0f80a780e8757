"""Settings of git repositories that an agent changed: a repository is data, its settings run programs.

In the verifier's copy they are reduced to keys that cannot run or redirect anything; what the environment was built
with stays. `candidates` chooses files from the list of changes, `settle` rewrites them with the environment's git.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchflow.errors import SandboxFailure
from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change, Sandbox

SETTINGS: Final = frozenset({"config", "config.worktree"})
"""Names of files with the settings of a repository, case-folded."""
POINTERS: Final = frozenset({".git", "commondir"})
"""Names of files that lead git to another place."""
_AT_ONCE: Final = 200
_TIMEOUT_SEC: Final = 60.0
_MAX_BYTES: Final = 16 << 20
_LARGEST: Final = 1 << 20
"""How long settings may be that are read without git."""
_LIST: Final = r"""
command -v git >/dev/null && git=yes || git=
for place do
  folder=${place%/*}
  case $folder/ in
    */.git/*) ;;
    *) [ -e "$folder/HEAD" ] || [ -d "$folder/objects" ] || [ -d "$folder/refs" ] || continue ;;
  esac
  printf 'file\n%s\0' "$place"
  if [ -L "$place" ] || [ ! -f "$place" ]; then printf 'unfit\0'
  elif [ ! "$git" ]; then printf 'unread\0'
  else git config --file "$place" --no-includes --null --list 2>/dev/null || printf 'unfit\0'
  fi
done
"""
"""Prints each file in a folder that can be a repository, and its settings; a key has a dot, other words have none.
Without git, which a verifier may install later, the file is `unread`."""
_SECTION: Final = re.compile(r'\[([A-Za-z][A-Za-z0-9-]*)(?: "([^"\\]+)")?\]')
_ENTRY: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]*) *= *([^\"\\;#]*)")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a repository; without a value it is a switch."""

    key: str
    value: str | None


def candidates(changes: Iterable[Change], withheld: PathSet) -> list[Change]:
    """Surviving files that may be the settings of a repository."""
    return [
        change
        for change in changes
        if change.path.rpartition("/")[2].casefold() in SETTINGS
        and change.kind != "deleted"
        and change.type != "directory"
        and not withheld.covers(change.path)
    ]


_HOOKS: Final = r"""
line() {
  found=$(head -c 4096 -- "$1" | tr -d '\0' | head -n 1)
  case $found in "gitdir: "*) found=${found#gitdir: };; esac
}
hooks() {
  cd -P "$1/hooks" 2>/dev/null || return 0
  for hook in *; do [ ! -e "$hook" ] || printf '%s\0' "$(pwd)/$hook"; done
}
for place do
  folder=$place
  case $place in */commondir) folder=${place%/*};; esac
  if [ ! -d "$folder" ]; then
    line "$folder"
    case $found in /*) folder=$found;; *) folder=${place%/*}/$found;; esac
  fi
  (hooks "$folder")
  if [ -f "$folder/commondir" ]; then
    line "$folder/commondir"
    case $found in /*) (hooks "$found");; *) (hooks "$folder/$found");; esac
  fi
done
true
"""
"""Prints the hooks of repositories that are elsewhere: a file or link `.git` leads there, or their common folder."""


def elsewhere(changes: Iterable[Change], withheld: PathSet) -> list[str]:
    """What leads git from a working tree to a repository in another place."""
    return [
        change.path
        for change in changes
        if change.path.rpartition("/")[2] in POINTERS
        and change.type != "directory"
        and change.kind != "deleted"
        and not withheld.covers(change.path)
    ]


async def settle_hooks(forked: Sandbox, places: Sequence[str], own: PathSet) -> list[str]:
    """Remove the agent's `own` hooks from repositories that are elsewhere; the paths that were removed.

    Variables turn hooks off for commands of the verifier, but not for those that it starts without an environment.
    """
    removed: list[str] = []
    for start in range(0, len(places), _AT_ONCE):
        words = ["/bin/sh", "-c", _HOOKS, "sh", *places[start : start + _AT_ONCE]]
        result = await forked.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC, max_output=_MAX_BYTES)
        if not result.ok or result.dropped_bytes:
            raise SandboxFailure("Hooks of repositories could not be listed.", code="listing-failed")
        found = result.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
        gone = [path for path in dict.fromkeys(found) if own.covers(path) and not path.endswith(".sample")]
        if (
            gone
            and not (await forked.exec(["/bin/rm", "-rf", "--", *gone], user="root", cwd="/", timeout=_TIMEOUT_SEC)).ok
        ):
            raise SandboxFailure("Hooks of repositories could not be removed.", code="cleanup-failed")
        removed += gone
    return removed


async def settle(
    forked: Sandbox, changes: Iterable[Change], workdir: str, pristine: Callable[[], Awaitable[Sandbox]]
) -> list[str]:
    """Rewrite the settings among the candidates in a fork; the paths of which something was left out.

    `pristine` is asked for a sandbox of the environment as built if something of its own may have to stay.
    """
    kinds = {change.path: change.kind for change in changes}
    found = await _read(forked, list(kinds))
    unfit = [path for path, settings in found.items() if not _is_fit(settings, path, workdir)]
    former = [path for path in unfit if kinds[path] == "changed"]
    built = await _read(await pristine(), former) if former else {}
    changed = []
    for path in unfit:
        settings, own = found[path], built.get(path) or []
        kept = [
            item for item in (own if settings is None else settings) if item in own or _is_fit([item], path, workdir)
        ]
        if kept != settings:
            await _replace(forked, path, rendered(kept))
            changed.append(path)
    return changed


def _is_fit(settings: Sequence[Setting] | None, path: str, workdir: str) -> bool:
    return settings is not None and all(is_harmless(item, path, workdir) for item in settings)


async def _read(sandbox: Sandbox, paths: Sequence[str]) -> dict[str, list[Setting] | None]:
    """The settings of each repository file among `paths`; None for one that cannot be judged."""
    found: dict[str, list[Setting] | None] = {}
    pending = [list(paths[start : start + _AT_ONCE]) for start in range(0, len(paths), _AT_ONCE)]
    while pending:
        chunk = pending.pop()
        words = ["/bin/sh", "-c", _LIST, "sh", *chunk]
        result = await sandbox.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC, max_output=_MAX_BYTES)
        if result.ok and not result.dropped_bytes:
            for path in _parse(result.stdout.decode("utf-8", "surrogateescape"), found):
                found[path] = await _read_plain(sandbox, path)
        elif len(chunk) > 1:
            pending += [[path] for path in chunk]  # one of them is endless: the others are judged without it
        else:
            found[chunk[0]] = None
    return found


async def _read_plain(sandbox: Sandbox, path: str) -> list[Setting] | None:
    try:
        return plain_settings((await sandbox.read_file(path, max_bytes=_LARGEST)).decode())
    except (SandboxFailure, UnicodeDecodeError):
        return None


def plain_settings(text: str) -> list[Setting] | None:
    """The settings in a file as git writes them; None if anything in it could be read in another way."""
    found: list[Setting] = []
    section = ""
    for line in text.split("\n"):
        words = line.strip(" \t")
        if not words:
            continue
        if re.search(r"[\x00-\x1f\x7f-\uffff]", words):
            return None
        if head := _SECTION.fullmatch(words):
            section = head[1].lower() + (f".{head[2]}" if head[2] else "")
        elif (entry := _ENTRY.fullmatch(words)) and section:
            found.append(Setting(f"{section}.{entry[1].lower()}", entry[2].strip(" ")))
        else:
            return None
    return found


def _parse(text: str, found: dict[str, list[Setting] | None]) -> Iterator[str]:
    """Enter what was printed; the files that are still to be read."""
    path = ""
    for record in text.split("\0")[:-1]:
        key, newline, value = record.partition("\n")
        if key == "file":
            path = value
            found[path] = []
        elif key in ("unfit", "unread"):
            found[path] = None
            if key == "unread":
                yield path
        else:
            settings = found[path]
            if settings is not None:
                settings.append(Setting(key, value if newline else None))


async def _replace(forked: Sandbox, path: str, text: str) -> None:
    result = await forked.exec(["/bin/rm", "-rf", "--", path], user="root", cwd="/", timeout=_TIMEOUT_SEC)
    if not result.ok:
        raise SandboxFailure(f"The settings {path} could not be replaced.", code="cleanup-failed")
    await forked.write_file(path, text.encode("utf-8", "surrogateescape"))


_PLAIN: Final = frozenset(
    {
        *(f"core.{name}" for name in (
            "repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase", "precomposeunicode",
            "symlinks", "autocrlf", "eol", "safecrlf", "quotepath", "abbrev", "sharedrepository", "compression",
            "loosecompression", "bigfilethreshold", "preloadindex", "untrackedcache", "commitgraph", "multipackindex",
            "sparsecheckout", "sparsecheckoutcone", "trustctime", "checkstat", "whitespace", "commentchar",
            "protecthfs", "protectntfs",
        )),
        *(f"extensions.{name}" for name in (
            "objectformat", "worktreeconfig", "refstorage", "noop", "preciousobjects", "relativeworktrees",
        )),
        *(f"{who}.{name}" for who in ("user", "author", "committer") for name in ("name", "email", "useconfigonly")),
        "init.defaultbranch", "pull.rebase", "pull.ff", "push.default", "push.autosetupremote", "push.followtags",
        "fetch.prune", "fetch.prunetags", "merge.ff", "merge.conflictstyle", "merge.renames", "rebase.autosquash",
        "rebase.autostash", "rerere.enabled", "rerere.autoupdate", "gc.auto", "index.version", "status.short",
        "status.branch", "status.showuntrackedfiles", "log.date", "log.decorate", "log.abbrevcommit", "log.follow",
        "diff.algorithm", "diff.renames", "diff.renamelimit", "diff.context", "diff.noprefix", "diff.mnemonicprefix",
        "diff.colormoved", "diff.indentheuristic", "color.ui", "tag.sort", "i18n.commitencoding",
        "i18n.logoutputencoding", "submodule.recurse", "submodule.active", "receive.denycurrentbranch",
        "receive.denynonfastforwards", "receive.denydeletes", "transfer.fsckobjects", "pack.threads",
    }
)  # fmt: skip
_OF_ONE: Final = {
    "remote": frozenset({"url", "pushurl", "fetch", "push", "tagopt", "prune", "mirror"}),
    "branch": frozenset({"remote", "pushremote", "merge", "rebase", "description"}),
    "submodule": frozenset({"url", "active", "branch", "path"}),
}
"""Keys of one remote, branch or submodule."""
_ADDRESSES: Final = frozenset({"url", "pushurl", "remote", "pushremote"})
_WORKTREE: Final = "core.worktree"


def is_harmless(setting: Setting, path: str, workdir: str) -> bool:
    """Whether a setting of the file at `path` can neither run a program nor lead git elsewhere."""
    section, _, rest = setting.key.partition(".")
    one, _, name = rest.rpartition(".")
    if setting.key == _WORKTREE:
        return _stays(setting.value or "", path, workdir)
    if not one:
        return f"{section}.{name}" in _PLAIN
    if name not in _OF_ONE.get(section, ()):
        return False
    return name not in _ADDRESSES or _is_plain_address(setting.value or "")


def _stays(value: str, path: str, workdir: str) -> bool:
    """Whether a working tree, as submodules have one, is inside the working folder."""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(path), value))
    return bool(value) and not value.startswith("/") and place.startswith(f"{workdir.rstrip('/')}/")


def _is_plain_address(value: str) -> bool:
    """An address of an ordinary transport; `ext::` and its like run programs, and an option is not an address."""
    return "::" not in value and not value.startswith("-") and re.search(r"[\x00-\x1f]", value) is None


def rendered(settings: Iterable[Setting]) -> str:
    """The settings as a file."""
    return "".join(_line(item) for item in settings)


def _line(setting: Setting) -> str:
    section, _, rest = setting.key.partition(".")
    one, _, name = rest.rpartition(".")
    head = f'[{section} "{_escaped(one)}"]' if one else f"[{section}]"
    if setting.value is None:
        return f"{head}\n\t{name}\n"
    value = _escaped(setting.value).replace("\n", "\\n").replace("\t", "\\t").replace("\b", "\\b")
    return f'{head}\n\t{name} = "{value}"\n'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
