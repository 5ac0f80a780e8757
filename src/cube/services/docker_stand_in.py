"""What stands in for a container engine while a launch script runs: `docker` in the script starts sandboxes.

A thread answers on a Unix socket, one command at a time. Containers keep running after the script; `close` stops them.
"""

from __future__ import annotations

import json
import shlex
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cube.container import ContainerError
from cube.services.docker_words import Options, Refused, Run, options, parse_exec, parse_run, variables
from cube.services.service_container import LocalContainers, ServiceContainer, ServiceContainerConfig

_FAILED: Final = 125
"""How `docker` itself ends when it, and not a program inside, has failed."""
_FORMATS: Final = {
    "ps": {"{{.Names}}": "name", "{{.ID}}": "id", "{{.Status}}": "status"},
    "inspect": {"{{.State.Running}}": "running", "{{.State.Status}}": "status", "{{.Id}}": "id", "{{.Name}}": "name",
                "{{.State.ExitCode}}": "exit_code"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    out: str = ""
    err: str = ""
    code: int = 0


@dataclass(slots=True)
class _Started:
    """A container that the script started."""

    name: str
    container: ServiceContainer
    labels: Mapping[str, str] = field(default_factory=dict)

    def fact(self, name: str) -> str:
        code = self.container.exit_code()
        facts = {
            "name": self.name,
            "id": self.container.id,
            "running": "true" if code is None else "false",
            "status": "running" if code is None else "exited",
            "exit_code": str(code or 0),
        }
        return facts[name]


class DockerStandIn:
    """The containers of one launch, and the answers to its `docker` commands."""

    def __init__(self, containers: LocalContainers) -> None:
        self._containers: Final = containers
        self._started: Final[dict[str, _Started]] = {}
        self._volumes: Final[dict[str, str]] = {}
        """Volume to the container that has it: without an engine nothing is shared."""
        self._guard: Final = threading.Lock()
        """Held while a command is carried out."""
        self._closed = False
        self._listener: socket.socket | None = None
        self.refusals: Final[list[str]] = []

    # -- the socket -----------------------------------------------------------------------------------------------

    def listen(self, address: Path) -> None:
        """Answer on a Unix socket until `deafen`."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(address))
        listener.listen()
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), name="docker", daemon=True).start()

    def deafen(self) -> None:
        """Stop answering; the containers keep running."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # deafened
                return
            with connection:
                try:
                    asked = json.loads(b"".join(iter(lambda: connection.recv(65536), b"")))  # noqa: B023
                    answer = self.answer(asked["words"], asked["env"])
                    reply = {"out": answer.out, "err": answer.err, "code": answer.code}
                    connection.sendall(json.dumps(reply).encode())
                except (OSError, ValueError, KeyError, TypeError):  # the script was ended meanwhile
                    continue

    # -- the commands ---------------------------------------------------------------------------------------------

    def answer(self, words: Sequence[str], environment: Mapping[str, str]) -> Answer:
        """What `docker WORDS` does and prints; nothing is raised."""
        verb, rest = (words[0], list(words[1:])) if words else ("", [])
        if verb in ("container", "image", "volume") and rest:
            verb, rest = f"{verb} {rest[0]}", rest[1:]
        verbs: dict[str, Callable[[list[str], Mapping[str, str]], Answer]] = {
            "run": self._run, "container run": self._run, "exec": self._exec, "container exec": self._exec,
            "stop": self._stop, "kill": self._stop, "rm": self._stop, "container rm": self._stop,
            "container stop": self._stop, "ps": self._ps, "container ls": self._ps, "inspect": self._inspect,
            "container inspect": self._inspect, "logs": self._logs, "pull": self._pull, "image pull": self._pull,
            "image inspect": self._pull, "volume create": self._volume, "version": self._version,
            "info": self._version,
        }  # fmt: skip
        with self._guard:
            try:
                if self._closed:
                    raise Refused("the launch has ended")
                if verb not in verbs:
                    raise Refused(f"`docker {verb}` is not supported without a container engine.")
                return verbs[verb](rest, environment)
            except Refused as refused:
                self.refusals.append(str(refused))
                return Answer(err=f"docker: {refused}\n", code=_FAILED)
            except ContainerError as error:
                return Answer(err=f"docker: {error}\n", code=_FAILED)

    def _run(self, words: list[str], environment: Mapping[str, str]) -> Answer:
        run = parse_run(words, environment)
        name = run.name or f"container-{len(self._started) + 1}"
        if name in self._started:
            raise ContainerError(f"The container name '{name}' is already in use.")
        for volume in run.volumes:
            owner = self._volumes.setdefault(volume, name)
            if owner != name:
                raise Refused(f"the volume '{volume}' of two containers is not supported without a container engine.")
        container = self._containers.launch_service(_config(run))
        self._started[name] = _Started(name, container, run.labels)
        return Answer(f"{container.id}\n")

    def _exec(self, words: list[str], environment: Mapping[str, str]) -> Answer:
        name, command, found = parse_exec(words, environment)
        started = self._find(name)
        done = started.container.exec(
            shlex.join(command), env=variables(found, environment), workdir=found.last("--workdir")
        )
        return Answer(done.stdout, done.stderr, done.exit_code)

    def _stop(self, words: list[str], environment: Mapping[str, str]) -> Answer:
        del environment
        found = options(
            "stop", words, valued=frozenset({"--time", "-t", "--signal"}),
            flags=frozenset({"-f", "--force", "-v", "--volumes"}),
        )  # fmt: skip
        for name in found.words:
            try:
                started = self._find(name)
            except ContainerError:
                if found.flags & {"-f", "--force"}:
                    continue
                raise
            started.container.stop()
            del self._started[started.name]
        return Answer("".join(f"{name}\n" for name in found.words))

    def _ps(self, words: list[str], environment: Mapping[str, str]) -> Answer:
        del environment
        found = options(
            "ps", words, valued=frozenset({"--filter", "--format"}),
            flags=frozenset({"-a", "--all", "-q", "--quiet"}),
        )  # fmt: skip
        form = "{{.ID}}" if found.flags & {"-q", "--quiet"} else found.last("--format") or "{{.Names}}"
        everything = bool(found.flags & {"-a", "--all"})
        listed = [
            each
            for each in self._started.values()
            if _chosen(each, found) and (everything or each.fact("running") == "true")
        ]
        return Answer("".join(f"{each.fact(_fact('ps', form))}\n" for each in listed))

    def _inspect(self, words: list[str], environment: Mapping[str, str]) -> Answer:
        del environment
        form, names = None, []
        rest = iter(words)
        for word in rest:
            if word in ("-f", "--format"):
                form = next(rest, "")
            elif word.startswith("--format="):
                form = word.partition("=")[2]
            elif word.startswith("-"):
                raise Refused(f"`docker inspect {word}` is not supported without a container engine.")
            else:
                names.append(word)
        if form is None:
            raise Refused("`docker inspect` without --format is not supported without a container engine.")
        return Answer("".join(f"{self._find(name).fact(_fact('inspect', form))}\n" for name in names))

    def _logs(self, words: list[str], environment: Mapping[str, str]) -> Answer:
        del environment
        found = options("logs", words, valued=frozenset(), flags=frozenset())
        return Answer("".join(self._find(name).container.output() for name in found.words))

    def _pull(self, words: list[str], environment: Mapping[str, str]) -> Answer:
        del environment
        found = options("pull", words, valued=frozenset(), flags=frozenset({"-q", "--quiet"}))
        return Answer("".join(f"{self._containers.fetch(image)}\n" for image in found.words))

    def _volume(self, words: list[str], environment: Mapping[str, str]) -> Answer:
        del environment
        found = options("volume create", words, valued=frozenset({"--label"}), flags=frozenset())
        return Answer("".join(f"{name}\n" for name in found.words))

    def _version(self, words: list[str], environment: Mapping[str, str]) -> Answer:
        del words, environment
        return Answer("Sandboxes without a container engine\n")

    def _find(self, name: str) -> _Started:
        for started in self._started.values():
            if name in (started.name, started.container.id):
                return started
        raise ContainerError(f"No such container: {name}")

    # -- the end --------------------------------------------------------------------------------------------------

    def running(self) -> list[ServiceContainer]:
        with self._guard:
            return [started.container for started in self._started.values()]

    def died(self) -> str | None:
        """The name and the last output of a container whose program has failed; None if none has."""
        with self._guard:
            for started in self._started.values():
                if started.container.exit_code():
                    code, said = started.container.exit_code(), started.container.output().strip()[-1000:]
                    return f"{started.name} exited with code {code}{f': {said}' if said else ''}"
        return None

    def close(self) -> None:
        """Stop all containers; safe to call again."""
        self.deafen()
        with self._guard:
            self._closed = True
            started, errors = list(self._started.values()), list[Any]()
            self._started.clear()
            for each in started:
                try:
                    each.container.stop()
                except ContainerError as error:  # the others are stopped all the same
                    errors.append(error)
        if errors:
            raise errors[0]


def _config(run: Run) -> ServiceContainerConfig:
    settings: dict[str, Any] = {}
    if run.memory_gb is not None:
        settings["ram_gb"] = run.memory_gb
    if run.cpus is not None:
        settings["cpu_cores"] = run.cpus
    return ServiceContainerConfig(
        image=run.image,
        entrypoint=[run.entrypoint] if run.entrypoint else None,
        command=list(run.words),
        env=dict(run.env),
        workdir=run.workdir,
        user=run.user,
        published=dict(run.published),
        folders=list(run.volumes.values()),
        **settings,
    )


def _chosen(started: _Started, found: Options) -> bool:
    for text in found.values.get("--filter", ()):
        key, _, value = text.partition("=")
        if key == "name":
            matches = value.strip("^$/") in started.name if "^" not in value else value.strip("^$/") == started.name
        elif key == "label":
            label, glued, wanted = value.partition("=")
            matches = label in started.labels and (not glued or started.labels[label] == wanted)
        else:
            raise Refused(f"`docker ps --filter {text}` is not supported without a container engine.")
        if not matches:
            return False
    return True


def _fact(verb: str, form: str) -> str:
    known = _FORMATS[verb].get(form.strip())
    if known is None:
        raise Refused(f"`docker {verb} --format {form}` is not supported without a container engine.")
    return known
