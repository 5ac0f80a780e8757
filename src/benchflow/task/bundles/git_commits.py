"""Single commits of Git repositories, kept in the user's cache and read without a working tree.

    STORE/repositories/KEY/        a bare repository with the commits that were fetched from one address

Only the named commit is fetched: no tags, no other history, no submodules. Files are read as blobs, so hooks, filters,
attributes and LFS have no part in it, and Git never asks for credentials on a terminal. What is there is not fetched
again, so everything works offline afterwards.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.files.user_store import default_store
from benchflow.task.bundles.kept_packages import hold

COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_ADDRESS: Final = re.compile(r"(?:https?|git|ssh|file)://[^\s]+|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^\s]+")
_PROTOCOLS: Final = "https:http:git:ssh:file"
_SETTINGS: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "credential.interactive=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=30",
    "protocol.version=2",
)
_FETCH_SEC: Final = 1800
_SHOWN: Final = 300


class FetchError(Exception):
    """Why a commit cannot be used, as one sentence."""


_fetched: Final[dict[tuple[str, str], Path | FetchError]] = {}
"""What this process has asked for: a server that does not answer is not asked for every task."""


class Blob(NamedTuple):
    """An entry of a commit."""

    mode: str
    oid: str
    size: int


def repositories_place() -> Path:
    return default_store() / "repositories"


def fetch_commit(address: str, commit: str) -> Path:
    """The repository with a commit, fetched if it is not there; raises `FetchError`. Each is asked for once."""
    if COMMIT.fullmatch(commit) is None:
        raise FetchError(f"'{commit[:80]}' is not a commit: a registry names commits by their full hash")
    if _ADDRESS.fullmatch(address) is None:
        raise FetchError(f"'{address[:200]}' is not a Git address that is allowed: https, http, ssh, git or file")
    key = (address, commit)
    if key not in _fetched:
        try:
            _fetched[key] = _present(address, commit)
        except FetchError as error:
            _fetched[key] = error
    known = _fetched[key]
    if isinstance(known, FetchError):
        raise known
    return known


def _present(address: str, commit: str) -> Path:
    place = repositories_place()
    hold(place)
    repository = place / hashlib.sha256(address.encode()).hexdigest()
    if _has(repository, commit):
        os.utime(repository)
        return repository
    with repository.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _has(repository, commit):
            _fetch(repository, address, commit)
    return repository


def _fetch(repository: Path, address: str, commit: str) -> None:
    if not (repository / "HEAD").is_file():
        shutil.rmtree(repository, ignore_errors=True)
        _git(None, "init", "-q", "--bare", "--template=", f"--object-format={_format(commit)}", str(repository))
    words = ("fetch", "-q", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--")
    done = _run(repository, [*words, address, commit], timeout=_FETCH_SEC)
    if done.returncode != 0 or not _has(repository, commit):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["the server did not send it"]
        raise FetchError(f"commit {commit} cannot be fetched from {address}: {lines[-1][:_SHOWN]}")


def _format(commit: str) -> str:
    return "sha1" if len(commit) == 40 else "sha256"


def _has(repository: Path, commit: str) -> bool:
    if not (repository / "HEAD").is_file():
        return False
    done = _run(repository, ["cat-file", "-e", f"{commit}^{{tree}}"])
    return done.returncode == 0


def tree_of(repository: Path, commit: str) -> dict[str, Blob]:
    """Every entry of a commit by its path; names that are not UTF-8 are left as Git has them."""
    found: dict[str, Blob] = {}
    listing = _git(repository, "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
    for row in listing.split(b"\0"):
        if row:
            head, _, name = row.partition(b"\t")
            mode, _, oid, size = head.decode().split()
            found[os.fsdecode(name)] = Blob(mode, oid, int(size) if size.isdigit() else 0)
    return found


def read_blobs(repository: Path, oids: Sequence[str]) -> Iterator[bytes]:
    """The contents of blobs, in order."""
    output = _git(repository, "cat-file", "--batch", stdin="".join(f"{oid}\n" for oid in oids).encode())
    place = 0
    for oid in oids:
        end = output.index(b"\n", place)
        words = output[place:end].split()
        if len(words) != 3 or words[1] != b"blob":
            raise InfrastructureFailure(f"{repository} lacks the object {oid}; remove it with `bench cache prune`.")
        size = int(words[2])
        yield output[end + 1 : end + 1 + size]
        place = end + 2 + size


def commit_folder(folder: Path, *, leave_out: Sequence[str] = ()) -> str:
    """Make a folder a repository with one commit of everything in it; the same content gives the same commit.

    Whatever attributes and ignore files in it say, every byte is committed as it is.
    """
    date = "1980-01-01T00:00:00Z"
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for who in ("AUTHOR", "COMMITTER"):
        own |= {f"GIT_{who}_NAME": "benchcube", f"GIT_{who}_EMAIL": "benchcube@localhost", f"GIT_{who}_DATE": date}
    _git(folder, "init", "-q", "--template=", "--initial-branch=main", env=own)
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/attributes").write_text("* -text -filter -ident -working-tree-encoding\n")
    _git(
        folder,
        "-c",
        "core.fileMode=true",
        "add",
        "--all",
        "--force",
        "--",
        ".",
        *(f":!{name}" for name in leave_out),
        env=own,
    )
    _git(folder, "commit", "-q", "--no-verify", "--no-gpg-sign", "-m", "Tasks of the dataset", env=own)
    commit = _git(folder, "rev-parse", "HEAD", env=own).decode().strip()
    if any(blob.mode == "160000" for blob in tree_of(folder / ".git", commit).values()):
        raise UsageError(f"{folder} has a Git repository in a task, which a dataset cannot keep", code="git-failed")
    return commit


def _git(place: Path | None, *words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
    done = _run(place, words, stdin=stdin, env=env)
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it failed"]
        raise InfrastructureFailure(f"git {words[0]}: {lines[-1][:_SHOWN]}", code="git-failed")
    return done.stdout


def _run(
    place: Path | None,
    words: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout: float = 600,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    where = [] if place is None else ["-C", str(place)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {
        **kept,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "SSH_ASKPASS": "true",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        "GIT_ALLOW_PROTOCOL": _PROTOCOLS,
        "GIT_LFS_SKIP_SMUDGE": "1",
        "LC_ALL": "C",
        **(env or {}),
    }
    try:
        return subprocess.run(
            ["git", *settings, *where, *words],
            input=stdin,
            capture_output=True,
            timeout=timeout,
            env=environment,
            check=False,
        )
    except FileNotFoundError as error:
        raise InfrastructureFailure(
            "Git is needed for registry files and is not installed.", code="git-missing"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InfrastructureFailure(
            f"git {words[0]} exceeded its limit of {timeout:g} s.", code="git-failed"
        ) from error
