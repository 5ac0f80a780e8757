"""One running container: commands, files and processes in it, all through the anchor.

A greeting of the anchor proves that the engine did its part; a failure before it is the engine's and
raised, what comes after it is the command's own result.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process

from benchflow.errors import RuntimeFailure, SandboxFailure, UsageError
from benchflow.sandbox.bounded_output import BoundedOutput, Stream
from benchflow.sandbox.engine.box.anchor import Greeting
from benchflow.sandbox.engine.box.container_process import EngineProcess
from benchflow.sandbox.engine.box.file_records import Record, RecordReader
from benchflow.sandbox.engine.box.process_beginning import Beginning, beginning
from benchflow.sandbox.engine.box.record_transfer import Bounds, Owner, receive_tree, upload_stream
from benchflow.sandbox.engine.machine.engine_client import EngineClient, last_words
from benchflow.sandbox.engine.machine.ownership import ANCHOR
from benchflow.sandbox.host_process import chunks, end, open_process, opened, pump, shell_code
from benchflow.sandbox.inside.accounts import UnknownUser, find_account
from benchflow.sandbox.inside.beneath import is_plain
from benchflow.sandbox.protocol import ExecResult, OutputSink, SandboxProcess

_GRACE_SEC: Final = 15.0
"""How long after its timeout a command may take to be gone before we go after it from outside."""
_OF_THE_PLACE: Final = frozenset({"no-such-file", "refused-file", "transfer-failed"})
"""Codes of what the anchor refuses because of the files that it finds."""
_TIMED_OUT: Final = 142
"""What the anchor ends with after a timeout: 128 and the number of SIGALRM."""
_KILLED: Final = 137
_STOP: Final = "19"
_CONTINUE: Final = "18"
_MOST_LISTED: Final = 512 << 20
"""Bytes of a list of changed files."""
_CLOCK_TICK: Final = timedelta(milliseconds=10)
"""How far the clock that stamps files may be behind the one that an engine reads."""


class EngineContainer:
    """A container that runs. `user`, `workdir` and `env` hold for commands that do not say otherwise."""

    def __init__(
        self,
        client: EngineClient,
        container_id: str,
        *,
        user: str,
        workdir: str,
        env: Mapping[str, str],
        restart: Callable[[], Awaitable[None]],
    ) -> None:
        self.id: Final = container_id
        self._client = client
        self._user = user
        self._workdir = workdir
        self.env = dict(env)
        self._restart = restart
        self._processes: list[EngineProcess] = []
        self._begun: datetime | None = None
        self._starved = False
        """Whether the engine has reported a kill for lack of memory."""
        self._commands = 0
        """How many are under way, or were given up."""
        self._quiet = False
        """Whether nothing was started since everything was ended."""

    def set_defaults(self, *, user: str | None = None, env: Mapping[str, str] | None = None) -> None:
        """Change what holds for commands that do not say otherwise."""
        self._user = user or self._user
        self.env = self.env if env is None else dict(env)

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
        """As `Sandbox.exec`."""
        started = time.monotonic()
        output = BoundedOutput(max_output)
        greeting = Greeting()

        def collect(stream: Stream, data: bytes) -> None:
            shown = greeting.feed(data) if stream == "stderr" else data
            if shown:
                output.add(stream, shown)
                if on_output is not None:
                    on_output(stream, shown)

        argv, client_env = self._command(command, user, env, cwd, timeout, interactive=stdin is not None)
        limit = None if timeout is None else timeout + _GRACE_SEC
        with anyio.move_on_after(limit) as scope, self._under_way():
            async with (
                self._ended_when_left(greeting),
                opened(argv, stdin=stdin is not None, env=client_env) as process,
            ):
                await pump(process, stdin, collect)
                greeting.over = True
        duration = time.monotonic() - started
        if greeting.pid is None and not scope.cancelled_caught:
            # Docker puts some of its complaints on stdout.
            raise self._failure(greeting.words or output.kept("stdout").decode(errors="replace"))
        code = _KILLED if scope.cancelled_caught or process.returncode is None else shell_code(process.returncode)
        late = timeout is not None and duration >= timeout and code in (_TIMED_OUT, _KILLED)
        if code == _KILLED and not late and not scope.cancelled_caught:
            await self._require_memory()
        return ExecResult(
            _KILLED if late else code,
            output.kept("stdout"),
            output.kept("stderr"),
            duration,
            timed_out=late,
            dropped_bytes=output.dropped,
        )

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        """While the engine starts a command, ending all processes may come too early for it; and for one that was given
        up nobody knows until when."""
        self._quiet = False
        self._commands += 1
        yield
        self._commands -= 1

    async def _require_memory(self) -> None:
        """Raise if the machine killed a process for lack of memory since the last call.

        A container with a memory limit may have reached that, which is the command's own result.
        """
        report = await self._client.ask("inspect", "--format", "{{.State.OOMKilled}} {{.HostConfig.Memory}}", self.id)
        known, self._starved = self._starved, report.split() == ["true", "0"]
        if self._starved and not known:
            message = "A process of the sandbox was killed because the machine ran out of memory."
            raise SandboxFailure(message, code="killed-from-outside")

    async def process(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> SandboxProcess:
        """As `Sandbox.process`."""
        argv, client_env = self._command(command, user, env, cwd, None, interactive=True)
        greeting = Greeting()
        with self._under_way():
            process = await open_process(argv, stdin=True, env=client_env)
            try:
                first = await self._greeted(process, greeting)
            except BaseException:
                await end(process)
                raise
        talking = EngineProcess(process, first, lambda: self._end_tree(greeting.pid))
        self._processes.append(talking)
        return talking

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        """As `Sandbox.upload`."""
        await self._unpack(upload_stream(source, absolute(target), await self._owner(owner)))

    async def write_file(self, path: str, data: bytes, *, owner: str | None = None, mode: int = 0o644) -> None:
        """As `Sandbox.write_file`."""
        who = await self._owner(owner)
        record = Record("f", absolute(path), len(data), mode, who.uid, who.gid, time.time_ns())
        await self._unpack(_whole(record.header() + data))

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """As `Sandbox.write_files`."""
        now = time.time_ns()
        records = (Record("f", absolute(path), len(data), mtime_ns=now).header() + data for path, data in files.items())
        await self._unpack(_whole(b"".join(records)))

    async def stand_in(self, place: str, program: bytes, kept: str) -> None:
        """As `Sandbox.stand_in`."""
        name = posixpath.basename(kept).encode("utf-8", "surrogateescape")
        moved = Record("m", absolute(place), len(name)).header() + name
        front = Record("f", place, len(program), 0o755, mtime_ns=time.time_ns()).header() + program
        try:
            await self._unpack(_whole(moved + front))
        except SandboxFailure as error:
            if error.code not in _OF_THE_PLACE:
                raise
            raise SandboxFailure(f"{place} could not be replaced: {error}", code="stand-in-failed") from error

    async def overwrite(self, path: str, data: bytes) -> None:
        """Write into an existing file without replacing it, as files that the engine mounts demand."""
        await self._unpack(_whole(Record("i", absolute(path), len(data)).header() + data))

    async def make_folders(self, paths: Sequence[str], owner: Owner) -> None:
        """Make sure there are these folders; those that are made get the owner."""
        records = [Record("d", absolute(path), 0, 0o755, owner.uid, owner.gid) for path in paths]
        await self._unpack(_whole(b"".join(record.header() for record in records)))

    async def give(self, path: str, owner: Owner) -> None:
        """Change the owner of a folder and of everything of root in it; links are not followed."""
        await self._anchor("give", str(owner.uid), str(owner.gid), absolute(path))

    async def replace_by_empty(self, path: str, *, folder: bool) -> None:
        """Put an empty folder or file where something else stands, a link for instance."""
        empty = Record("d", absolute(path), mode=0o755) if folder else Record("f", absolute(path))
        await self._unpack(_whole(empty.header()))

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30, max_files: int = 100_000) -> None:
        """As `Sandbox.download`."""
        async with self._packed(source) as reader:
            await receive_tree(reader, source, target, Bounds(max_bytes, max_files))

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """As `Sandbox.read_file`."""
        async with self._packed(path) as reader:
            record = await reader.next()
            if record is None or record.type != "f":
                raise SandboxFailure(f"'{path}' is not a regular file.", code="refused-file")
            if record.size > max_bytes:
                raise SandboxFailure(f"'{path}' is larger than {max_bytes} bytes.", code="too-large")
            return await reader.take(record.size)

    async def stat(self, paths: Sequence[str]) -> list[Record]:
        """A record for each path, of type `-` for what is not there or is behind a link."""
        asked = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)
        data = await self._anchor("stat", stdin=asked, max_output=(len(asked) + 4200 * len(paths)) * 4)
        reader = RecordReader(_whole(data))
        found = []
        while (record := await reader.next()) is not None:
            if record.type == "l":
                target = (await reader.take(record.size)).decode("utf-8", "surrogateescape")
                record = replace(record, target=target)
            found.append(record)
        return found

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files and folders with all below them; what is not there is fine."""
        await self._unpack(_whole(b"".join(Record("x", absolute(path)).header() for path in paths)))

    async def copy_from(self, other: EngineContainer, path: str) -> None:
        """Make a file or tree what it is in another container, with owners, modes and times."""
        async with other._packed(path) as reader:
            await self._unpack(_moved(reader, path))

    async def diff(self) -> str:
        """The engine's list of changes; bytes of names that are not text stay what they are."""
        done = await self._client.run("diff", self.id, max_output=_MOST_LISTED)
        if done.exit_code != 0:
            raise self._client.refusal("diff", done)
        if done.dropped_bytes:
            raise _too_many_changes()
        return done.stdout.decode("utf-8", "surrogateescape")

    async def touched(self) -> list[str]:
        """Every file and link that was made or changed since the container began, by the time that only the kernel
        sets."""
        since = await self._begin() - _CLOCK_TICK
        words = (str(int(since.timestamp())), str(since.microsecond * 1000))
        data = await self._anchor("touched", *words, "/", max_output=_MOST_LISTED)
        if len(data) >= _MOST_LISTED:
            raise _too_many_changes()
        return data.decode("utf-8", "surrogateescape").split("\0")[:-1]

    async def _begin(self) -> datetime:
        """When the container was started first, by the clock of the engine's machine."""
        if self._begun is None:
            answer = await self._client.ask("inspect", "--format", "{{json .State.StartedAt}}", self.id)
            self._begun = datetime.fromisoformat(json.loads(answer))
        return self._begun

    @contextlib.asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """Every process but the anchor stands still for the time of the block.

        Engines can pause a container, but then nothing of ours can look at its files either, and a rootless engine
        without control groups of its own cannot.
        """
        if self._quiet:
            yield
            return
        await self._anchor("kill", _STOP, "-1")
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._anchor("kill", _CONTINUE, "-1")

    async def kill_processes(self) -> None:
        """End every process but the anchor; where that cannot be done from inside, by a restart of the container."""
        if self._quiet:
            return
        answer: bytes | None = None
        with contextlib.suppress(SandboxFailure), anyio.move_on_after(_GRACE_SEC):
            answer = await self._anchor("kill", "9", "-1")
        if answer is None:
            await self._begin()
            await self._restart()
        self._quiet = answer == b"gone" and not self._commands
        await self._close_processes()

    async def close(self) -> None:
        """Release the clients of processes; the container itself is removed by its owner."""
        await self._close_processes()

    async def _close_processes(self) -> None:
        for process in self._processes:
            await process.close()
        self._processes.clear()

    def _command(
        self,
        command: str | Sequence[str],
        user: str | None,
        env: Mapping[str, str] | None,
        cwd: str | None,
        timeout: float | None,
        *,
        interactive: bool,
    ) -> tuple[list[str], dict[str, str]]:
        inside = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not inside:
            raise UsageError("An empty command cannot be run.")
        seconds, micros = divmod(round((timeout or 0) * 1_000_000), 1_000_000)
        variables, client_env = self._client.environment({**self.env, **(env or {})})
        argv = self._client.argv(
            "exec",
            *(["--interactive"] if interactive else []),
            *("--user", user or self._user),
            *("--workdir", absolute(cwd or self._workdir)),
            *variables,
            self.id,
            *(ANCHOR, "run", str(seconds), str(micros)),
            *inside,
        )
        return argv, client_env

    def _anchor_argv(self, *args: str, interactive: bool) -> list[str]:
        flags = ["--interactive"] if interactive else []
        return self._client.argv("exec", *flags, "--user", "0:0", "--workdir", "/", self.id, ANCHOR, *args)

    async def _anchor(
        self, *args: str, stdin: bytes | AsyncIterator[bytes] | None = None, max_output: int = 1 << 16
    ) -> bytes:
        """Run the anchor as root; give what it wrote, raise what it complained about."""
        output, greeting = BoundedOutput(max_output), Greeting()

        def collect(stream: Stream, data: bytes) -> None:
            output.add(stream, greeting.feed(data) if stream == "stderr" else data)

        argv = self._anchor_argv(*args, interactive=stdin is not None)
        async with (
            self._ended_when_left(greeting),
            opened(argv, stdin=stdin is not None, env=self._client.environment()[1]) as process,
        ):
            await pump(process, stdin, collect)
            greeting.over = True
        if greeting.pid is None:
            raise self._failure(greeting.words)
        if process.returncode:
            raise _file_failure(process.returncode, output.kept("stderr"))
        return output.kept("stdout")

    async def _greeted(self, process: Process, greeting: Greeting) -> Beginning:
        """What came up to the greeting; without one, raise the engine's failure."""
        found = await beginning(process, greeting)
        if greeting.pid is None:
            raise self._failure(greeting.words or found.stdout.decode(errors="replace"))
        return found

    async def _unpack(self, stream: AsyncIterator[bytes]) -> None:
        await self._anchor("unpack", stdin=stream)

    @contextlib.asynccontextmanager
    async def _packed(self, path: str) -> AsyncIterator[RecordReader]:
        """The records of a file or tree. Leaving with an error stops the anchor."""
        argv = self._anchor_argv("pack", absolute(path), interactive=False)
        greeting = Greeting()
        async with (
            self._ended_when_left(greeting),
            opened(argv, stdin=False, env=self._client.environment()[1]) as process,
        ):
            first = await self._greeted(process, greeting)

            async def content() -> AsyncIterator[bytes]:
                yield first.stdout
                if process.stdout is not None:
                    async for data in chunks(process.stdout):
                        yield data
                rest = b""
                if process.stderr is not None:
                    # A sentence at most, so it waits in the pipe until the data is through.
                    rest = b"".join([data async for data in chunks(process.stderr)])
                failed = await process.wait()
                greeting.over = True
                if failed:
                    raise _file_failure(process.returncode or 1, first.stderr + rest)

            yield RecordReader(content())

    @contextlib.asynccontextmanager
    async def _ended_when_left(self, greeting: Greeting) -> AsyncIterator[None]:
        """Leaving the block early also ends the command inside.

        It stands around the engine's client, which goes first: an engine that waits for it to read would not start
        the messenger.
        """
        try:
            yield
        except BaseException:
            if not greeting.over:
                with anyio.CancelScope(shield=True):
                    await self._end_tree(greeting.pid)
            raise

    async def _end_tree(self, pid: int | None) -> None:
        if pid is not None:
            with contextlib.suppress(RuntimeFailure), anyio.move_on_after(_GRACE_SEC):
                await self._anchor("kill", "15", str(pid))

    async def _owner(self, owner: str | None) -> Owner:
        if owner is None or owner in ("root", "0"):  # whatever the accounts in there say
            return Owner()
        texts = []
        for path in ("/etc/passwd", "/etc/group"):
            try:
                texts.append((await self.read_file(path)).decode(errors="replace"))
            except SandboxFailure:
                texts.append("")
        return numeric_owner(owner, *texts)

    def _failure(self, words: str) -> RuntimeFailure:
        """Why the engine could not start something in this container."""
        self._client.raise_if_engine_failed(words)
        lowered = words.lower()
        if any(text in lowered for text in ("is not running", "no such container", "no container with name")) or (
            "container state improper" in lowered
        ):
            return SandboxFailure("The sandbox is not running.", code="sandbox-stopped")
        if "unable to find user" in lowered or "no matching entries in passwd" in lowered:
            return SandboxFailure(f"The environment has no such user: {last_words(words)}", code="unknown-user")
        if "chdir to cwd" in lowered or "workdir" in lowered:
            return SandboxFailure("The working folder does not exist in the environment.", code="no-such-folder")
        if "resource temporarily unavailable" in lowered:
            return SandboxFailure("The sandbox has reached its limit of processes.", code="sandbox-exhausted")
        return SandboxFailure(f"The engine could not run a command: {last_words(words)}", code="exec-failed")


def absolute(path: str) -> str:
    """The path if it is absolute and without `..`; anything else is wrong usage."""
    if not path.startswith("/") or not is_plain(path):
        raise UsageError(f"'{path}' is not an absolute path without '..'.", code="unsafe-path")
    return path


def numeric_owner(owner: str, passwd: str, group: str) -> Owner:
    """`NAME`, `UID`, `NAME:GROUP` or `UID:GID` as numbers, by the texts of an image."""
    try:
        account = find_account(owner, passwd, group)
    except UnknownUser as error:
        raise SandboxFailure(str(error), code="unknown-user") from None
    return Owner(account.uid, account.gid)


def _file_failure(code: int, complaint: bytes) -> SandboxFailure:
    words = complaint.decode(errors="replace").strip() or f"The transfer failed with exit code {code}"
    known = {2: "no-such-file", 40: "refused-file", 28: "disk-full", 20: "no-such-file"}
    return SandboxFailure(f"{words}.", code=known.get(code, "transfer-failed"))


def _too_many_changes() -> SandboxFailure:
    return SandboxFailure(f"The list of changed files is larger than {_MOST_LISTED >> 20} MiB.", code="too-large")


async def _moved(reader: RecordReader, place: str) -> AsyncIterator[bytes]:
    """The records of a tree again, under the absolute path they came from."""
    while (record := await reader.next()) is not None:
        if record.type in "s-":
            continue
        path = f"{place.rstrip('/')}/{record.path}" if record.path else place
        yield replace(record, path=path).header()
        async for part in reader.data(record.size if record.type in "fl" else 0):
            yield part


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data
