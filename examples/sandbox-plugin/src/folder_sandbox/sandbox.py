"""`FolderSandbox`: a folder that is the root of every command, through `unshare` and `chroot`."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Final, Literal

import anyio
import anyio.abc

from benchflow.sandbox import (
    NO_SUCH_FILE,
    BoundedOutput,
    Change,
    EnvironmentFailure,
    ExecResult,
    Mount,
    NetworkPolicy,
    OutputSink,
    Revert,
    Rights,
    Sandbox,
    SandboxFailure,
    SandboxProcess,
    SandboxSpec,
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from folder_sandbox import FolderBackend

_KILLED: Final = 137
_FOLDERS: Final = ("app", "dev", "etc", "home", "logs", "proc", "root", "srv", "tmp", "usr", "var/tmp")
_ENTER: Final = """
root=$1 cwd=$2 mounts=$3 path=$PATH; shift 3
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount --bind /usr "$root/usr" && mount -o remount,bind,ro "$root/usr" || exit 125
mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" || exit 125
while [ "$mounts" -gt 0 ]; do
  mount --bind "$1" "$root$2" && mount -o remount,bind,ro "$root$2" || exit 125
  mounts=$((mounts - 1)); shift 2
done
exec chroot "$root" /usr/bin/env PATH="$path" /bin/sh -c 'cd "$0" && exec "$@"' "$cwd" "$@"
"""
"""Run in a mount namespace of its own: binds what a root needs, then enters it. 125: the root cannot be made."""


def make_root(root: Path) -> None:
    """A root as every sandbox begins: the system's programs are mounted, the rest is empty folders."""
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        target = Path("/") / name
        if target.is_symlink():
            (root / name).symlink_to(target.readlink())
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\n")
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    (root / "tmp").chmod(0o1777)


def within(root: Path, mounts: Sequence[Mount], cwd: str, command: Sequence[str]) -> list[str]:
    """A command of the host that runs `command` inside a root; all it starts ends with it."""
    bound = [word for mount in mounts for word in (str(mount.source.resolve()), mount.target)]
    namespaces = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
    return [*namespaces, "/bin/sh", "-c", _ENTER, "sh", str(root), cwd, str(len(mounts)), *bound, *command]


class FolderProcess(SandboxProcess):
    """A command to talk to."""

    def __init__(self, process: anyio.abc.Process, forget: set[anyio.abc.Process]) -> None:
        self._process = process
        self._running = forget

    async def send(self, data: bytes) -> None:
        if self._process.stdin is not None:
            await self._process.stdin.send(data)

    async def close_stdin(self) -> None:
        if self._process.stdin is not None:
            await self._process.stdin.aclose()

    async def stdout(self) -> AsyncIterator[bytes]:
        if self._process.stdout is not None:
            async for chunk in self._process.stdout:
                yield chunk

    async def stderr(self) -> AsyncIterator[bytes]:
        if self._process.stderr is not None:
            async for chunk in self._process.stderr:
                yield chunk

    async def wait(self) -> int:
        code = await self._process.wait()
        self._running.discard(self._process)
        return _as_shell(code)

    async def kill(self) -> None:
        await end(self._process)
        self._running.discard(self._process)


async def end(process: anyio.abc.Process) -> None:
    """Kill a command with all it started: its process namespace ends with its first process."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.kill()
        await process.wait()


def _as_shell(code: int) -> int:
    return 128 - code if code < 0 else code


class FolderSandbox(Sandbox):
    """A copy of a root. Commands run as root in it, each in namespaces of its own, so none outlives its call."""

    def __init__(self, backend: FolderBackend, spec: SandboxSpec, origin: Path) -> None:
        self.id = secrets.token_hex(8)
        self.spec = spec
        self._backend = backend
        self._origin = origin
        self._root = backend.place / self.id
        self._running: set[anyio.abc.Process] = set()

    @property
    def capabilities(self) -> frozenset[str]:
        return self._backend.declared

    async def start(self) -> None:
        limits = self.spec.limits
        if limits != type(limits)():
            raise UnsupportedError("The sandbox 'folder' has no limits.", path="limits")
        if self.spec.network.mode != "public":
            raise UnsupportedError("The sandbox 'folder' does not isolate the network.", path="network")
        missing = next((mount.source for mount in self.spec.mounts if not mount.source.exists()), None)
        if missing is not None:
            raise EnvironmentFailure(f"The mount {missing} does not exist.", code="mount-missing")
        await anyio.to_thread.run_sync(lambda: shutil.copytree(self._origin, self._root, symlinks=True))
        self._inside(self.spec.workdir).mkdir(parents=True, exist_ok=True)
        for mount in self.spec.mounts:
            self._prepare_mount(mount)

    def _prepare_mount(self, mount: Mount) -> None:
        place = self._inside(mount.target)
        if mount.source.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()

    # --- commands ---

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: bytes | None = None,
        on_output: OutputSink | None = None,
        max_output: int = 8 << 20,
    ) -> ExecResult:
        began = time.monotonic()
        process = await self._open(command, user, env, cwd, stdin is not None)
        kept = BoundedOutput(max_output)

        async def pump(name: Literal["stdout", "stderr"], stream: anyio.abc.ByteReceiveStream | None) -> None:
            async for chunk in stream or ():  # type: ignore[union-attr]
                kept.add(name, chunk)
                if on_output is not None:
                    on_output(name, chunk)

        timed_out = True
        try:
            with anyio.move_on_after(timeout):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(pump, "stdout", process.stdout)
                    tasks.start_soon(pump, "stderr", process.stderr)
                    if process.stdin is not None:
                        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                            await process.stdin.send(stdin or b"")
                            await process.stdin.aclose()
                    await process.wait()
                timed_out = False
        finally:
            await end(process)
            self._running.discard(process)
        code = _KILLED if timed_out else _as_shell(process.returncode or 0)
        spent = time.monotonic() - began
        return ExecResult(code, kept.kept("stdout"), kept.kept("stderr"), spent, timed_out, kept.dropped)

    async def process(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> SandboxProcess:
        return FolderProcess(await self._open(command, user, env, cwd, True), self._running)

    async def _open(
        self,
        command: str | Sequence[str],
        user: str | None,
        env: Mapping[str, str] | None,
        cwd: str | None,
        writable: bool,
    ) -> anyio.abc.Process:
        self._require_running()
        if user not in (None, "root", "0"):
            raise SandboxFailure(f"There is no user '{user}': everybody is root in this sandbox.", code="unknown-user")
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", **self.spec.env, **(env or {})}
        process = await anyio.open_process(
            within(self._root, self.spec.mounts, cwd or self.spec.workdir, words),
            stdin=PIPE if writable else DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            env=variables,
        )
        self._running.add(process)
        return process

    def _require_running(self) -> None:
        if not self._root.exists():
            raise SandboxFailure("The sandbox does not run.", code="sandbox-gone")

    async def kill_processes(self) -> None:
        for process in list(self._running):
            await end(process)
        self._running.clear()

    async def has_processes(self) -> bool:
        return any(process.returncode is None for process in self._running)

    # --- files ---

    def _inside(self, path: str, *, clear: bool = False) -> Path:
        """The host's path of a path inside. A link on the way is refused, or removed (`clear`), and never followed."""
        parts = PurePosixPath(path).parts
        if not path.startswith("/") or ".." in parts or "\0" in path:
            raise UsageError(f"{path!r} is not an absolute path without '..'.", code="path-invalid")
        place = self._root
        for name in parts[1:]:
            place /= name
            if place.is_symlink() and place.parent != self._root / "usr":
                if not clear:
                    raise SandboxFailure(f"{path} leads through a link, which is not followed.", code="refused")
                place.unlink()
        return place

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        self._require_running()
        place = self._inside(target, clear=True)
        if not source.is_dir():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place)
            return
        for entry in sorted(source.rglob("*")):
            goal = self._inside(f"{target.rstrip('/')}/{entry.relative_to(source).as_posix()}", clear=True)
            if entry.is_symlink():
                goal.unlink(missing_ok=True)
                goal.symlink_to(entry.readlink())
            elif entry.is_dir():
                goal.mkdir(parents=True, exist_ok=True)
            else:
                goal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(entry, goal)
        place.mkdir(parents=True, exist_ok=True)

    async def write_file(self, path: str, data: bytes, *, owner: str | None = None, mode: int = 0o644) -> None:
        self._require_running()
        place = self._inside(path, clear=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        place.chmod(mode)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        self._require_running()
        place = self._inside(path)
        if not place.exists():
            raise SandboxFailure(f"{path} does not exist.", code=NO_SUCH_FILE)
        if not place.is_file():
            raise SandboxFailure(f"{path} is not a regular file.", code="refused-file")
        if place.stat().st_size > max_bytes:
            raise SandboxFailure(f"{path} is larger than {max_bytes} bytes.", code="too-large")
        return place.read_bytes()

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30, max_files: int = 100_000) -> None:
        self._require_running()
        place = self._inside(source)
        if not place.exists():
            raise SandboxFailure(f"{source} does not exist.", code=NO_SUCH_FILE)
        entries = [place, *(place.rglob("*") if place.is_dir() else ())]
        for entry in entries:
            leads = Path(os.path.normpath(entry.parent / entry.readlink())) if entry.is_symlink() else entry
            if not leads.is_relative_to(place) or not (entry.is_symlink() or entry.is_file() or entry.is_dir()):
                raise SandboxFailure(f"{source} holds a special file or a link that leaves it.", code="refused")
        if len(entries) > max_files or sum(entry.lstat().st_size for entry in entries if entry.is_file()) > max_bytes:
            raise SandboxFailure(f"{source} is more than may be taken out.", code="too-large")
        if place.is_dir():
            shutil.copytree(place, target, symlinks=True, dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(place, target)

    # --- states ---

    async def changes(self) -> list[Change]:
        self._require_running()
        built = dict(_listed(self._backend.place / "built"))
        now = dict(_listed(self._root))
        made = {"/" + "/".join(PurePosixPath(place).parts[1:end]) for place in self._made() for end in range(2, 9)}
        mounted = tuple(f"{mount.target}/" for mount in self.spec.mounts)
        found = []
        for path in sorted(built.keys() | now.keys()):
            if path in made or path.startswith(mounted):
                continue
            if path not in now:
                if str(PurePosixPath(path).parent) not in built.keys() - now.keys():
                    found.append(Change(path, "deleted", _type(built[path])))
            elif path not in built or _differs(self._backend.place / "built", self._root, path):
                found.append(_change(self._root, path, now[path], "changed" if path in built else "added"))
        return found

    def _made(self) -> list[str]:
        """Paths that are there because the sandbox was made with them."""
        return [self.spec.workdir, *(mount.target for mount in self.spec.mounts)]

    async def set_network(self, policy: NetworkPolicy) -> None:
        if policy.mode != "public":
            raise UnsupportedError("The sandbox 'folder' does not isolate the network.", path="network")

    async def fork(
        self, *, mounts: Sequence[Mount] = (), network: NetworkPolicy | None = None, revert: Revert | None = None
    ) -> Sandbox:
        spec = replace(self.spec, mounts=(*self.spec.mounts, *mounts), network=network or self.spec.network)
        copy = FolderSandbox(self._backend, replace(spec, mounts=()), self._root)
        await copy.start()
        for path in revert(await self.changes()) if revert is not None else ():
            copy._put_back(path)
        for mount in mounts:
            place = copy._inside(mount.target, clear=True)
            if place.is_file():
                place.unlink()
            copy._prepare_mount(mount)
        copy.spec = spec
        return copy

    def _put_back(self, path: str) -> None:
        place, built = self._inside(path, clear=True), self._backend.place / "built" / path.lstrip("/")
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        if built.is_dir() and not built.is_symlink():
            shutil.copytree(built, place, symlinks=True)
        elif built.exists() or built.is_symlink():
            shutil.copy2(built, place, follow_symlinks=False)

    async def stop(self) -> None:
        await self.kill_processes()
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(self._root, ignore_errors=True))


def _listed(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            yield f"/{path.relative_to(root).as_posix()}", path.lstat()


def _differs(built: Path, root: Path, path: str) -> bool:
    one, other = built / path.lstrip("/"), root / path.lstrip("/")
    before, after = one.lstat(), other.lstat()
    if before.st_mode != after.st_mode:
        return True
    if stat.S_ISLNK(after.st_mode):
        return one.readlink() != other.readlink()
    return stat.S_ISREG(after.st_mode) and one.read_bytes() != other.read_bytes()


def _type(found: os.stat_result) -> Literal["file", "directory", "symlink", "special"]:
    kinds: dict[int, Literal["file", "directory", "symlink"]] = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symlink",
    }
    return kinds.get(stat.S_IFMT(found.st_mode), "special")


def _change(root: Path, path: str, found: os.stat_result, kind: Literal["added", "changed"]) -> Change:
    target = str((root / path.lstrip("/")).readlink()) if stat.S_ISLNK(found.st_mode) else None
    rights = Rights(stat.S_IMODE(found.st_mode), 0, 0, int(found.st_mtime))
    size = found.st_size if stat.S_ISREG(found.st_mode) else 0
    return Change(path, kind, _type(found), size, target, rights)
