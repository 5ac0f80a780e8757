"""What one RUN asks for: the argument list, what it sees, who runs it; and the last lines it printed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from benchflow.sandbox.images.build.build_stage import Scope, Stage, command_words
from benchflow.sandbox.images.build.stage_plan import unsupported
from benchflow.sandbox.images.dockerfile.instructions import Instruction
from benchflow.sandbox.protocol import NetworkPolicy

_ONLY_HEREDOC: Final = re.compile(r"\d*<<-?(['\"]?)[^<\s'\"]+\1")
_LINES: Final = 20
_BYTES: Final = 4000


@dataclass(frozen=True, slots=True)
class RunStep:
    """A command of a build."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    """Environment and build arguments, and nothing of this machine."""
    user: str | None
    """None: root."""
    workdir: str
    network: NetworkPolicy
    script: bytes | None = None
    """A here-document with its own interpreter line; run as a program instead of `command`."""

    def fingerprint(self) -> Iterator[object]:
        """Everything that determines the effect of the command, given the layers below."""
        yield from (len(self.command), *self.command)
        for name, value in sorted(self.env.items()):
            yield f"{name}={value}"
        yield from (self.user, self.workdir, self.network.mode, self.network.hosts, self.script)


def read_run(instruction: Instruction, stage: Stage, scope: Scope, network: NetworkPolicy) -> RunStep:
    """The command of a RUN, in shell, JSON or here-document form."""
    mode = dict(instruction.flags).get("network", "default")
    if mode == "none":
        network = NetworkPolicy("none")
    elif mode != "default":
        raise unsupported(instruction, scope, f"RUN --network={mode} is not supported")
    command, script = command_words(stage, instruction), None
    if instruction.words is None and instruction.heredocs:
        first = instruction.heredocs[0]
        if not _ONLY_HEREDOC.fullmatch(instruction.value):
            bodies = "".join(f"\n{here.raw}{here.name}" for here in instruction.heredocs)
            command = (*stage.config.shell, instruction.value + bodies)
        elif first.text.startswith("#!"):
            command, script = (first.name,), first.text.encode()
        else:
            command = (*stage.config.shell, first.text)
    if not command:
        raise scope.error(instruction, "RUN names no command.")
    return RunStep(command, dict(stage.variables), stage.config.user, stage.workdir, network, script)


class Tail:
    """Keeps the end of what a command printed, both streams in the order they came; bounded."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        del stream
        self._chunks.append(data[-_BYTES:])
        self._size += len(self._chunks[-1])
        while self._size - len(self._chunks[0]) >= _BYTES:
            self._size -= len(self._chunks.popleft())

    def text(self) -> str:
        """At most the last twenty lines."""
        text = b"".join(self._chunks)[-_BYTES:].decode(errors="replace")
        return "\n".join(line.rstrip() for line in text.splitlines()[-_LINES:])
