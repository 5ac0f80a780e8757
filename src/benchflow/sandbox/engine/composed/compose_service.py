"""One service beside the main container: its own program under the anchor, in the shared network."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import anyio

from benchflow.errors import EnvironmentFailure, SandboxFailure, UnsupportedError
from benchflow.sandbox.composed.composition import Part
from benchflow.sandbox.engine.box.container_arguments import Launch
from benchflow.sandbox.engine.box.running_container import EngineContainer
from benchflow.sandbox.engine.machine.engine_host import EngineHost
from benchflow.sandbox.healthcheck import wait_healthy
from benchflow.sandbox.protocol import Healthcheck, Mount, SandboxSpec

_LAST_LINES = 15
_POLL_SEC = 0.2
_RETRIES_SEC = (0.2, 1.0, 0.0)


class EngineService:
    """A container that runs a service's command; the sandbox ends when it is stopped."""

    def __init__(self, host: EngineHost, part: Part, network_of: str) -> None:
        self.id = f"benchcube-{secrets.token_hex(8)}"
        self._host = host
        self._part = part
        self._service = part.service
        self._image = part.image
        self._network_of = network_of
        self._container: EngineContainer | None = None
        self._was_healthy = False

    @property
    def container(self) -> EngineContainer:
        if self._container is None:
            raise SandboxFailure(f"The service '{self._service.name}' is not running.", code="sandbox-stopped")
        return self._container

    @property
    def spec(self) -> SandboxSpec:
        """What the service runs from."""
        service, image = self._service, self._image
        return SandboxSpec(
            image=image,
            limits=service.limits,
            env=service.env,
            workdir=service.workdir or image.workdir or "/",
            user=service.user or image.user or "0:0",
            labels=service.labels,
        )

    @property
    def _check(self) -> Healthcheck | None:
        return self._service.healthcheck or self._image.healthcheck

    async def start(self, environment: Mapping[str, str]) -> None:
        """Start the service's program; `environment` is what the network policy adds."""
        service, client = self._service, self._host.client
        if written := next((bind for bind in service.binds if not bind.read_only), None):
            message = f"`{written.key}` mounts files of the package for writing; append `:ro`, or copy them."
            raise UnsupportedError(message, path=written.key)
        command = self._part.command
        user, workdir = self.spec.user or "0:0", self.spec.workdir
        variables, env = client.environment({**environment, **service.env})
        launch = Launch(
            image=self._image.reference,
            name=self.id,
            network=f"container:{self._network_of}",
            purpose="service",
            limits=service.limits,
            mounts=tuple(Mount(bind.source, bind.target) for bind in service.binds),
            labels=service.labels,
            user=user,
            workdir=workdir,
            extra=(*variables, *client.dialect.keep_output),
            command=command,
        )
        async with self._host.gate.slot():
            done = await client.run(*self._host.run_arguments(launch), env=env)
            if done.exit_code != 0:
                raise client.refusal("run", done)
        self._container = EngineContainer(
            client, self.id, user=user, workdir=workdir, env={}, restart=self._cannot_restart
        )

    async def wait_for(self, condition: str) -> None:
        """Return once the service has reached what others wait for; one that ends before is an error."""
        if condition == "service_completed_successfully":
            while (code := await self._exit_code()) is None:  # noqa: ASYNC110 - the engine sets no event here
                await anyio.sleep(_POLL_SEC)
            if code != 0:
                raise await self._failed(f"exited with code {code}")
        elif condition == "service_healthy" and self._check is not None:
            await self._wait_healthy(self._check)
            self._was_healthy = True
        elif (code := await self._exit_code()) not in (None, 0):
            raise await self._failed(f"exited with code {code}")

    async def why_down(self) -> str | None:
        """Why a service that was up is not any more. One that ended without an error has done its work, unless others
        waited for it to be healthy."""
        code = await self._exit_code()
        if code is not None:
            return str(await self._failed(f"exited with code {code}")) if code or self._was_healthy else None
        check = self._check
        if check is None or not self._was_healthy:
            return None
        for pause in _RETRIES_SEC:
            if (await self.container.exec(check.command, timeout=check.timeout_sec, max_output=1 << 16)).ok:
                return None
            await anyio.sleep(pause)
        return str(await self._failed("is no longer healthy"))

    async def _wait_healthy(self, check: Healthcheck) -> None:
        try:
            await wait_healthy(self.container, check)
        except SandboxFailure as error:
            raise await self._failed("ended before it became healthy") from error
        except EnvironmentFailure as error:
            raise await self._failed(f"is not ready. {error}") from error

    async def save(self) -> str:
        """An image of its files as they are now."""
        return await self._host.commit(self.id, "fork")

    def set_network_environment(self, environment: Mapping[str, str]) -> None:
        self.container.set_defaults(env=environment)

    async def stop(self) -> None:
        if self._container is not None:
            await self._container.close()
        async with self._host.gate.turn():
            await self._host.remove_container(self.id)

    async def _exit_code(self) -> int | None:
        state = await self._host.client.ask("inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", self.id)
        running, _, code = state.partition(" ")
        return None if running == "true" else int(code)

    async def _failed(self, what: str) -> EnvironmentFailure:
        done = await self._host.client.run("logs", "--tail", str(_LAST_LINES), self.id)
        text = (done.stdout + done.stderr).decode(errors="replace").strip()
        shown = f" Its last lines:\n{text}" if text else ""
        return EnvironmentFailure(
            f"The service '{self._service.name}' {what.rstrip('.')}.{shown}", code="service-failed"
        )

    async def _cannot_restart(self) -> None:
        raise SandboxFailure(
            f"The processes of the service '{self._service.name}' could not be ended.", code="sandbox-failed"
        )
