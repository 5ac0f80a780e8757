"""Services of an environment manifest: started before the agent, and kept running until verification has ended.

A manifest either lists its services or leaves them to the image, whose entry point then is the one service.
They run as root inside the sandbox, are ready when every probe succeeds, and one that ends before that is an error
with its last lines. Verification checks again (`failure`). An image without a manifest: see `entrypoint`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.errors import EnvironmentFailure, SandboxFailure
from benchflow.sandbox.protocol import Image, Sandbox, SandboxProcess
from benchflow.sandbox.ready_probes import Probe, http_probe, tcp_probe
from benchflow.sandbox.task_policy import forward_variables, resolve_variables

if TYPE_CHECKING:
    from benchflow.task.document.environment_manifest import EnvironmentManifest, Service

_POLL_SEC: Final = 0.05
_POLL_MOST_SEC: Final = 1.0
LOGS: Final = "/var/log/benchflow-services"
_KILLED: Final = -1
_MAKE_FOLDER: Final = 'mkdir -p -m 711 "$1" && mkdir -p -m 700 "$1/$2" && { chown "$3" "$1/$2" || true; }'
"""A service writes into a folder of its own user. Where all users have the same id, nothing can be given away."""
_ENDED: Final = f"""
for name do
  own={LOGS}/$name
  if [ -f "$own/exit" ]; then read -r code <"$own/exit" && echo "$code $name"
  elif [ -f "$own/pid" ] && read -r pid <"$own/pid" && [ ! -d "/proc/$pid" ]; then echo "{_KILLED} $name"; fi
done
true
"""
"""Prints exit code and name of every service that has ended; its waiting shell may have been killed with it."""


_ABSENT: Final = 'for program do command -v "$program" >/dev/null 2>&1 || echo "$program"; done'


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """One service: what is started, and under which name it is reported."""

    name: str
    command: str | tuple[str, ...]
    user: str = "root"
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class ServicesPlan:
    """All services of an environment and when they count as up."""

    services: tuple[ServicePlan, ...]
    probes: tuple[Probe, ...] = ()
    timeout_sec: float = 120.0
    env: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, int | None] = field(default_factory=dict)
    """The services that are left out if the image lacks their program, each with its port."""
    left_out: tuple[str, ...] = ()
    """The names of those that were."""

    def without(self, names: Collection[str]) -> ServicesPlan:
        """The plan without some of its optional services and the probes of their ports."""
        left = {name: port for name, port in self.optional.items() if name not in names}
        void = {self.optional[name] for name in names} - set(left.values())
        return replace(
            self,
            services=tuple(service for service in self.services if service.name not in names),
            probes=tuple(probe for probe in self.probes if probe.port not in void),
            optional=left,
            left_out=(*self.left_out, *sorted(names)),
        )


def plan_services(
    manifest: EnvironmentManifest,
    image: Image | None,
    machine: Mapping[str, str],
    *,
    task_id: str,
    shared: bool = False,
) -> ServicesPlan:
    """What a manifest asks for; a missing variable, or nothing to start, is an `EnvironmentFailure`.

    A `shared` manifest is the catalogue of a benchmark: a package uses those of its services that its image has.
    """
    env = resolve_variables(manifest.env, machine) | forward_variables(manifest.forward_env.keys, machine)
    selection = manifest.task_selection
    if selection is not None and selection.mechanism == "env_var":
        env[selection.key] = task_id
    services = tuple(ServicePlan(service.name, service.command) for service in manifest.services)
    if manifest.owns_lifecycle:
        command = (*image.entrypoint, *image.command) if image is not None else ()
        services = (ServicePlan("environment", command),) if command else ()
    probes: list[Probe] = [
        *(http_probe(item) for item in manifest.readiness.http),
        *map(tcp_probe, manifest.readiness.tcp),
    ]
    if not probes:
        probes = [probe for service in manifest.services for probe in _own_probes(service)]
    if not probes:
        probes = [tcp_probe(port) for port in manifest.ports]
    if probes and not services:
        message = f"The manifest of {manifest.name} expects the image to start its services, but it starts nothing."
        raise EnvironmentFailure(message, code="service-missing", path="environment.services")
    ports = {service.name: service.port for service in manifest.services}
    optional = {service.name: ports.get(service.name) for service in services} if shared else {}
    return ServicesPlan(services, tuple(probes), manifest.readiness.timeout_sec, env, optional)


def _own_probes(service: Service) -> list[Probe]:
    """A port alone must be listened on; a declared health path must answer."""
    if service.port is None:
        return []
    if "health_path" in service.declared:
        return [http_probe(service.health_path, port=service.port)]
    return [tcp_probe(service.port)]


class RunningServices:
    """Services inside one sandbox.

    Their output is kept in root's files there, and nothing waits on them here.
    """

    def __init__(self, sandbox: Sandbox, plan: ServicesPlan) -> None:
        self.plan = plan
        self.sandbox: Final = sandbox
        self._processes: Final[list[SandboxProcess]] = []

    @property
    def users(self) -> frozenset[str]:
        """Who they run as."""
        return frozenset(service.user for service in self.plan.services)

    async def start(self) -> None:
        """Start all and wait until they are ready; after an error none of them runs."""
        try:
            await self._leave_out()
            for service in self.plan.services:
                place = [LOGS, service.name, service.user]
                await self.sandbox.exec(["/bin/sh", "-c", _MAKE_FOLDER, "sh", *place], user="root", cwd="/", timeout=30)
                process = await self.sandbox.process(
                    _in_background(service), user=service.user, env=self.plan.env, cwd=service.cwd
                )
                self._processes.append(process)
            await self._wait_ready()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    async def _leave_out(self) -> None:
        """Optional services whose program is not here are not part of this environment."""
        programs = {service.name: _program(service) for service in self.plan.services}
        words = [program for name, program in programs.items() if name in self.plan.optional]
        if not words:
            return
        command = ["/bin/sh", "-c", _ABSENT, "sh", *words]
        result = await self.sandbox.exec(command, user="root", env=self.plan.env, cwd="/", timeout=30)
        if not result.ok:
            raise SandboxFailure("The sandbox does not report which programs it has.", code="services-unknown")
        missing = result.stdout.decode(errors="replace").splitlines()
        absent = {name for name in self.plan.optional if programs[name] in missing}
        if len(absent) == len(self.plan.services):
            message = "The environment has the program of none of the services of its manifest."
            raise EnvironmentFailure(message, code="service-missing", path="environment.services")
        self.plan = self.plan.without(absent)

    async def _wait_ready(self) -> None:
        pending = list(self.plan.probes)
        pause = _POLL_SEC
        deadline = anyio.current_time() + self.plan.timeout_sec
        while pending:
            pending = [probe for probe in pending if not await probe.ready(self.sandbox)]
            await self.check()
            if pending and anyio.current_time() > deadline:
                raise await self._not_ready(pending)
            await anyio.sleep(pause if pending else 0)
            pause = min(pause * 1.5, _POLL_MOST_SEC)

    async def _not_ready(self, pending: list[Probe]) -> EnvironmentFailure:
        waiting = ", ".join(str(probe) for probe in pending)
        output = "".join([await self.last_lines(service.name) for service in self.plan.services])
        left = f" Left out, without their programs: {', '.join(self.plan.left_out)}." if self.plan.left_out else ""
        message = f"The services are not ready after {self.plan.timeout_sec:g} s: {waiting}.{left}{output}"
        return EnvironmentFailure(message, code="unhealthy", path="environment.readiness")

    async def check(self) -> None:
        """Raise an `EnvironmentFailure` when a service has ended."""
        for name, code in (await self.ended()).items():
            raise await self.failed(name, code)

    async def failure(self) -> EnvironmentFailure | None:
        """Why services that were ready are not up any more.

        One that exited with code 0 has done its work as long as every probe still succeeds.
        """
        ended = await self.ended()
        name = next((name for name, code in ended.items() if code != 0), None)
        if name is None and ended and not all([await probe.ready(self.sandbox) for probe in self.plan.probes]):
            name = next(iter(ended))
        return await self.failed(name, ended[name]) if name is not None else None

    async def ended(self) -> dict[str, int]:
        """The services that have ended, with their exit codes."""
        names = [service.name for service in self.plan.services]
        words = ["/bin/sh", "-c", _ENDED, "sh", *names]
        result = await self.sandbox.exec(words, user="root", cwd="/", timeout=30)
        if not result.ok:
            raise SandboxFailure("The sandbox does not report which services are running.", code="services-unknown")
        lines = (line.partition(" ") for line in result.stdout.decode(errors="replace").splitlines())
        return {name: int(code) for code, _, name in lines if code.removeprefix("-").isdecimal()}

    async def failed(self, name: str, code: int) -> EnvironmentFailure:
        how = "was killed" if code == _KILLED else f"exited with code {code}"
        message = f"The service {name} {how}.{await self.last_lines(name)}"
        return EnvironmentFailure(message, code="service-failed", path="environment.services")

    async def last_lines(self, name: str) -> str:
        result = await self.sandbox.exec(f"tail -n 20 {LOGS}/{name}/log", user="root", cwd="/", timeout=30)
        text = result.stdout.decode(errors="replace").strip()
        return f"\nLast lines of {name}:\n{text[-4000:]}" if text else ""

    async def stop(self) -> None:
        """End all services; idempotent."""
        for process in self._processes:
            await process.kill()
            await process.wait()


def _program(service: ServicePlan) -> str:
    """The word of the command that names its program: the first that does not set a variable."""
    try:
        words = shlex.split(service.command) if isinstance(service.command, str) else service.command
    except ValueError:
        return "sh"  # only the shell can read this command, and says why it fails
    return next((word for word in words if "=" not in word), "sh")


def _in_background(service: ServicePlan) -> str:
    """A shell command that runs a service with its output in a file and leaves its exit code when it ends."""
    words = ("/bin/sh", "-c", service.command) if isinstance(service.command, str) else service.command
    own = f"{LOGS}/{service.name}"
    return (
        f"rm -f {own}/exit; echo $$ >{own}/pid\n"
        f"{shlex.join(words)} >{own}/log 2>&1 </dev/null\n"
        f"echo $? >{own}/exit.new; mv {own}/exit.new {own}/exit\n"
    )
