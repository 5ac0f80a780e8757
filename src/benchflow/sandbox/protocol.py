"""The contract between a caller and the box in which its commands run.

A `SandboxBackend` turns a `SandboxSpec` into a `Sandbox`; a sandbox executes commands, moves files in and
out, lists the changes since its environment was built, and forks. Everything is asynchronous (anyio).
Backends declare what they support as capability names (`CAPABILITIES`); anything else is refused before
anything starts.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypedDict

from benchflow.errors import SandboxFailure, UnsupportedError
from benchflow.record import Fidelity
from benchflow.sandbox.pulling import PullSettings
from benchflow.task.config.task_config import MAIN_SERVICE

NetworkMode = Literal["none", "public", "allowlist"]
ChangeKind = Literal["added", "changed", "deleted"]
OutputSink = Callable[[Literal["stdout", "stderr"], bytes], None]

NO_SUCH_FILE: Final = "no-such-file"
OF_THE_FILE: Final = frozenset({NO_SUCH_FILE, "refused", "refused-file", "too-large"})
"""Codes of a `SandboxFailure` that concern the entry at a path; all others are failures of the sandbox."""

NO_FORWARDING: Final = (
    "This sandbox cannot forward ports and sockets to a copy, which is how services are verified; use the sandbox "
    "`local`, or verify in the agent's own sandbox (`verifier.isolation: open`)."
)

_OTHERS: Final = (
    'for p in /proc/[0-9]*; do p=${p#/proc/}; case $p in 1|$$|$PPID) ;; *) read -r _ _ s _ <"/proc/$p/stat" 2>/dev/null'
    ' && [ "$s" != Z ] && echo "$p";; esac; done; true'
)
"""A shell's way to list the processes that are not its own."""
CAPABILITIES: Final[Mapping[str, str]] = {
    "network.none": "loopback only",
    "network.public": "unrestricted egress",
    "network.allowlist": "egress to declared hosts only",
    "limits.cpu": "cpus",
    "limits.memory": "memory",
    "limits.pids": "number of processes",
    "limits.disk": "bytes and inodes written",
    "limits.time": "wall time of a command, including its process tree",
    "users": "commands as any user of the environment, with its real uid",
    "build.dockerfile": "environments built from a Dockerfile",
    "image": "environments from a named image",
    "compose": "several services from a compose file",
    "services": "services of an environment manifest",
    "healthcheck": "readiness checks",
    "mounts": "read-only host folders at absolute paths",
    "fork": "independent copies of a sandbox",
    "snapshot": "states that can be restored",
    "forward": "ports and named sockets of a running sandbox, usable from a fork of it",
    "gpu": "GPUs",
    "windows": "Windows environments",
    "tpu": "TPUs",
}
"""All capabilities with their meaning. A backend declares a subset."""


_STAND_IN_SEC: Final = 60.0
DEFAULT_PIDS: Final = 4096
"""How many processes a sandbox has where nobody declares a number: more than any task needs, less than hurts others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use; None leaves a resource to the machine, and processes to the backend's default."""

    cpus: float | None = None
    memory_mb: int | None = None
    pids: int | None = None
    storage_mb: int | None = None
    inodes: int | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """How far a sandbox can reach. `hosts` counts for `allowlist`: exact names or `*.` wildcards."""

    mode: NetworkMode = "none"
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mount:
    """A host file or folder that appears read-only at an absolute path, hiding anything there."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Image:
    """A built or registered environment, as a backend's image store resolved it.

    `reference` names it for the backend (a layer stack for `local`, an image id for an engine); the rest is
    what the image says about itself and what a Dockerfile recorded.
    """

    reference: str
    digest: str
    layers: tuple[Path, ...] = ()
    """Lowest first; used by `local` only."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    healthcheck: Healthcheck | None = None
    base: str = "host"
    fidelity: Fidelity = "exact"
    instead_of: tuple[str, ...] = ()
    """Of a substitute: the images that the package names, as it names them."""
    base_digest: str | None = None
    """The digest by which a registry knows the base image, where it is known."""
    lacks: tuple[str, ...] = ()
    """What a substitute does not have of them, one phrase each, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """When an environment counts as ready."""

    command: str | tuple[str, ...]
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class Composition:
    """The services of a compose file, with their images: what it declares for `main`, for a `SandboxSpec`.

    The backend that read the file knows the other services; it starts them with every sandbox of a spec that has the
    composition.
    """

    image: Image
    services: tuple[str, ...] = ()
    """The names of the others."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    limits: Limits = Limits()
    healthcheck: Healthcheck | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    empty_folders: tuple[str, ...] = ()
    """Folders that exist and anybody may write to, in place of folders of the machine."""
    mounts: tuple[Mount, ...] = ()
    """Files of the package."""


@dataclass(frozen=True, slots=True)
class FailedService:
    """A service of a composition that is not up any more."""

    name: str
    reason: str
    reachable: bool
    """Whether processes in the sandbox could send something to it or to another service, and so could have ended it."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """All that a sandbox is made from."""

    image: Image | None = None
    """None: the machine's own userland, composed from an allow-list."""
    limits: Limits = Limits()
    network: NetworkPolicy = NetworkPolicy()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/app"
    user: str | None = None
    """Who commands run as unless they say otherwise; None: the unprivileged user of the sandbox."""
    hostname: str = "sandbox"
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    composition: Composition | None = None
    """Services that run beside the sandbox, from `SandboxBackend.compose`."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended. Output past the cap is dropped from the middle and counted in `dropped_bytes`."""

    exit_code: int
    """As a shell would say it: 128 + N for a signal."""
    stdout: bytes
    stderr: bytes
    duration_sec: float
    timed_out: bool = False
    dropped_bytes: int = 0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True)
class Rights:
    """Owner, permissions and modification time (in seconds) of a path, as seen inside."""

    mode: int
    uid: int
    gid: int
    time: float


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs from the environment as it was built."""

    path: str
    """Absolute, inside the sandbox."""
    kind: ChangeKind
    type: Literal["file", "directory", "symlink", "special"]
    """`special` is all else, and a folder that is too deep to be listed."""
    size: int = 0
    target: str | None = None
    """The target of a symlink, as written; None for everything else and if unknown."""
    rights: Rights | None = None
    """None when the backend does not tell."""


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """An address outside that was asked for and not reached."""

    host: str
    port: int | None
    """None where only its name was looked up."""
    reason: str = field(compare=False)


Revert = Callable[[Sequence[Change]], Iterable[str]]
"""Given the changes, returns the paths that must be as they were built."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state that new sandboxes can start from; immutable, kept until `SandboxBackend.discard`."""

    backend: str
    reference: str
    image: Image | None


class SandboxProcess(ABC):
    """A command that runs inside a sandbox while the caller talks to it (an ACP agent, a service)."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Write to its standard input."""

    @abstractmethod
    async def close_stdin(self) -> None: ...

    @abstractmethod
    def stdout(self) -> AsyncIterator[bytes]:
        """Chunks until it closes its standard output."""

    @abstractmethod
    def stderr(self) -> AsyncIterator[bytes]: ...

    @abstractmethod
    async def wait(self) -> int:
        """Its exit code, as a shell would say it."""

    @abstractmethod
    async def kill(self) -> None:
        """End it and its session at once; idempotent."""


class ProcessOptions(TypedDict, total=False):
    """The options of `Sandbox.process`, for code that passes them on."""

    user: str | None
    env: Mapping[str, str] | None
    cwd: str | None


class ExecOptions(ProcessOptions, total=False):
    """The options of `Sandbox.exec`, for code that passes them on."""

    timeout: float | None
    stdin: bytes | None
    on_output: OutputSink | None
    max_output: int


class Sandbox(ABC):
    """One box. `async with sandbox:` starts and stops it."""

    id: str
    spec: SandboxSpec

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[str]: ...

    @abstractmethod
    async def start(self) -> None:
        """Bring it up; after an error nothing is left mounted or running."""

    @abstractmethod
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
        """Run to the end. A string is run by the environment's `/bin/sh -c`. A timeout kills its whole process tree."""

    @abstractmethod
    async def process(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> SandboxProcess:
        """Start and talk to it."""

    @abstractmethod
    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        """Copy a host file to `target`, or a folder's contents into `target`; never follows links planted inside.

        `owner` is a user of the environment; None: root. Modes and times are kept, links are copied as links.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes, *, owner: str | None = None, mode: int = 0o644) -> None: ...

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """Several files of root, by absolute path."""
        for path, data in files.items():
            await self.write_file(path, data)

    async def lays(self, place: Path) -> bool:
        """Whether `fork` and `fork_beside` also take a `tree` at or beside this place: a folder of root's that does not
        change, and that is in the copy from its start, over its files, as `upload` would put it there."""
        del place
        return False

    async def stand_in(self, place: str, program: bytes, kept: str) -> None:
        """Put a program in the place of another one, which stays at `kept`, in the same folder."""
        await self.write_file(f"{kept}.new", program, mode=0o755)
        words = ["/bin/sh", "-c", 'mv -- "$1" "$2" && mv -- "$2.new" "$1"', "sh", place, kept]
        result = await self.exec(words, user="root", cwd="/", timeout=_STAND_IN_SEC)
        if not result.ok:
            raise SandboxFailure(f"{place} could not be replaced.", code="stand-in-failed")

    @abstractmethod
    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30, max_files: int = 100_000) -> None:
        """Copy out a file or folder; links that leave the tree, special files and oversized trees are refused."""

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """A regular file's bytes; anything else, and anything larger, is an error and is never read whole."""

    @abstractmethod
    async def changes(self) -> list[Change]:
        """What was added, changed and deleted since the environment was built, sorted by path."""

    @abstractmethod
    async def kill_processes(self) -> None:
        """End every process inside, however it daemonised; the files stay."""

    async def has_processes(self) -> bool:
        """Whether anything runs inside; true if that cannot be determined."""
        result = await self.exec(_OTHERS, user="root", cwd="/", timeout=60)
        return not result.ok or bool(result.stdout.strip())

    async def limits_reached(self) -> tuple[str, ...]:
        """The limits that processes inside have reached since the start, as far as is known: `processes`."""
        return ()

    async def failed_requests(self) -> tuple[FailedRequest, ...]:
        """What processes inside asked for under the current policy and did not reach at last, as far as is known.

        Only a gateway of the backend sees it: there is none without a network, nor where an engine gives its own.
        """
        return ()

    async def failed_services(self) -> tuple[FailedService, ...]:
        """The services of its composition that were up and are not any more."""
        return ()

    @abstractmethod
    async def set_network(self, policy: NetworkPolicy) -> None:
        """Change the policy for the next phase; open connections of the old one end."""

    def service(self, name: str) -> Sandbox:
        """A service of the composition, for commands and files in it; `main` is the sandbox itself."""
        if name == MAIN_SERVICE:
            return self
        raise UnsupportedError(
            f"Unknown service '{name}'; this sandbox has only {MAIN_SERVICE}.", code="service-unsupported"
        )

    async def dial(self, port: int) -> socket.socket:
        """A stream socket connected to a port inside, a `ConnectionError` if nothing listens there."""
        raise UnsupportedError(f"This sandbox cannot forward its port {port}.", code="ports-unsupported")

    async def listen(self, port: int) -> socket.socket:
        """A socket that listens on the loopback inside, under every network policy; the caller serves it from outside.

        `port` is taken if no program inside has it, else another one. It has to be opened again after a `fork` of a
        sandbox in which nothing runs.
        """
        raise UnsupportedError(f"This sandbox cannot have the port {port} of another.", code="ports-unsupported")

    @abstractmethod
    async def fork(
        self, *, mounts: Sequence[Mount] = (), network: NetworkPolicy | None = None, revert: Revert | None = None
    ) -> Sandbox:
        """A started, independent copy of the current files; processes are not copied, and this sandbox keeps running.

        `mounts` are added to this sandbox's own; without `network` the copy has the current policy. `revert` gets
        the changes of exactly the files that are copied; the paths it gives are in the copy as the environment was
        built, with all below them, before anything can run there. Such a copy has the whole storage limit to itself,
        so that earlier writes cannot leave it without space.
        """

    async def fork_beside(
        self,
        *,
        mounts: Sequence[Mount] = (),
        network: NetworkPolicy | None = None,
        revert: Revert | None = None,
        closed: Sequence[str] = (),
    ) -> Sandbox:
        """Like `fork`, but everything that runs here and in services of the composition keeps running, and the copy can
        use it: the ports they listen on now and the sockets they named are forwarded to the same addresses of the copy.

        The copy has its own network, and nothing here can open a connection into it. No socket is forwarded to a path
        below `closed`. For a backend without `forward` this is refused.
        """
        del mounts, network, revert, closed
        raise UnsupportedError(NO_FORWARDING, code="forwarding-unsupported", path="forward")

    @property
    def not_forwarded(self) -> tuple[str, ...]:
        """Of a sandbox made by `fork_beside`: addresses that could not be forwarded to it, with reasons."""
        return ()

    async def snapshot(self) -> Snapshot:
        """A state that other sandboxes can start from; a backend without `snapshot` has none."""
        raise UnsupportedError("This sandbox has no snapshots.", code="snapshot-unsupported")

    @abstractmethod
    async def stop(self) -> None:
        """End everything and have it removed; idempotent. The files may take a moment longer than this call."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


@dataclass(frozen=True, slots=True)
class Missing:
    """A capability that this machine lacks, and how to get it."""

    capability: str
    how: str


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """Whether a backend works on this machine, and what it supports."""

    name: str
    usable: bool
    reason: str | None
    """Why not, in one sentence with a remedy; None if usable."""
    capabilities: frozenset[str]
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()
    """What else users of the isolation should know, one sentence each."""


class SandboxBackend(ABC):
    """A kind of sandbox on this machine. Plugins register one in the entry-point group `benchflow.sandboxes`."""

    name: str
    """What `--sandbox` takes; of a plugin the name of its entry point."""
    pulling: PullSettings = PullSettings()
    """How images are pulled where a package adds nothing to it: the policy of the command."""

    @property
    @abstractmethod
    def declared(self) -> frozenset[str]:
        """The names of `CAPABILITIES` that the backend has on a machine that gives it all it needs.

        A class attribute (`declared = frozenset({"fork", …})`): tasks are judged by it before anything is made or
        started. `status` says what of it works on this machine.
        """

    @abstractmethod
    async def status(self) -> BackendStatus:
        """Found out by trying, once per process."""

    @abstractmethod
    def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """A sandbox that is not started yet."""

    async def build(self, context: Path, *, dockerfile: str = "Dockerfile", **options: object) -> Image:
        """The environment of a Dockerfile; built once per digest even when many ask at the same time."""
        del options
        file = (context / dockerfile).name
        raise UnsupportedError(f"The sandbox '{self.name}' builds no images.", path="build.dockerfile", file=file)

    async def resolve(self, image: str, *, pull: PullSettings | None = None) -> Image:
        """A named image, pulled as `pull` or else `pulling` says; an `EnvironmentFailure` says how to provide it."""
        del pull
        raise UnsupportedError(f"The sandbox '{self.name}' has no images, so not {image}.", path="image")

    async def substitute(self, image: str, base_image: str | None) -> Image | None:
        """What replaces a named image that is not available: `base_image`, if given; None if nothing does."""
        if base_image is None:
            return None
        if base_image == "host":
            message = (
                f"The sandbox '{self.name}' cannot use this machine's userland; `--base-image host` needs `local`."
            )
            raise UnsupportedError(message, path="base_image")
        return replace(await self.resolve(base_image), fidelity="substituted", instead_of=(image,))

    async def compose(
        self,
        file: Path,
        *,
        image: Image | None = None,
        variables: Mapping[str, str] | None = None,
        timeout_sec: float | None = None,
        base_image: str | None = None,
        pull: PullSettings | None = None,
    ) -> Composition:
        """The services of a compose file, with images built or found; `image` replaces the file's image of `main`.

        `variables` fill `${NAME}` in the file; `timeout_sec` is for each build, `base_image` the substitute for a base
        image that is not available; `pull` is as for `resolve`.
        """
        del image, variables, timeout_sec, base_image, pull
        raise UnsupportedError(
            f"The sandbox '{self.name}' does not support compose files.", path="compose", file=file.name
        )

    async def discard(self, snapshot: Snapshot) -> None:
        """Forget a snapshot; one that is not there is none."""

    async def close(self) -> None:
        """End everything that the backend keeps running for its sandboxes."""
