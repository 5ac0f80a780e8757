"""The `benchflow:` namespace, and `DocumentRoot`, the record of all root keys of a `task.md`.

The namespace holds everything beyond the shared configuration: prompts and interaction, policies, wiring of verifier,
oracle and environment, assets and secrets, provenance, evidence, compatibility. Unknown keys are errors; only
`compat.extra` is free-form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from benchflow.task.config import kinds
from benchflow.task.config.evidence_config import ARTIFACT_KINDS, Evidence
from benchflow.task.config.interaction import Agents, Interaction, Nudges, PromptPolicy, Scene, User, teams
from benchflow.task.config.kinds import flag, hosts, listing, relative_path, sha256, some_text, text
from benchflow.task.config.parsed_record import FrozenMap, InvalidValueError, IssueLog, Kind, Record, field
from benchflow.task.config.task_config import TaskConfig, network_mode

VISIBILITIES: Final = (
    "agent",
    "hidden_verifier",
    "hidden_oracle",
    "runtime_secret",
    "external_dataset",
    "evidence_only",
)
PHASES: Final = ("environment", "agent", "verifier", "oracle")
BACKENDS: Final = ("local", "docker", "podman", "daytona", "modal", "e2b", "kubernetes", "hpc", "queue")
SECRET_SCOPES: Final = ("image-pull", "environment", "agent", "verifier", "oracle", "judge")


class TrajectoryAudit(Record):
    """What the trajectory must show after the run."""

    require_no_forbidden_tool_calls: bool = field(flag, default=False)


class AgentPolicy(Record):
    """`agent_policy`: what the agent may use, apart from the network of its environment."""

    skill_access: str = field(kinds.choice("none", "installed", "declared"), default="installed")
    allowed_skill_roots: tuple[str, ...] = field(listing(some_text), default=())
    search: str = field(kinds.choice("allowed", "disabled"), default="allowed")
    forbidden_tools: tuple[str, ...] = field(listing(some_text), default=())
    trajectory_audit: TrajectoryAudit = field(kinds.record(TrajectoryAudit), default=TrajectoryAudit())


class NetworkRules(Record):
    """`runtime_policy.network`: the network per phase."""

    task_default: str | None = field(network_mode, default=None)
    agent_egress: str | None = field(
        kinds.choice("none", "model-only", "model-and-dependencies", "allowlist", "public"), default=None
    )
    allowed_hosts: tuple[str, ...] = field(hosts, default=())
    phase_overrides: FrozenMap = field(kinds.mapping(network_mode, keys=kinds.choice(*PHASES)), default=FrozenMap())


class PrivateMount(Record):
    """A volume that is mounted for the run and is not part of the package."""

    source: str = field(some_text)
    target: str = field(kinds.absolute_path)
    mode: str = field(kinds.choice("ro", "rw"), default="ro")
    visibility: str = field(kinds.choice(*VISIBILITIES), default="agent")
    secret_ref: str | None = field(some_text, default=None)


class PersistentState(Record):
    """State that outlives a phase."""

    required: bool = field(flag, default=False)
    scope: str = field(kinds.choice("task-run", "task", "benchmark"), default="task-run")
    cleanup: str = field(kinds.choice("after-agent", "after-verifier", "never"), default="after-verifier")


class RuntimePolicy(Record):
    """`runtime_policy`: what the runtime must be able to do."""

    backend: str | None = field(kinds.choice(*BACKENDS), default=None)
    required_capabilities: tuple[str, ...] = field(listing(some_text, unique=True), default=())
    network: NetworkRules = field(kinds.record(NetworkRules), default=NetworkRules())
    private_mounts: tuple[PrivateMount, ...] = field(listing(kinds.record(PrivateMount)), default=())
    persistent_state: PersistentState | None = field(kinds.record(PersistentState), default=None)


class StrategyWeight(Record):
    """One part of a hybrid implementation."""

    weight: float | None = field(kinds.number(least=0), default=None)
    required: bool = field(flag, default=False)


class Implementation(Record):
    """`verifier.implementation`: which kinds of scoring a verifier combines."""

    type: str | None = field(some_text, default=None)
    strategies: FrozenMap = field(kinds.mapping(kinds.record(StrategyWeight)), default=FrozenMap())


def _place(value: Any, path: str, problems: IssueLog) -> str:
    """A path or pattern inside the sandbox; a relative one is below the working folder."""
    if ".." in some_text.parse(value, path, problems).split("/") or "\0" in value:
        raise InvalidValueError("must not contain '..'", "unsafe-path")
    return str(value)


place: Final = Kind(_place)


class Transfer(Record):
    """A path or pattern that separate verification copies from the agent's sandbox; a plain string is its `source`."""

    source: str = field(place)
    exclude: tuple[str, ...] = field(listing(some_text), default=())
    max_mb: float | None = field(kinds.number(above=0), default=None)

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> Transfer | None:
        return super().parse({"source": value} if isinstance(value, str) else value, path, problems)


class Transfers(Record):
    """`verifier.transfer`: what passes from one phase to the next; a plain list is `agent_to_verifier`."""

    agent_to_verifier: tuple[Transfer, ...] = field(listing(kinds.record(Transfer)), default=())
    verifier_to_result: tuple[str, ...] = field(listing(place), default=())

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> Transfers | None:
        if not isinstance(value, list):
            return super().parse(value, path, problems)
        return cls(agent_to_verifier=cls.KEYS["agent_to_verifier"].kind.parse(value, path, problems))


class VerifierInput(Record):
    """What verification reads: a file of the package, or a path of the sandbox; a plain string is its `path`."""

    path: str = field(place)
    kind: str | None = field(some_text, default=None)
    visibility: str | None = field(kinds.choice(*VISIBILITIES), default=None)

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> VerifierInput | None:
        return super().parse({"path": value} if isinstance(value, str) else value, path, problems)


class VerifierOutputs(Record):
    """What verification writes; a plain list is `artifacts`."""

    reward_text: str | None = field(kinds.absolute_path, default=None)
    reward_json: str | None = field(kinds.absolute_path, default=None)
    details_json: str | None = field(kinds.absolute_path, default=None)
    artifacts: tuple[str, ...] = field(listing(place), default=())

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> VerifierOutputs | None:
        if not isinstance(value, list):
            return super().parse(value, path, problems)
        return cls(artifacts=cls.KEYS["artifacts"].kind.parse(value, path, problems))


class VerifierWiring(Record):
    """`benchflow.verifier`: where the verifier is, its inputs and its outputs."""

    path: str | None = field(relative_path, default=None)
    spec: str | None = field(relative_path, default=None)
    entrypoint: str | None = field(relative_path, default=None)
    rubric: str | None = field(relative_path, default=None)
    visibility: str = field(kinds.choice("hidden"), default="hidden")
    inputs: tuple[VerifierInput, ...] = field(listing(kinds.record(VerifierInput)), default=())
    outputs: VerifierOutputs = field(kinds.record(VerifierOutputs), default=VerifierOutputs())
    transfer: Transfers = field(kinds.record(Transfers), default=Transfers())
    implementation: Implementation | None = field(kinds.record(Implementation), default=None)
    downloads: str = field(kinds.choice("required", "optional"), default="required")
    """Whether a low reward counts if the verifier's own downloads failed."""


class OracleWiring(Record):
    """`benchflow.oracle`."""

    path: str | None = field(relative_path, default=None)


class EnvironmentWiring(Record):
    """`benchflow.environment`: the manifest of services (`environment.toml`), in the package or beside it."""

    manifest: str = field(some_text)


class AssetSource(Record):
    """Where an asset comes from."""

    url: str | None = field(some_text, default=None)
    revision: str | None = field(some_text, default=None)
    license: str | None = field(some_text, default=None)


class Asset(Record):
    """A file or folder with a declared visibility and, if pinned, its SHA-256."""

    path: str = field(relative_path)
    visibility: str = field(kinds.choice(*VISIBILITIES))
    sha256: str | None = field(sha256, default=None)
    mount_phase: str | None = field(kinds.choice(*PHASES), default=None)
    target: str | None = field(kinds.absolute_path, default=None)
    generated: bool = field(flag, default=False)
    license: str | None = field(text, default=None)
    kind: str | None = field(kinds.choice(*ARTIFACT_KINDS), default=None)
    source: AssetSource | None = field(kinds.record(AssetSource), default=None)


class SecretDeclaration(Record):
    """A value that the runtime provides in one scope and never stores."""

    name: str = field(some_text)
    scope: str = field(kinds.choice(*SECRET_SCOPES))
    visibility: str = field(kinds.choice(*VISIBILITIES), default="runtime_secret")
    never_persist: bool = field(flag, default=True)
    env: str | None = field(some_text, default=None)
    """Name of the variable that holds it; default: the name of the secret."""
    required: bool = field(flag, default=True)


class BuildSource(Record):
    """What an image was built from."""

    path: str = field(relative_path)
    sha256: str | None = field(sha256, default=None)


class ImageProvenance(Record):
    """Where an image comes from."""

    field_: str | None = field(some_text, default=None, key="field")
    reference: str = field(some_text)
    digest: str | None = field(some_text, default=None)
    registry: str | None = field(some_text, default=None)
    provider: str | None = field(some_text, default=None)
    build_source: BuildSource | None = field(kinds.record(BuildSource), default=None)
    credential_secret_ref: str | None = field(some_text, default=None)
    never_persist_credentials: bool = field(flag, default=True)


class SourceProvenance(Record):
    """What a task was derived from."""

    url: str | None = field(some_text, default=None)
    revision: str | None = field(some_text, default=None)
    path: str | None = field(some_text, default=None)
    license: str | None = field(some_text, default=None)
    sha256: str | None = field(sha256, default=None)
    description: str | None = field(text, default=None)


class Provenance(Record):
    """`benchflow.provenance`."""

    images: tuple[ImageProvenance, ...] = field(listing(kinds.record(ImageProvenance)), default=())
    sources: tuple[SourceProvenance, ...] = field(listing(kinds.record(SourceProvenance)), default=())
    created_by: str | None = field(text, default=None)
    created_at: str | None = field(text, default=None)
    license: str | None = field(text, default=None)


class TargetCompatibility(Record):
    """The support promised for one foreign format."""

    export: str = field(kinds.choice("full", "supported", "degraded", "unsupported"))
    emits: FrozenMap = field(kinds.mapping(some_text), default=FrozenMap())
    losses: tuple[str, ...] = field(listing(some_text), default=())


class SourceInstruction(Record):
    """`benchflow.compat.instruction`: what surrounds the prompt in the source, and how its lines end."""

    before: str = field(text, default="")
    after: str | None = field(text, default=None)
    """None: one line ending."""
    breaks: str = field(kinds.matching("[lcr]+", "a letter per line break: l (LF), c (CRLF) or r (CR)"), default="l")
    """One letter for all line breaks, or one for each."""


class Compat(Record):
    """`benchflow.compat`: what an import preserved, so that an export can restore it."""

    source: str | None = field(text, default=None)
    extra_paths: tuple[str, ...] = field(listing(text), default=())
    extra: FrozenMap = field(kinds.free_mapping, default=FrozenMap())
    spelling: str | None = field(some_text, default=None)
    """TOML: the parts of the source that an export would write in other words."""
    instruction: SourceInstruction | None = field(kinds.record(SourceInstruction), default=None)


class Authoring(Record):
    """`benchflow.authoring`: written by earlier versions of `normalize`."""

    profiles: tuple[str, ...] = field(listing(some_text), default=())
    presets: tuple[str, ...] = field(listing(some_text), default=())
    normalized: bool = field(flag, default=False)


class OrsEnvironment(Record):
    """`ors`: an environment that another server offers over the Open Reward Standard, and one of its tasks."""

    url: str = field(kinds.matching(r"https?://[^\s]+", "an address such as https://host:8080"))
    environment: str = field(some_text)
    split: str = field(some_text)
    index: int = field(kinds.integer(least=0))
    spec_digest: str = field(kinds.matching(r"sha256:[0-9a-f]{64}", "a digest such as sha256:…"))
    """Of the task's specification when it was imported; a server that gives another one is refused."""
    token_env: str | None = field(some_text, default=None)
    """Name of the variable of the machine that holds the token."""


class Namespace(Record):
    """The whole `benchflow:` mapping."""

    document_version: str | None = field(kinds.matching(r"[0-9]+(\.[0-9]+)*", "a version such as '0.6'"), default=None)
    prompt: PromptPolicy | None = field(kinds.record(PromptPolicy), default=None)
    interaction: Interaction | None = field(kinds.record(Interaction), default=None)
    teams: FrozenMap = field(teams, default=FrozenMap())
    nudges: Nudges | None = field(kinds.record(Nudges), default=None)
    agent_policy: AgentPolicy | None = field(kinds.record(AgentPolicy), default=None)
    runtime_policy: RuntimePolicy | None = field(kinds.record(RuntimePolicy), default=None)
    verifier: VerifierWiring | None = field(kinds.record(VerifierWiring), default=None)
    oracle: OracleWiring | None = field(kinds.record(OracleWiring), default=None)
    environment: EnvironmentWiring | None = field(kinds.record(EnvironmentWiring), default=None)
    assets: tuple[Asset, ...] = field(listing(kinds.record(Asset)), default=())
    secrets: tuple[SecretDeclaration, ...] = field(listing(kinds.record(SecretDeclaration)), default=())
    provenance: Provenance | None = field(kinds.record(Provenance), default=None)
    evidence: Evidence | None = field(kinds.record(Evidence), default=None)
    compatibility: FrozenMap = field(kinds.mapping(kinds.record(TargetCompatibility)), default=FrozenMap())
    compat: Compat | None = field(kinds.record(Compat), default=None)
    authoring: Authoring | None = field(kinds.record(Authoring), default=None)
    ors: OrsEnvironment | None = field(kinds.record(OrsEnvironment), default=None)


PROFILE_KEYS: Final = ("environment-profile", "agent-profile", "verifier-profile")
PRESET_KEYS: Final = ("preset", "presets", "profile", "profiles")
SHORT_KEYS: Final = frozenset({*PRESET_KEYS, "name", "image"})
"""Keys at the root that stand for others, which replace them when a document is read."""


class DocumentRoot(TaskConfig):
    """All keys allowed at the root of a document."""

    agents: Agents = field(kinds.record(Agents), default=Agents())
    scenes: tuple[Scene, ...] = field(kinds.listing(kinds.record(Scene)), default=())
    user: User | None = field(kinds.record(User), default=None)
    benchflow: Namespace = field(kinds.record(Namespace), default=Namespace())
    environment_profile: str | None = field(some_text, default=None, key="environment-profile")
    agent_profile: str | None = field(some_text, default=None, key="agent-profile")
    verifier_profile: str | None = field(some_text, default=None, key="verifier-profile")

    def config(self) -> TaskConfig:
        """The part shared with split layouts."""
        return TaskConfig.of({name: value for name, value in self.__dict__.items() if name in TaskConfig.FIELDS})


def loose_secrets(namespace: Namespace) -> list[str]:
    """The secrets of scope `image-pull` that no image refers to, by name."""
    images = namespace.provenance.images if namespace.provenance is not None else ()
    return sorted(
        {secret.name for secret in namespace.secrets if secret.scope == "image-pull"}
        - {image.credential_secret_ref for image in images}
    )


def ambiguous_secrets(names: Iterable[str]) -> str:
    """Why several of them are refused."""
    return f"No image refers to the secrets {', '.join(names)} of scope image-pull; set credential_secret_ref."
