"""`InMemoryBackend`: sandboxes without processes or disk, for tests of what uses sandboxes.

    backend = InMemoryBackend()
    backend.fail("exec", number=3)                 # the third command raises a SandboxFailure
    backend.fail("exec", matching="test.sh")       # so does every command that mentions test.sh
    result = await run_rollout(RolloutConfig(package, "oracle", sandbox=backend), folder)
    assert backend.calls[-1].verb == "stop"

Commands run in a small shell; see `benchflow.testing.memory.program_table` for its programs. More can be given as
`programs`. Nothing is isolated, and no limit is enforced: use a real sandbox for tests of those.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchflow.errors import EnvironmentFailure, SandboxFailure, UsageError
from benchflow.sandbox.protocol import BackendStatus, Image, SandboxBackend, SandboxSpec, Snapshot
from benchflow.sandbox.pulling import PullSettings
from benchflow.testing.memory.memory_jobs import Program
from benchflow.testing.memory.memory_sandbox import InMemorySandbox
from benchflow.testing.memory.node_tree import Node, NodeTree

CAPABILITIES: Final = frozenset(
    {
        "network.none", "network.public", "network.allowlist", "limits.cpu", "limits.memory", "limits.pids",
        "limits.disk", "limits.time", "users", "image", "healthcheck", "mounts", "fork", "snapshot", "forward",
    }
)  # fmt: skip
_ACCOUNTS: Final = (
    b"root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\nother:x:1001:1001::/tmp:/bin/sh\n"
)
_FOLDERS: Final = (
    "/app", "/bin", "/dev", "/etc", "/home", "/home/agent", "/opt", "/root", "/srv", "/usr", "/usr/bin",
    "/usr/lib", "/usr/local", "/usr/local/bin", "/usr/share", "/var", "/var/log",
)  # fmt: skip
_AGENT_ID: Final = 1000


@dataclass(frozen=True, slots=True)
class SandboxCall:
    """One call of a sandbox: `exec`, `fork`, `upload` …, and its subject."""

    verb: str
    what: str


@dataclass(slots=True)
class _Fault:
    verb: str
    error: Exception
    number: int | None
    matching: str | None
    seen: int = field(default=0)

    def strikes(self, call: SandboxCall) -> bool:
        if call.verb != self.verb or (self.matching is not None and self.matching not in call.what):
            return False
        self.seen += 1
        return self.number in (None, self.seen)


class InMemoryBackend(SandboxBackend):
    """`images` are environments by name, each a mapping of paths to contents that are there from the beginning."""

    name = "memory"
    declared: frozenset[str] = CAPABILITIES

    def __init__(
        self,
        *,
        files: Mapping[str, str | bytes] | None = None,
        images: Mapping[str, Mapping[str, str | bytes]] | None = None,
        programs: Mapping[str, Program] | None = None,
        without: Iterable[str] = (),
    ) -> None:
        """`files` are there in every environment; capabilities `without` are declared as missing and refused."""
        self.declared = CAPABILITIES - set(without)
        self.programs: Final = dict(programs or {})
        self.calls: Final[list[SandboxCall]] = []
        """All calls of the sandboxes of this backend, in order."""
        self.started: Final[list[InMemorySandbox]] = []
        """The running sandboxes."""
        self._files = dict(files or {})
        self._images = {name: dict(contents) for name, contents in (images or {}).items()}
        self._faults: list[_Fault] = []
        self._snapshots: dict[str, tuple[NodeTree, NodeTree]] = {}
        self._numbers = itertools.count(1)

    def fail(
        self, verb: str, *, number: int | None = None, matching: str | None = None, error: Exception | None = None
    ) -> None:
        """Make `verb` fail from now on: the call of that `number` (of those `matching`), or all of them."""
        found = error or SandboxFailure(f"The sandbox failed at {verb}, as the test asked.", code="scripted")
        self._faults.append(_Fault(verb, found, number, matching))

    def record(self, verb: str, what: str = "") -> None:
        """Record a call, and raise the failure that was scripted for it."""
        call = SandboxCall(verb, what)
        self.calls.append(call)
        for fault in self._faults:
            if fault.strikes(call):
                raise fault.error

    async def status(self) -> BackendStatus:
        return BackendStatus(self.name, usable=True, reason=None, capabilities=self.declared)

    def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> InMemorySandbox:
        if snapshot is None:
            built = self._environment(spec)
            return InMemorySandbox(self, spec, built, built.copy())
        if snapshot.backend != self.name or snapshot.reference not in self._snapshots:
            raise UsageError(f"Unknown snapshot '{snapshot.reference}'.", code="snapshot-missing")
        tree, built = self._snapshots[snapshot.reference]
        return InMemorySandbox(self, spec, built, tree.copy())

    def _environment(self, spec: SandboxSpec) -> NodeTree:
        tree = NodeTree()
        for folder in _FOLDERS:
            tree.make_folder(folder)
        for folder in ("/tmp", "/var/tmp"):  # noqa: S108 - places inside a sandbox
            tree.make_folder(folder, mode=0o1777)
        tree.put("/etc/passwd", Node("file", _ACCOUNTS))
        for name in ("null", "zero", "urandom"):
            tree.put(f"/dev/{name}", Node("special", mode=0o666))
        tree.put("/bin/sh", Node("file", b"", 0o755))
        named = self._images.get(spec.image.reference, {}) if spec.image is not None else {}
        for path, content in {**self._files, **named}.items():
            tree.make_folder(path.rpartition("/")[0] or "/", parents=True)
            data = content.encode() if isinstance(content, str) else content
            tree.put(path, Node("file", data, 0o755 if data.startswith(b"#!") else 0o644))
        tree.make_folder(spec.workdir, parents=True)
        for home in ("/home/agent", spec.workdir):
            for path, _ in list(tree.walk(home)):
                tree.change(path, follow=False, uid=_AGENT_ID, gid=_AGENT_ID)
        return tree

    async def resolve(self, image: str, *, pull: PullSettings | None = None) -> Image:
        del pull
        if image not in self._images:
            raise EnvironmentFailure(f"There is no image {image}; pass it to the backend.", code="image-missing")
        digest = hashlib.sha256(repr(sorted(self._images[image].items())).encode()).hexdigest()
        return Image(reference=image, digest=f"sha256:{digest}", base=image)

    async def build(self, context: Path, *, dockerfile: str = "Dockerfile", **options: object) -> Image:
        del options
        raise EnvironmentFailure(f"Nothing is built in memory: {context / dockerfile}.", code="build-unsupported")

    def keep(self, tree: NodeTree, built: NodeTree, spec: SandboxSpec) -> Snapshot:
        """Register a state; `InMemorySandbox.snapshot` does."""
        reference = str(next(self._numbers))
        self._snapshots[reference] = (tree, built)
        return Snapshot(self.name, reference, spec.image)

    async def discard(self, snapshot: Snapshot) -> None:
        self._snapshots.pop(snapshot.reference, None)

    async def close(self) -> None:
        for sandbox in list(self.started):
            await sandbox.stop()
        self._snapshots.clear()
