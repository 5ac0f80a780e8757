"""Speaks to an engine through its command line and turns every way it can fail into one clear sentence.

The values of environment variables do not appear among the arguments, where other users of the machine could read them.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchflow.errors import InfrastructureFailure, RuntimeFailure, SandboxFailure
from benchflow.sandbox.engine.machine.dialect import Dialect
from benchflow.sandbox.host_process import DEFAULT_OUTPUT, Completed, run_process

_UNREACHABLE: Final = (
    "cannot connect to the docker daemon",
    "is the docker daemon running",
    "unable to connect to podman",
    "cannot connect to podman",
    "error during connect",
    "failed to connect to the docker api",
)
_FORBIDDEN: Final = "permission denied while trying to connect"
_FULL: Final = "no space left on device"
_CLIENTS_OWN: Final = re.compile(
    r"PATH|HOME|USER|PWD|SHELL|TMPDIR|LANG|LC_.*|LD_.*|XDG_.*|DOCKER_.*|BUILDKIT_.*|BUILDX_.*|CONTAINER.*|PODMAN_.*"
    r"|STORAGE_.*|REGISTRY_.*|DBUS_.*|GO[A-Z]+|SSL_.*|(?i:.*_proxy)"
)
"""Variables that would act on the engine's client itself; they go into the arguments."""
SHORT_TIMEOUT: Final = 120.0


def _highest_pid() -> int:
    try:
        return int(Path("/proc/sys/kernel/pid_max").read_text())
    except OSError:
        return 1 << 15


class EngineClient:
    """One engine: its dialect, the command that reaches it, and the environment of that command."""

    def __init__(
        self, dialect: Dialect, command: Sequence[str] | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.dialect: Final = dialect
        self._command: Final = tuple(command or (dialect.name,))
        self._env: Final = dict(os.environ if env is None else env)

    @property
    def endpoint(self) -> str:
        """What tells this engine from another of the same kind: its command and the variables that direct it."""
        chosen = [
            f"{name}={self._env[name]}"
            for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST", "CONTAINERS_STORAGE_CONF")
            if self._env.get(name)
        ]
        return " ".join([*self._command, *chosen])

    @property
    def on_this_machine(self) -> bool:
        """False when the engine was explicitly directed elsewhere."""
        return not re.match(
            r"(tcp|ssh|https?)://", self._env.get("DOCKER_HOST", "") or self._env.get("CONTAINER_HOST", "")
        )

    def ulimits(self) -> list[str]:
        """Arguments that keep a container within this process's own limits where it cannot get the engine's usual
        ones, so that engines run on restricted machines too."""
        if not self.dialect.child_of_caller or self._env.get("CONTAINER_HOST"):
            return []
        files, processes = (resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
        # Podman itself goes down to the highest number a process can have.
        most = {"nofile": files, "nproc": min(processes, _highest_pid())}
        return [part for name, hard in most.items() if hard >= 0 for part in ("--ulimit", f"{name}={hard}:{hard}")]

    def argv(self, *args: str) -> list[str]:
        return [*self._command, *args]

    def environment(self, values: Mapping[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
        """Arguments that set variables inside a container, and the environment that the client needs for them."""
        args: list[str] = []
        env = dict(self._env)
        for name, value in (values or {}).items():
            if _CLIENTS_OWN.fullmatch(name) or name in self._env:
                args += ["--env", f"{name}={value}"]
            else:
                args += ["--env", name]
                env[name] = value
        return args, env

    async def run(
        self,
        *args: str,
        stdin: bytes | AsyncIterator[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = SHORT_TIMEOUT,
        max_output: int = DEFAULT_OUTPUT,
    ) -> Completed:
        """Run the client and return its result, even a failure; no client, a dead engine and a timeout are errors."""
        try:
            done = await run_process(
                self.argv(*args),
                stdin=stdin,
                env=self._env if env is None else env,
                timeout=timeout,
                max_output=max_output,
            )
        except FileNotFoundError:
            raise self.missing() from None
        if done.timed_out:
            raise InfrastructureFailure(
                f"{self.dialect.name} did not respond to `{args[0]}` within {timeout:g} s.",
                code="engine-timeout",
            )
        if done.exit_code != 0:
            self.raise_if_engine_failed(done.stderr.decode(errors="replace"))
        return done

    async def ask(self, *args: str, stdin: bytes | None = None) -> str:
        """Run the client and give its answer; a refusal is a `SandboxFailure` with the engine's own words."""
        done = await self.run(*args, stdin=stdin)
        if done.exit_code != 0:
            raise self.refusal(args[0], done)
        return done.stdout.decode(errors="replace").strip()

    def refusal(self, verb: str, done: Completed) -> RuntimeFailure:
        words = last_words(done.stderr.decode(errors="replace"))
        return SandboxFailure(f"{self.dialect.name} {verb} failed: {words}", code="engine-refused")

    def raise_if_engine_failed(self, stderr: str) -> None:
        """Raise if the engine itself failed, not the request."""
        lowered = stderr.lower()
        if _FORBIDDEN in lowered:
            raise InfrastructureFailure(
                f"This user is not allowed to use {self.dialect.name}; join its group or run as root.",
                code="engine-forbidden",
            )
        if any(text in lowered for text in _UNREACHABLE):
            raise InfrastructureFailure(
                f"{self.dialect.name} is not responding; {self.dialect.start}.", code="engine-stopped"
            )
        if _FULL in lowered:
            raise InfrastructureFailure(f"The disk of {self.dialect.name} is full.", code="disk-full")

    def missing(self) -> InfrastructureFailure:
        """The error of a client that is not installed."""
        return InfrastructureFailure(
            f"The command '{self._command[0]}' is not installed; {self.dialect.install}.",
            code="engine-missing",
        )


def last_words(text: str, limit: int = 400) -> str:
    """The end of an engine's complaint as one line without its prefixes."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "level=warning" not in line]
    words = lines[-1] if lines else "no reason given"
    for line in reversed(lines):
        if re.match(r"(docker: )?Error", line):
            words = line
            break
    words = re.sub(r"^(docker: )?Error( response from daemon)?: ", "", words)
    return words if len(words) <= limit else "…" + words[-limit:]
