"""What a task allows in each phase: network, user, mounts, tools of the agent, variables of the machine.

Pure functions from a task's runtime view; what they return goes into a `SandboxSpec` or to an agent. A value that is
exactly `${NAME}` or `${NAME:-default}` is replaced by a variable of the machine; every other value is used unchanged.
A variable that is neither set nor given a default stops the launch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.inside.accounts import AGENT
from benchflow.sandbox.inside.beneath import is_name
from benchflow.sandbox.protocol import DEFAULT_PIDS, Healthcheck, Limits, Mount, NetworkMode, NetworkPolicy, SandboxSpec
from benchflow.sandbox.pulling import ANY_IMAGE, PullSettings
from benchflow.task.config.namespace import ambiguous_secrets, loose_secrets

if TYPE_CHECKING:
    from benchflow.task.config.task_config import EnvironmentConfig, HealthcheckConfig
    from benchflow.task.runtime_view import StepView, TaskRuntimeView

Scope = Literal["environment", "agent", "verifier", "oracle"]
"""Whose part of a task a policy is for."""

DEFAULT_WORKDIR: Final = "/app"
DOCKERFILE: Final = "environment/Dockerfile"
_TEMPLATE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\}", re.DOTALL)
_MODES: Final[Mapping[str, NetworkMode]] = {
    "no-network": "none",
    "none": "none",
    "public": "public",
    "allowlist": "allowlist",
    "model-only": "allowlist",
    "model-and-dependencies": "allowlist",
}
_OF_THE_MODEL: Final = ("model-only", "model-and-dependencies")


def in_step(view: TaskRuntimeView, step: StepView | None) -> TaskRuntimeView:
    """The view with the agent's settings of a step; what the step does not say, the task says."""
    if step is None:
        return view
    task, own = view.config.agent, step.config.agent
    agent = own.replace(**{name: getattr(task, name) for name in task.declared - own.declared})
    return replace(view, config=view.config.replace(agent=agent))


def agent_users(spec: SandboxSpec, view: TaskRuntimeView) -> tuple[str, ...]:
    """All users that the agent of a task runs as: the user of its sandbox, and those that steps declare."""
    own = spec.user or (spec.image.user if spec.image is not None else None) or AGENT
    steps = [str(step.config.agent.user) for step in view.steps if step.config.agent.user is not None]
    return tuple(dict.fromkeys([own, *steps]))


def network_policy(view: TaskRuntimeView, phase: Scope) -> NetworkPolicy:
    """How far the sandbox reaches in a phase: the most specific declaration wins.

    What neither the phase nor the environment declares is the policy's `task_default`. The two kinds of egress that are
    named after the model are lists of hosts too, those of `allowed_hosts`: models are reached through their gateway,
    which every policy permits.
    """
    environment = view.config.environment
    own = view.config.agent if phase == "agent" else view.config.verifier if phase == "verifier" else None
    policy = view.namespace.runtime_policy
    rules = policy.network if policy is not None else None
    mode, hosts = environment.network_mode, environment.allowed_hosts or ()
    if own is not None and own.network_mode is not None:
        mode, hosts = own.network_mode, own.allowed_hosts or ()
    elif rules is not None and rules.task_default is not None and "network_mode" not in environment.declared:
        mode, hosts = rules.task_default, rules.allowed_hosts
    if rules is not None and phase == "agent" and rules.agent_egress is not None:
        mode, hosts = rules.agent_egress, (*hosts, *rules.allowed_hosts)
    if rules is not None and phase in rules.phase_overrides:
        mode, hosts = rules.phase_overrides[phase], (*hosts, *rules.allowed_hosts)
    kind = _MODES[mode]
    if mode in _OF_THE_MODEL and not hosts:
        kind = "none"
    return NetworkPolicy(kind, tuple(dict.fromkeys(hosts)) if kind == "allowlist" else ())


def sandbox_limits(environment: EnvironmentConfig, capabilities: frozenset[str]) -> Limits:
    """Limits for this machine: all that are declared, and the format's defaults as far as they can be kept."""

    def kept(name: str, capability: str) -> bool:
        return name in environment.declared or capability in capabilities

    return Limits(
        cpus=environment.cpus if kept("cpus", "limits.cpu") else None,
        memory_mb=environment.memory_mb if kept("memory_mb", "limits.memory") else None,
        storage_mb=environment.storage_mb if kept("storage_mb", "limits.disk") else None,
        pids=DEFAULT_PIDS if "limits.pids" in capabilities else None,
        gpus=environment.gpus or None,
    )


def needed_capabilities(view: TaskRuntimeView) -> dict[str, str]:
    """Capabilities that what the task declares cannot do without, each with the key that needs it."""
    declared = view.config.environment.declared
    needed = {
        capability: f"environment.{name}"
        for name, capability in (
            ("cpus", "limits.cpu"),
            ("memory_mb", "limits.memory"),
            ("storage_mb", "limits.disk"),
            ("healthcheck", "healthcheck"),
            ("docker_image", "image"),
        )
        if name in declared
    }
    phases: tuple[Scope, ...] = ("environment", "agent", "verifier")
    for phase in phases:
        needed.setdefault(f"network.{network_policy(view, phase).mode}", f"the network of the {phase} phase")
    if view.manifest is not None:
        needed["services"] = "benchflow.environment.manifest"
    if asset_mounts(view, "agent"):
        needed["mounts"] = "benchflow.assets"
    return needed


def healthcheck_of(config: HealthcheckConfig | None) -> Healthcheck | None:
    """A package's healthcheck as sandboxes take it."""
    if config is None:
        return None
    return Healthcheck(
        command=config.command,
        interval_sec=config.interval_sec,
        timeout_sec=config.timeout_sec,
        start_period_sec=config.start_period_sec,
        start_interval_sec=config.start_interval_sec,
        retries=config.retries,
    )


def working_folder(declared: str | None, image_workdir: str | None) -> str:
    """Where the agent works: what the package says, else the image, else `/app`; never `/`."""
    if declared is not None:
        return safe_workdir(declared)
    return image_workdir if image_workdir and image_workdir != "/" else DEFAULT_WORKDIR


def safe_workdir(path: str) -> str:
    """An absolute folder other than `/` without tricks in it, or an `EnvironmentFailure`."""
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or not parts or not all(is_name(part) for part in parts):
        message = f"environment.workdir must be an absolute path other than /, not {path!r}."
        raise EnvironmentFailure(message, code="workdir-invalid", path="environment.workdir")
    return "/" + "/".join(parts)


def asset_mounts(view: TaskRuntimeView, phase: Scope) -> tuple[Mount, ...]:
    """Files of the package that are mounted read-only in a phase.

    An asset of the environment phase is there for all phases, one of the agent phase for the agent only;
    what is hidden from the agent is never among the first two.
    """
    mounts = []
    for index, asset in enumerate(view.namespace.assets):
        if asset.target is None or asset.mount_phase not in ("environment", phase):
            continue
        mounts.append(Mount(_inside(view.files.root, asset.path, f"benchflow.assets[{index}].path"), asset.target))
    policy = view.namespace.runtime_policy
    for index, private in enumerate(policy.private_mounts if policy is not None else ()):
        if private.visibility == "agent" or phase in private.visibility:
            path = f"benchflow.runtime_policy.private_mounts[{index}].source"
            mounts.append(Mount(_existing(Path(private.source), path, private.source), private.target))
    return tuple(mounts)


def _inside(root: Path, relative: str, path: str) -> Path:
    source = (root / relative).resolve()
    if not source.is_relative_to(root.resolve()):
        raise EnvironmentFailure(f"{path} is outside the package.", code="mount-invalid", path=path)
    return _existing(source, path, relative)


def _existing(source: Path, path: str, named: str) -> Path:
    if not source.exists():
        raise EnvironmentFailure(f"{path}: {named} does not exist.", code="mount-missing", path=path)
    return source


def mcp_servers(view: TaskRuntimeView, machine: Mapping[str, str]) -> list[dict[str, Any]]:
    """The package's MCP servers, in the form that an agent gets when its session begins."""
    prepared: list[dict[str, Any]] = []
    for index, server in enumerate(view.config.environment.mcp_servers):
        path = f"environment.mcp_servers[{index}]"
        if server.transport == "stdio":
            env = resolve_variables(server.env, machine, path=f"{path}.env")
            prepared.append(
                {"name": server.name, "command": server.command, "args": list(server.args), "env": _pairs(env)}
            )
        else:
            headers = resolve_variables(server.headers, machine, path=f"{path}.headers")
            kind = "sse" if server.transport == "sse" else "http"
            prepared.append({"type": kind, "name": server.name, "url": server.url, "headers": _pairs(headers)})
    return prepared


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def resolve_variables(
    values: Mapping[str, str], machine: Mapping[str, str], *, path: str = "environment.env"
) -> dict[str, str]:
    """`values` with the machine's variables filled in; a missing one is an `EnvironmentFailure`.

    An empty variable counts as missing for `${NAME:-default}` only, as in a shell.
    """
    return {name: _resolve(value, machine, f"{path}.{name}") for name, value in values.items()}


def _resolve(value: str, machine: Mapping[str, str], path: str) -> str:
    match = _TEMPLATE.fullmatch(value)
    if match is None:
        return value
    name, default = match[1], match[2]
    if default is not None:
        return machine.get(name) or default
    if name not in machine:
        message = f"{path} needs the variable {name}, which is not set on this machine."
        raise EnvironmentFailure(message, code="variable-missing", path=path)
    return machine[name]


def referenced_variables(values: Mapping[str, str]) -> frozenset[str]:
    """Names of the machine's variables that `values` take, for redaction and for asking before a run."""
    matches = (_TEMPLATE.fullmatch(value) for value in values.values())
    return frozenset(match[1] for match in matches if match)


def required_variables(values: Mapping[str, str]) -> frozenset[str]:
    """Of these, the ones without a default: where one is not set, nothing starts."""
    matches = (_TEMPLATE.fullmatch(value) for value in values.values())
    return frozenset(match[1] for match in matches if match and match[2] is None)


def forward_variables(
    names: tuple[str, ...], machine: Mapping[str, str], *, path: str = "environment.forward_env"
) -> dict[str, str]:
    """The named variables of the machine; one that is not set is an `EnvironmentFailure`."""
    return resolve_variables({name: f"${{{name}}}" for name in names}, machine, path=path)


def declared_image(view: TaskRuntimeView) -> str | None:
    """The image that the task or its manifest names, to be used as it is.

    A manifest that many packages share names the `base_image` of all their images: only a package without a Dockerfile
    runs in it directly.
    """
    named = view.config.environment.docker_image
    if named is None and view.manifest is not None:
        named = view.manifest.image
        if named is None and DOCKERFILE not in view.files:
            named = view.manifest.base_image
    return named


def package_pulls(view: TaskRuntimeView, pulling: PullSettings, variables: Mapping[str, str]) -> PullSettings:
    """How the images of a package are pulled: with the digests it pins and the secrets it declares for that.

    A secret of scope `image-pull` is for the images that refer to it. One that none refers to is for the images that
    the package declares without a reference, or for all if it declares none; two such secrets are ambiguous. One whose
    variable is not set matters only where a registry demands credentials.
    """
    provenance = view.namespace.provenance
    images = provenance.images if provenance is not None else ()
    secrets = {secret.name: secret for secret in view.namespace.secrets if secret.scope == "image-pull"}
    if not images and not secrets:
        return pulling
    uses: list[tuple[str, str]] = []
    for index, image in enumerate(images):
        name = image.credential_secret_ref
        if name is None:
            continue
        if name not in secrets:
            path = f"benchflow.provenance.images[{index}].credential_secret_ref"
            message = f"{path} names '{name[:60]}', which is not a secret of scope image-pull in benchflow.secrets."
            raise EnvironmentFailure(message, code="undeclared-secret", path=path)
        uses.append((image.reference, name))
    loose = loose_secrets(view.namespace)
    if len(loose) > 1:
        raise EnvironmentFailure(ambiguous_secrets(loose), code="secret-ambiguous", path="benchflow.secrets")
    if loose:
        uses = [*((image, loose[0]) for image in _without_secret(view) or [ANY_IMAGE]), *uses]
    values = {image: variables.get(secrets[name].env or name, "") for image, name in uses}
    return replace(
        pulling,
        pins={image.reference: image.digest for image in images if image.digest is not None},
        credentials={image: value for image, value in values.items() if value},
        unset=tuple(sorted({secrets[name].env or name for image, name in uses if not values[image]})),
    )


def _without_secret(view: TaskRuntimeView) -> list[str]:
    """The images that the package declares and that refer to no secret."""
    provenance = view.namespace.provenance
    images = provenance.images if provenance is not None else ()
    verifier = view.config.verifier.environment
    named = {
        *(image.reference for image in images),
        declared_image(view),
        verifier.docker_image if verifier is not None else None,
    }
    referring = {image.reference for image in images if image.credential_secret_ref is not None}
    return sorted(name for name in named - referring if name is not None)
