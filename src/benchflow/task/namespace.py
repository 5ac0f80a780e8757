"""The typed `benchflow:` namespace: everything a document says beyond the shared configuration.

Each plane has its keys: prompts and interaction, policies, verifier, oracle and environment wiring, assets and secrets,
provenance, evidence, compatibility. Unknown keys are errors; only `compat.extra` is free.
"""

from __future__ import annotations

from typing import Any, Final

from benchflow.task import kinds
from benchflow.task.config import NETWORK_MODES, network_mode
from benchflow.task.evidence_config import ARTIFACT_KINDS, Evidence
from benchflow.task.hosts import hosts
from benchflow.task.interaction import Interaction, Nudges, PromptPolicy, Team
from benchflow.task.issues import IssueLog
from benchflow.task.kinds import flag, listing, relative_path, sha256, some_text, text
from benchflow.task.records import FrozenMap, Record, field

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

__all__ = ["ARTIFACT_KINDS", "BACKENDS", "NETWORK_MODES", "PHASES", "VISIBILITIES", "Namespace"]


class TrajectoryAudit(Record):
    """What a trajectory must prove after the run."""

    require_no_forbidden_tool_calls: bool = field(flag, False)


class AgentPolicy(Record):
    """`agent_policy`: what the agent may use, apart from the network of its environment."""

    skill_access: str = field(kinds.choice("none", "installed", "declared"), "installed")
    allowed_skill_roots: tuple[str, ...] = field(listing(some_text), ())
    search: str = field(kinds.choice("allowed", "disabled"), "allowed")
    forbidden_tools: tuple[str, ...] = field(listing(some_text), ())
    trajectory_audit: TrajectoryAudit = field(kinds.record(TrajectoryAudit), TrajectoryAudit())


class NetworkRules(Record):
    """`runtime_policy.network`: the network per phase."""

    task_default: str | None = field(network_mode, None)
    agent_egress: str | None = field(
        kinds.choice("none", "model-only", "model-and-dependencies", "allowlist", "public"), None
    )
    allowed_hosts: tuple[str, ...] = field(hosts, ())
    phase_overrides: FrozenMap = field(
        kinds.mapping(network_mode, keys=kinds.choice(*PHASES)), FrozenMap()
    )


class PrivateMount(Record):
    """A volume that is mounted for the run and never part of the package."""

    source: str = field(some_text)
    target: str = field(kinds.absolute_path)
    mode: str = field(kinds.choice("ro", "rw"), "ro")
    visibility: str = field(kinds.choice(*VISIBILITIES), "agent")
    secret_ref: str | None = field(some_text, None)


class PersistentState(Record):
    """State that outlives a phase."""

    required: bool = field(flag, False)
    scope: str = field(kinds.choice("task-run", "task", "benchmark"), "task-run")
    cleanup: str = field(kinds.choice("after-agent", "after-verifier", "never"), "after-verifier")


class RuntimePolicy(Record):
    """`runtime_policy`: what the runtime must be able to do."""

    backend: str | None = field(kinds.choice(*BACKENDS), None)
    required_capabilities: tuple[str, ...] = field(listing(some_text, unique=True), ())
    network: NetworkRules = field(kinds.record(NetworkRules), NetworkRules())
    private_mounts: tuple[PrivateMount, ...] = field(listing(kinds.record(PrivateMount)), ())
    persistent_state: PersistentState | None = field(kinds.record(PersistentState), None)


class StrategyWeight(Record):
    """One part of a hybrid implementation."""

    weight: float | None = field(kinds.number(least=0), None)
    required: bool = field(flag, False)


class Implementation(Record):
    """`verifier.implementation`: which kinds of scoring a verifier is made of."""

    type: str | None = field(some_text, None)
    strategies: FrozenMap = field(kinds.mapping(kinds.record(StrategyWeight)), FrozenMap())


class Transfer(Record):
    """A path that a separate verification takes over from the agent's box; a plain string is its `source`."""

    source: str = field(kinds.absolute_path)
    exclude: tuple[str, ...] = field(listing(some_text), ())
    max_mb: float | None = field(kinds.number(above=0), None)

    @classmethod
    def parse(cls, value: Any, path: str, log: IssueLog) -> Transfer | None:
        return super().parse({"source": value} if isinstance(value, str) else value, path, log)


class VerifierWiring(Record):
    """`benchflow.verifier`: where the verifier is and what goes in and out."""

    path: str | None = field(relative_path, None)
    spec: str | None = field(relative_path, None)
    entrypoint: str | None = field(relative_path, None)
    rubric: str | None = field(relative_path, None)
    inputs: tuple[str, ...] = field(listing(some_text), ())
    outputs: tuple[str, ...] = field(listing(some_text), ())
    transfer: tuple[Transfer, ...] = field(listing(kinds.record(Transfer)), ())
    implementation: Implementation | None = field(kinds.record(Implementation), None)


class OracleWiring(Record):
    """`benchflow.oracle`."""

    path: str | None = field(relative_path, None)


class EnvironmentWiring(Record):
    """`benchflow.environment`: the manifest of services (`environment.toml`)."""

    manifest: str = field(relative_path)


class AssetSource(Record):
    """Where an asset comes from."""

    url: str | None = field(some_text, None)
    revision: str | None = field(some_text, None)
    license: str | None = field(some_text, None)


class Asset(Record):
    """A file or folder with a declared visibility and, if pinned, its SHA-256."""

    path: str = field(relative_path)
    visibility: str = field(kinds.choice(*VISIBILITIES))
    sha256: str | None = field(sha256, None)
    mount_phase: str | None = field(kinds.choice(*PHASES), None)
    target: str | None = field(kinds.absolute_path, None)
    generated: bool = field(flag, False)
    license: str | None = field(text, None)
    kind: str | None = field(kinds.choice(*ARTIFACT_KINDS), None)
    source: AssetSource | None = field(kinds.record(AssetSource), None)


class SecretDeclaration(Record):
    """A value that the runtime provides in one scope and never writes down."""

    name: str = field(some_text)
    scope: str = field(kinds.choice(*SECRET_SCOPES))
    visibility: str = field(kinds.choice(*VISIBILITIES), "runtime_secret")
    never_persist: bool = field(flag, True)
    env: str | None = field(some_text, None)
    """Name of the variable it is given as; the secret's own name when left out."""
    required: bool = field(flag, True)


class BuildSource(Record):
    """What an image was built from."""

    path: str = field(relative_path)
    sha256: str | None = field(sha256, None)


class ImageProvenance(Record):
    """Where an image comes from."""

    field_: str | None = field(some_text, None, key="field")
    reference: str = field(some_text)
    digest: str | None = field(some_text, None)
    registry: str | None = field(some_text, None)
    provider: str | None = field(some_text, None)
    build_source: BuildSource | None = field(kinds.record(BuildSource), None)
    credential_secret_ref: str | None = field(some_text, None)
    never_persist_credentials: bool = field(flag, True)


class SourceProvenance(Record):
    """What a task was derived from."""

    url: str | None = field(some_text, None)
    revision: str | None = field(some_text, None)
    path: str | None = field(some_text, None)
    license: str | None = field(some_text, None)
    sha256: str | None = field(sha256, None)
    description: str | None = field(text, None)


class Provenance(Record):
    """`benchflow.provenance`."""

    images: tuple[ImageProvenance, ...] = field(listing(kinds.record(ImageProvenance)), ())
    sources: tuple[SourceProvenance, ...] = field(listing(kinds.record(SourceProvenance)), ())
    created_by: str | None = field(text, None)
    created_at: str | None = field(text, None)
    license: str | None = field(text, None)


class TargetCompatibility(Record):
    """What is promised for one foreign format."""

    export: str = field(kinds.choice("full", "supported", "degraded", "unsupported"))
    emits: FrozenMap = field(kinds.mapping(some_text), FrozenMap())


class Compat(Record):
    """`benchflow.compat`: foreign keys that an import preserved."""

    source: str | None = field(text, None)
    extra_paths: tuple[str, ...] = field(listing(text), ())
    extra: FrozenMap = field(kinds.free_mapping, FrozenMap())


class Authoring(Record):
    """`benchflow.authoring`: written by older normalisations."""

    profiles: tuple[str, ...] = field(listing(some_text), ())
    presets: tuple[str, ...] = field(listing(some_text), ())
    normalized: bool = field(flag, False)


class Namespace(Record):
    """The whole `benchflow:` mapping."""

    document_version: str | None = field(kinds.matching(r"[0-9]+(\.[0-9]+)*", "a version such as '0.6'"), None)
    prompt: PromptPolicy | None = field(kinds.record(PromptPolicy), None)
    interaction: Interaction | None = field(kinds.record(Interaction), None)
    teams: FrozenMap = field(kinds.mapping(kinds.record(Team), keys=kinds.name), FrozenMap())
    nudges: Nudges | None = field(kinds.record(Nudges), None)
    agent_policy: AgentPolicy | None = field(kinds.record(AgentPolicy), None)
    runtime_policy: RuntimePolicy | None = field(kinds.record(RuntimePolicy), None)
    verifier: VerifierWiring | None = field(kinds.record(VerifierWiring), None)
    oracle: OracleWiring | None = field(kinds.record(OracleWiring), None)
    environment: EnvironmentWiring | None = field(kinds.record(EnvironmentWiring), None)
    assets: tuple[Asset, ...] = field(listing(kinds.record(Asset)), ())
    secrets: tuple[SecretDeclaration, ...] = field(listing(kinds.record(SecretDeclaration)), ())
    provenance: Provenance | None = field(kinds.record(Provenance), None)
    evidence: Evidence | None = field(kinds.record(Evidence), None)
    compatibility: FrozenMap = field(kinds.mapping(kinds.record(TargetCompatibility)), FrozenMap())
    compat: Compat | None = field(kinds.record(Compat), None)
    authoring: Authoring | None = field(kinds.record(Authoring), None)
