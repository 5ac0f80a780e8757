"""The configuration of a task: `TaskConfig` and its sections.

The same records read the frontmatter of `task.md` (strictly) and `task.toml` (leniently). Field names are canonical;
aliases (`version`, `solution`, `sandbox`, `image`, …) are accepted, but not both spellings at once.
"""

from __future__ import annotations

import re
from typing import Any, Final, Self

from benchflow.errors import IssuesError
from benchflow.task.config import kinds
from benchflow.task.config.kinds import check_network, env, flag, hosts, integer, listing, number, some_text, text, user
from benchflow.task.config.parsed_record import FrozenMap, InvalidValueError, IssueLog, Kind, Record, field, join

SCHEMA_VERSION: Final = "1.3"
MAIN_SERVICE: Final = "main"
NETWORK_MODES: Final = ("no-network", "public", "allowlist")
RUNGS: Final = ("separate", "shared", "system", "services", "open")
"""How much of the agent's state a verifier sees, strictest first."""
OPEN: Final = "open"
"""The last of them."""
AUTO: Final = "auto"
"""The strictest rung at which the package's own oracle scores full."""
_SEGMENT: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_ENV_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([GMK])", re.IGNORECASE)

network_mode: Final = kinds.choice(*NETWORK_MODES)
positive: Final = number(above=0)


class TaskConfigError(IssuesError, ValueError):
    """A configuration that cannot be used."""


class Author(Record):
    """Who wrote a task."""

    name: str = field(some_text)
    email: str | None = field(text, default=None)

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> Self | None:
        if isinstance(value, str) and problems.foreign:
            value = {"name": value}
        return super().parse(value, path, problems)


class PackageInfo(Record):
    """Identity: `task`."""

    name: str = field(kinds.matching(f"(?!.*\\.\\.){_SEGMENT}/{_SEGMENT}", "of the form 'organisation/name'"))
    version: str | None = field(some_text, default=None)
    description: str = field(text, default="")
    authors: tuple[Author, ...] = field(listing(kinds.record(Author)), default=())
    keywords: tuple[str, ...] = field(listing(text), default=())

    @property
    def org(self) -> str:
        return self.name.partition("/")[0]

    @property
    def short_name(self) -> str:
        return self.name.partition("/")[2]


class AgentConfig(Record):
    """Limits of the agent: `agent`."""

    timeout_sec: float | None = field(positive, default=None)
    """None: no wall-clock limit."""
    user: str | int | None = field(user, default=None)
    network_mode: str | None = field(network_mode, default=None)
    allowed_hosts: tuple[str, ...] | None = field(hosts, default=None)

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        check_network(values, path, problems)


def _transport(value: Any, path: str, problems: IssueLog) -> str:
    word = "streamable-http" if value == "http" else value
    return str(kinds.choice("stdio", "sse", "streamable-http").parse(word, path, problems))


class MCPServer(Record):
    """A tool server available to the agent's session."""

    name: str = field(some_text)
    transport: str = field(Kind(_transport), default="sse")
    url: str | None = field(some_text, default=None)
    command: str | None = field(some_text, default=None)
    args: tuple[str, ...] = field(listing(text), default=())
    env: FrozenMap = field(env, default=FrozenMap())
    headers: FrozenMap = field(kinds.mapping(text), default=FrozenMap())

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        needed = "command" if values.get("transport", "sse") == "stdio" else "url"
        if needed not in values:
            where = join(path, needed)
            problems.error("missing-key", where, f"{where} is required for this transport")


class HealthcheckConfig(Record):
    """When an environment is ready."""

    command: str = field(some_text)
    interval_sec: float = field(positive, default=5.0)
    timeout_sec: float = field(positive, default=30.0)
    start_period_sec: float = field(number(least=0), default=0.0)
    start_interval_sec: float = field(positive, default=5.0)
    retries: int = field(integer(least=1), default=3)


class TPUConfig(Record):
    """Tensor processors."""

    type: str = field(some_text)
    topology: str = field(kinds.matching(r"[1-9][0-9]*(x[1-9][0-9]*)+", "of the form '2x4'"))


def _size(value: Any, _path: str, _problems: IssueLog) -> int:
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidValueError("must be a size such as '2G', '512M' or '64K'")
    factor = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}[found[2].upper()]
    return max(1, round(float(found[1]) * factor))


class EnvironmentConfig(Record):
    """Where a task runs: `environment`, also written `sandbox`."""

    network_mode: str = field(network_mode, default="public")
    allowed_hosts: tuple[str, ...] | None = field(hosts, default=None)
    build_timeout_sec: float = field(positive, default=600.0)
    docker_image: str | None = field(some_text, default=None, aliases=("image",))
    os: str = field(kinds.choice("linux", "windows", fold=True), default="linux")
    cpus: float = field(number(above=0), default=1)
    memory_mb: int = field(integer(least=1), default=2048)
    storage_mb: int = field(integer(least=1), default=10240)
    gpus: int = field(integer(least=0), default=0)
    gpu_types: tuple[str, ...] | None = field(listing(some_text), default=None)
    tpu: TPUConfig | None = field(kinds.record(TPUConfig), default=None)
    mcp_servers: tuple[MCPServer, ...] = field(listing(kinds.record(MCPServer)), default=())
    env: FrozenMap = field(env, default=FrozenMap())
    skills_dir: str | None = field(kinds.absolute_path, default=None)
    healthcheck: HealthcheckConfig | None = field(kinds.record(HealthcheckConfig), default=None)
    workdir: str | None = field(text, default=None)
    bugswarm_image_tag: str | None = field(text, default=None)
    allow_internet: bool | None = field(flag, default=None)
    """Converted to `network_mode`."""
    memory: int | None = field(Kind(_size), default=None)
    """Converted to `memory_mb`."""
    storage: int | None = field(Kind(_size), default=None)
    """Converted to `storage_mb`."""

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        for old in ("memory", "storage"):
            if old not in values:
                continue
            size, new = values.pop(old), f"{old}_mb"
            if values.setdefault(new, size) != size:
                where = join(path, old)
                problems.error("conflicting-keys", where, f"{where} contradicts {join(path, new)}")
        _express_internet(values, path, problems)
        check_network(values, path, problems)


def _express_internet(values: dict[str, Any], path: str, problems: IssueLog) -> None:
    allowed = values.pop("allow_internet", None)
    if allowed is None:
        return
    mode = values.get("network_mode")
    if mode is None:
        values["network_mode"] = "public" if allowed else "no-network"
    elif allowed is (mode == "no-network") and not problems.foreign:
        where = join(path, "allow_internet")
        problems.error("conflicting-keys", where, f"{where} contradicts {join(path, 'network_mode')}: {mode}")


class JudgeConfig(Record):
    """The judge of a `verifier.type: llm-judge` without a verifier document."""

    model: str = field(some_text, default="claude-sonnet-4-6")
    rubric_path: str = field(kinds.relative_path, default="tests/rubric.toml")
    input_dir: str = field(kinds.absolute_path, default="/app")
    input_type: str = field(kinds.choice("deliverables"), default="deliverables")
    context: str = field(text, default="")


class MemoryConfig(Record):
    """Hidden expectations about what an agent should have learned."""

    expected_skills: tuple[str, ...] | None = field(listing(some_text), default=None, hidden=True)


class HardeningConfig(Record):
    """What verification does not undo. Every opt-out is recorded. `keep_processes` is another spelling of
    `isolation: services`, `keep_system_changes` of `isolation: system`."""

    cleanup_conftests: bool = field(flag, default=True)
    keep_system_changes: bool = field(flag, default=False)
    keep_processes: bool = field(flag, default=False)


class CollectHook(Record):
    """A command that runs before separate verification, to collect results."""

    command: str = field(some_text)
    service: str = field(some_text, default=MAIN_SERVICE)
    timeout_sec: float | None = field(positive, default=None)


def _reward_range(value: Any, path: str, problems: IssueLog) -> tuple[float, float]:
    bounds = listing(number()).parse(value, path, problems)
    if len(bounds) != 2 or bounds[0] >= bounds[1] or bounds[0] > 0 or bounds[1] < 1:  # a pair
        raise InvalidValueError("must be [low, high] with low <= 0 and high >= 1")
    return bounds[0], bounds[1]


class VerifierConfig(Record):
    """How the result is scored: `verifier`."""

    type: str = field(kinds.choice("test-script", "llm-judge"), default="test-script")
    """Used only without `verifier/verifier.md`."""
    timeout_sec: float = field(positive, default=600.0)
    env: FrozenMap = field(env, default=FrozenMap())
    reward_range: tuple[float, float] | None = field(Kind(_reward_range), default=None)
    user: str | int | None = field(user, default=None)
    network_mode: str | None = field(network_mode, default=None)
    allowed_hosts: tuple[str, ...] | None = field(hosts, default=None)
    isolation: str | None = field(kinds.choice(*RUNGS, AUTO), default=None)
    """None: `wanted_isolation` looks at the other spellings."""
    environment_mode: str | None = field(kinds.choice("shared", "separate"), default=None, aliases=("sandbox_mode",))
    environment: EnvironmentConfig | None = field(kinds.record(EnvironmentConfig), default=None, aliases=("sandbox",))
    service: str = field(some_text, default=MAIN_SERVICE)
    collect: tuple[CollectHook, ...] = field(listing(kinds.record(CollectHook)), default=())
    judge: JudgeConfig = field(kinds.record(JudgeConfig), default=JudgeConfig())
    memory: MemoryConfig | None = field(kinds.record(MemoryConfig), default=None, hidden=True)
    hardening: HardeningConfig = field(kinds.record(HardeningConfig), default=HardeningConfig())
    pytest_plugins: tuple[str, ...] = field(listing(some_text), default=())

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        check_network(values, path, problems)
        _check_isolation(values, path, problems)

    @property
    def wanted_isolation(self) -> str | None:
        """The declared isolation, a rung or `auto`, however it is spelled; None if nothing is declared."""
        hardening = self.hardening
        if self.isolation is not None:
            return self.isolation
        if self.environment_mode == "separate" or self.environment is not None:
            return "separate"
        if hardening.keep_processes:
            return "services"
        if hardening.keep_system_changes:
            return "system"
        return "shared" if self.environment_mode is not None or hardening.declared & KEPT else None


KEPT: Final = frozenset({"keep_system_changes", "keep_processes"})
"""The keys of `hardening` that spell an isolation."""
_KEEPING: Final = {"keep_system_changes": ("system", "services"), "keep_processes": ("services",)}
"""Rungs with which a key of `hardening` agrees when it is true."""
_NOT_KEEPING: Final = {"keep_system_changes": RUNGS[:2], "keep_processes": RUNGS[:3]}
"""The same when it is false."""


def _check_isolation(values: dict[str, Any], path: str, problems: IssueLog) -> None:
    """Report every spelling of the isolation that contradicts another one."""
    said, rung = f"isolation: {values.get('isolation')}", values.get("isolation")
    mode = values.get("environment_mode")
    own = mode == "separate" or "environment" in values
    key = "environment_mode" if mode == "separate" else "environment"
    if (mode == "shared" and (own or rung == "separate")) or (own and rung not in (None, "separate")):
        where = join(path, key if own else "environment_mode")
        against = "environment_mode: shared" if own and mode == "shared" else said
        problems.error("conflicting-keys", where, f"{where} contradicts {against}")
        return
    if rung is None and own:
        said, rung = ("environment_mode: separate" if mode else "environment"), "separate"
    hardening = values.get("hardening")
    for name in sorted(KEPT & hardening.declared) if hardening is not None and rung is not None else ():
        kept = getattr(hardening, name)
        if rung not in (_KEEPING if kept else _NOT_KEEPING)[name]:
            where = join(path, f"hardening.{name}")
            problems.error("conflicting-keys", where, f"{where} contradicts {said}")


class OracleConfig(Record):
    """Settings of the held-out reference solution: `oracle`, also written `solution`."""

    env: FrozenMap = field(env, default=FrozenMap())
    timeout_sec: float | None = field(positive, default=None)

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> Self | None:
        return super().parse(_lift_env(value, path, problems), path, problems)


def _lift_env(value: Any, path: str, problems: IssueLog) -> Any:
    """Upper-case string keys directly in the section are environment variables."""
    if not isinstance(value, dict):
        return value
    lifted = {
        k: v for k, v in value.items() if isinstance(v, str) and k not in OracleConfig.KEYS and _ENV_NAME.fullmatch(k)
    }
    given = value.get("env", {})
    if not lifted or not isinstance(given, dict):
        return value
    for key, item in lifted.items():
        if given.get(key, item) != item:
            where = join(path, key)
            problems.error("conflicting-keys", where, f"{where} contradicts {path}.env.{key}")
    return {**{k: v for k, v in value.items() if k not in lifted}, "env": {**given, **lifted}}


class ArtifactConfig(Record):
    """A path that is kept after the agent ends; a plain string is its `source`."""

    source: str = field(some_text)
    destination: str | None = field(kinds.relative_path, default=None)
    exclude: tuple[str, ...] = field(listing(some_text), default=())
    service: str = field(some_text, default=MAIN_SERVICE)

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> Self | None:
        return super().parse({"source": value} if isinstance(value, str) else value, path, problems)

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        source: str = values["source"]
        where = join(path, "source")
        if ".." in source.split("/") or "\0" in source:
            problems.error("unsafe-path", where, f"{where} must not contain '..'")
        if values.get("service", MAIN_SERVICE) != MAIN_SERVICE and not source.startswith("/"):
            problems.error("unsafe-path", where, f"{where} must be absolute for a service other than {MAIN_SERVICE}")


artifacts: Final = listing(kinds.record(ArtifactConfig))


def _min_reward(value: Any, path: str, problems: IssueLog) -> Any:
    kind = kinds.mapping(number()) if isinstance(value, dict) else number()
    return kind.parse(value, path, problems)


class StepConfig(Record):
    """One checkpoint of a multi-step task."""

    name: str = field(kinds.matching(r"(?!\.)[^/\\\0]{1,255}", "a folder name"))
    agent: AgentConfig = field(kinds.record(AgentConfig), default=AgentConfig())
    verifier: VerifierConfig = field(kinds.record(VerifierConfig), default=VerifierConfig())
    min_reward: float | FrozenMap | None = field(Kind(_min_reward), default=None)
    healthcheck: HealthcheckConfig | None = field(kinds.record(HealthcheckConfig), default=None)
    artifacts: tuple[ArtifactConfig, ...] = field(artifacts, default=())


def _steps(value: Any, path: str, problems: IssueLog) -> tuple[StepConfig, ...]:
    steps: tuple[StepConfig, ...] = listing(kinds.record(StepConfig)).parse(value, path, problems)
    seen: set[str] = set()
    for step in steps:
        if step.name.casefold() in seen:
            problems.error("invalid-value", path, f"{path} has two steps named '{step.name}'")
        seen.add(step.name.casefold())
    return steps


def _schema_version(value: Any, path: str, problems: IssueLog) -> str:
    if problems.foreign and not isinstance(value, (str, bool)) and isinstance(value, (int, float)):
        return str(value)
    version = str(text.parse(value, path, problems))
    if problems.foreign:
        return version
    major, dot, minor = version.partition(".")
    if not _is_number(major) or (dot and not _is_number(minor)):
        raise InvalidValueError(f"must be MAJOR.MINOR; it is '{version[:40]}'")
    if int(major) != 1:
        raise InvalidValueError(f"has the unsupported major version {major}; only 1 is supported")
    return version


def _is_number(digits: str) -> bool:
    return digits.isdigit() and digits.isascii() and len(digits) <= 6


class TaskConfig(Record):
    """The whole configuration of a task."""

    schema_version: str = field(Kind(_schema_version), default=SCHEMA_VERSION, aliases=("version",))
    task: PackageInfo | None = field(kinds.record(PackageInfo), default=None)
    metadata: FrozenMap = field(kinds.free_mapping, default=FrozenMap())
    agent: AgentConfig = field(kinds.record(AgentConfig), default=AgentConfig())
    verifier: VerifierConfig = field(kinds.record(VerifierConfig), default=VerifierConfig())
    environment: EnvironmentConfig = field(
        kinds.record(EnvironmentConfig), default=EnvironmentConfig(), aliases=("sandbox",)
    )
    oracle: OracleConfig = field(kinds.record(OracleConfig), default=OracleConfig(), aliases=("solution",))
    source: str | None = field(text, default=None)
    artifacts: tuple[ArtifactConfig, ...] = field(artifacts, default=())
    steps: tuple[StepConfig, ...] | None = field(Kind(_steps, StepConfig, "list"), default=None)
    multi_step_reward_strategy: str | None = field(kinds.choice("mean", "final"), default=None)
    reward: FrozenMap = field(kinds.free_mapping, default=FrozenMap())

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> Self | None:
        if isinstance(value, dict) and "version" in value and "schema_version" in value:
            value = {key: item for key, item in value.items() if key != "version"}
        return super().parse(value, path, problems)

    @classmethod
    def model_validate(cls, data: Any, *, foreign: bool = False) -> Self:
        """Read a mapping; raises `TaskConfigError` with every problem."""
        problems = IssueLog(foreign=foreign)
        return TaskConfigError.require(cls.parse(data, "", problems), problems.issues)

    def model_dump(self) -> dict[str, Any]:
        """The effective canonical configuration as plain data."""
        return self.to_dict()

    @property
    def sandbox(self) -> EnvironmentConfig:
        """Alias of `environment`."""
        return self.environment

    @property
    def solution(self) -> OracleConfig:
        """Alias of `oracle`."""
        return self.oracle

    @property
    def expected_skills(self) -> tuple[str, ...] | None:
        """The hidden expectations of `verifier.memory`, if any."""
        return self.verifier.memory.expected_skills if self.verifier.memory else None
