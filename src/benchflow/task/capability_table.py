"""One table of every field: what a sandbox must be able to do for it, or why nothing honours it.

`NOTE` is information that no run depends on; `ENGINE` is honoured by rollout and verifier on every sandbox;
`needs` names capabilities; `judged` decides by the value. A test proves that every field of every record is
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow.task.config import evidence_config as e
from benchflow.task.config import interaction as i
from benchflow.task.config import namespace as n
from benchflow.task.config import task_config as c
from benchflow.task.config.namespace import DocumentRoot
from benchflow.task.config.parsed_record import Record
from benchflow.task.document import environment_manifest as m
from benchflow.task.verifier import declared_strategies as s
from benchflow.task.verifier import verifier_document as v


@dataclass(frozen=True, slots=True)
class Refused:
    """A value that nothing can honour, and why."""

    reason: str


Demand = str | Refused
"""A capability that is needed, or a refusal."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a field asks of the runtime; `judge` gets its value."""

    meaning: str
    demands: tuple[str, ...] = ()
    judge: Callable[[Any], Iterable[Demand]] | None = None


NOTE: Final = Rule("information; no run depends on it")
ENGINE: Final = Rule("honoured by rollout and verifier on every sandbox")


def needs(*capabilities: str) -> Rule:
    """A field that needs capabilities whatever its value is."""
    return Rule(f"needs {', '.join(capabilities)}", capabilities)


def judged(meaning: str, judge: Callable[[Any], Iterable[Demand]]) -> Rule:
    """A field whose value decides."""
    return Rule(meaning, (), judge)


def refused(reason: str) -> Rule:
    """A field that nothing honours once it says something."""
    return judged(f"refused: {reason}", lambda value: [Refused(reason)] if value else [])


def only(allowed: tuple[Any, ...], reason: str) -> Rule:
    """A field of which some values are honoured by the engine."""
    return judged(f"only {', '.join(map(str, allowed))}", lambda value: [] if value in allowed else [Refused(reason)])


_NETWORK: Final = {"no-network": "network.none", "public": "network.public", "allowlist": "network.allowlist"}
_EGRESS: Final = {
    "none": "network.none",
    "model-only": "network.allowlist",
    "model-and-dependencies": "network.allowlist",
    "allowlist": "network.allowlist",
    "public": "network.public",
}
_IMPLEMENTATIONS: Final = frozenset({*s.STRATEGIES, "test-script", "deterministic"})


def _workdir(value: str) -> list[Demand]:
    safe = value.startswith("/") and value.rstrip("/") and ".." not in value.split("/")
    return [] if safe else [Refused("the working folder must be an absolute path other than /")]


def _state(value: n.PersistentState) -> list[Demand]:
    return [Refused("no sandbox keeps state beyond a run")] if value.required else []


def _implementation(value: str) -> list[Demand]:
    known = value.replace("_", "-").replace("rewardkit", "reward-kit") in _IMPLEMENTATIONS
    return [] if known else [Refused(f"no verifier strategy is called '{value[:60]}'")]


NETWORK: Final = judged("needs the network mode it names", lambda value: [_NETWORK[value]])
SERVICE: Final = judged("needs compose unless it is main", lambda value: [] if value == c.MAIN_SERVICE else ["compose"])
TIME: Final = needs("limits.time")
USER: Final = needs("users")


def rules(model: type[Record], default: Rule, **special: Rule) -> dict[str, Rule]:
    """The rules of a record's own fields: a default for all that are named nowhere else."""
    return {name: special.get(name, default) for name in model.FIELDS}


TABLE: Final[Mapping[type[Record], Mapping[str, Rule]]] = {
    DocumentRoot: rules(
        DocumentRoot,
        ENGINE,
        schema_version=NOTE,
        task=NOTE,
        metadata=NOTE,
        source=NOTE,
        reward=refused("the root key reward has no effect; declare scoring in verifier/verifier.md"),
    ),
    c.PackageInfo: rules(c.PackageInfo, NOTE),
    c.Author: rules(c.Author, NOTE),
    c.AgentConfig: rules(c.AgentConfig, ENGINE, timeout_sec=TIME, user=USER, network_mode=NETWORK),
    c.MCPServer: rules(c.MCPServer, ENGINE),
    c.HealthcheckConfig: rules(c.HealthcheckConfig, needs("healthcheck")),
    c.TPUConfig: rules(c.TPUConfig, needs("tpu")),
    c.EnvironmentConfig: rules(
        c.EnvironmentConfig,
        ENGINE,
        network_mode=NETWORK,
        docker_image=needs("image"),
        os=judged("windows needs windows", lambda value: ["windows"] if value == "windows" else []),
        cpus=needs("limits.cpu"),
        memory_mb=needs("limits.memory"),
        storage_mb=needs("limits.disk"),
        gpus=judged("needs gpu above 0", lambda value: ["gpu"] if value else []),
        gpu_types=judged("needs gpu when it names any", lambda value: ["gpu"] if value else []),
        tpu=needs("tpu"),
        healthcheck=needs("healthcheck"),
        workdir=judged("an absolute path other than /", _workdir),
        bugswarm_image_tag=refused("no sandbox reads it; name the image in docker_image"),
    ),
    c.JudgeConfig: rules(c.JudgeConfig, ENGINE),
    c.MemoryConfig: rules(c.MemoryConfig, refused("no verifier measures expected skills")),
    c.HardeningConfig: rules(c.HardeningConfig, ENGINE),
    c.CollectHook: rules(c.CollectHook, ENGINE, service=SERVICE, timeout_sec=TIME),
    c.VerifierConfig: rules(
        c.VerifierConfig, ENGINE, timeout_sec=TIME, user=USER, network_mode=NETWORK, service=SERVICE
    ),
    c.OracleConfig: rules(c.OracleConfig, ENGINE, timeout_sec=TIME),
    c.ArtifactConfig: rules(c.ArtifactConfig, ENGINE, service=SERVICE),
    c.StepConfig: rules(c.StepConfig, ENGINE, healthcheck=needs("healthcheck")),
    i.Agents: rules(i.Agents, ENGINE),
    i.Role: rules(i.Role, ENGINE, timeout_sec=TIME, capabilities=NOTE),
    i.Scene: rules(i.Scene, ENGINE),
    i.Turn: rules(i.Turn, ENGINE),
    i.User: rules(i.User, ENGINE, tools=refused("a user's own tools are not run")),
    i.PromptPolicy: rules(i.PromptPolicy, ENGINE),
    i.Handoff: rules(i.Handoff, ENGINE),
    i.Team: rules(i.Team, ENGINE),
    i.Nudges: rules(
        i.Nudges,
        ENGINE,
        branch_execution=judged(
            "forked-snapshot needs fork", lambda value: ["fork"] if value == "forked-snapshot" else []
        ),
    ),
    i.Interaction: rules(
        i.Interaction,
        ENGINE,
        mode=only(i.INTERACTION_MODES[:4], "no runtime runs live peers; arena-concurrent only parses"),
    ),
    n.Namespace: rules(
        n.Namespace,
        NOTE,
        **dict.fromkeys(
            (
                "prompt",
                "interaction",
                "teams",
                "nudges",
                "agent_policy",
                "verifier",
                "oracle",
                "assets",
                "secrets",
            ),
            ENGINE,
        ),
        runtime_policy=ENGINE,
        environment=needs("services"),
    ),
    n.TrajectoryAudit: rules(n.TrajectoryAudit, ENGINE),
    n.AgentPolicy: rules(n.AgentPolicy, ENGINE),
    n.NetworkRules: rules(
        n.NetworkRules,
        ENGINE,
        task_default=NETWORK,
        agent_egress=judged("needs the network it names", lambda value: [_EGRESS[value]]),
        phase_overrides=judged(
            "needs the network modes it names",
            lambda value: sorted({_NETWORK[mode] for mode in value.values()}),
        ),
    ),
    n.PrivateMount: rules(n.PrivateMount, refused("private volumes are not mounted by any sandbox")),
    n.PersistentState: rules(n.PersistentState, NOTE),
    n.RuntimePolicy: rules(
        n.RuntimePolicy,
        ENGINE,
        private_mounts=refused("private volumes are not mounted by any sandbox"),
        persistent_state=judged("refused when required", _state),
    ),
    n.StrategyWeight: rules(n.StrategyWeight, NOTE),
    n.Implementation: rules(
        n.Implementation,
        ENGINE,
        type=judged("a known strategy", _implementation),
        strategies=judged("known strategies", lambda value: [d for name in value for d in _implementation(name)]),
    ),
    n.Transfer: rules(n.Transfer, ENGINE),
    n.VerifierWiring: rules(n.VerifierWiring, ENGINE),
    n.OracleWiring: rules(n.OracleWiring, ENGINE),
    n.EnvironmentWiring: rules(n.EnvironmentWiring, needs("services")),
    n.AssetSource: rules(n.AssetSource, NOTE),
    n.Asset: rules(n.Asset, NOTE, target=needs("mounts"), mount_phase=ENGINE, visibility=ENGINE),
    n.SecretDeclaration: rules(
        n.SecretDeclaration,
        ENGINE,
        scope=judged(
            "image-pull is refused",
            lambda value: [Refused("images are not pulled with credentials")] if value == "image-pull" else [],
        ),
        never_persist=only((True,), "secrets are never written down"),
    ),
    n.BuildSource: rules(n.BuildSource, NOTE),
    n.ImageProvenance: rules(
        n.ImageProvenance,
        NOTE,
        credential_secret_ref=refused("images are not pulled with credentials"),
        never_persist_credentials=only((True,), "credentials are never written down"),
    ),
    n.SourceProvenance: rules(n.SourceProvenance, NOTE),
    n.Provenance: rules(n.Provenance, NOTE),
    n.TargetCompatibility: rules(n.TargetCompatibility, NOTE),
    n.Compat: rules(n.Compat, NOTE),
    n.Authoring: rules(n.Authoring, NOTE),
    **{
        model: rules(model, NOTE)
        for model in (
            e.OracleRuns,
            e.VerifierStability,
            e.Review,
            e.Example,
            e.Calibration,
            e.Pin,
            e.Expectation,
            e.LiveCase,
            e.Workspace,
            e.LiveCalibration,
            e.LiveLeaderboard,
            e.AcceptanceLive,
            e.Evidence,
        )
    },
    **{
        model: rules(model, needs("services"))
        for model in (m.ManifestRoot, m.Service, m.TaskSelection, m.Readiness, m.ForwardEnv, m.State)
    },
    m.EnvironmentManifest: rules(
        m.EnvironmentManifest,
        needs("services"),
        keep_alive=only((True,), "services run until verification is over"),
        isolation=only(("per_task",), "no sandbox is shared between tasks"),
        state=refused("no sandbox saves or restores the state of services"),
    ),
    v.VerifierRoot: rules(v.VerifierRoot, ENGINE, document_version=NOTE),
    v.VerifierSpec: rules(v.VerifierSpec, ENGINE, name=NOTE, description=NOTE),
    v.Rubric: rules(v.Rubric, ENGINE),
    v.RubricFiles: rules(v.RubricFiles, ENGINE),
    v.Dimension: rules(v.Dimension, ENGINE, description=NOTE),
    v.AggregatePolicy: rules(v.AggregatePolicy, ENGINE),
    v.Outputs: rules(
        v.Outputs,
        ENGINE,
        reward_text=only((v.Outputs.reward_text,), "rewards are read from the standard paths only"),
        reward_json=only((v.Outputs.reward_json,), "rewards are read from the standard paths only"),
        details_json=only(("/logs/verifier/reward-details.json",), "details are read from the standard path only"),
    ),
    s.Factor: rules(s.Factor, ENGINE),
    **{model: rules(model, ENGINE, description=NOTE) for model in s.STRATEGIES.values()},
    s.PluginStrategy: rules(s.PluginStrategy, ENGINE, description=NOTE),
    s.AssessorStrategy: rules(
        s.AssessorStrategy,
        ENGINE,
        type=refused("no runtime runs an assessor as a live peer"),
        description=NOTE,
    ),
}
"""Record type to field to rule."""
