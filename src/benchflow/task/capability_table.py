"""One table of every field: what a sandbox must be able to do for it, or why nothing honours it.

`NOTE` is information that no run depends on; `ENGINE` is honoured by rollout and verifier on every sandbox; `PROOF` is
what checks and proofs of a package compare or run; `needs` names capabilities; `judged` decides by the value. A test
proves that every field of every record is here.
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
    """What a field asks of the runtime; `by_value` has a capability for each of its values, `judge` gets its value."""

    meaning: str
    demands: tuple[str, ...] = ()
    judge: Callable[[Any], Iterable[Demand]] | None = None
    by_value: Mapping[str, str] | None = None

    @property
    def asks(self) -> bool:
        """Whether it can ask for anything."""
        return bool(self.demands) or self.judge is not None or self.by_value is not None


NOTE: Final = Rule("information; no run depends on it")
ENGINE: Final = Rule("honoured by rollout and verifier on every sandbox")
PROOF: Final = Rule("compared by the level acceptance, run by the level acceptance-live or by prove")


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


def _live(value: e.AcceptanceLive) -> list[Demand]:
    """Cases that start from nothing: without a command and a workspace there is no work to verify."""
    if "workspace" in value.declared:
        return []
    idle = [case.name for case in value.cases if case.type in ("known-bad", "partial") and case.command is None]
    return [Refused(f"nothing would be run for the case '{name}': it has no command and no workspace") for name in idle]


NETWORK: Final = Rule("needs the network mode it names", by_value=_NETWORK)
SERVICE: Final = judged("needs compose unless it is main", lambda value: [] if value == c.MAIN_SERVICE else ["compose"])
TIME: Final = needs("limits.time")
USER: Final = needs("users")


def rows(shared: Rule, names: str, **own: Rule) -> dict[str, Rule]:
    """The rows of fields that share a rule, and of those that have their own.

    Every field is written out: a field that nobody thought about must be missing here, never honoured by default.
    """
    return {**dict.fromkeys(names.split(), shared), **own}


_REWARD_FILES: Final = {
    "reward_text": only((v.Outputs.reward_text,), "rewards are read from the standard paths only"),
    "reward_json": only((v.Outputs.reward_json,), "rewards are read from the standard paths only"),
    "details_json": only(("/logs/verifier/reward-details.json",), "details are read from the standard path only"),
}
TABLE: Final[Mapping[type[Record], Mapping[str, Rule]]] = {
    DocumentRoot: {
        **rows(
            ENGINE,
            "agent verifier environment oracle artifacts steps multi_step_reward_strategy agents scenes user benchflow"
            " environment_profile agent_profile verifier_profile",
        ),
        **rows(
            NOTE,
            "schema_version task metadata source",
            reward=refused("the root key reward has no effect; declare scoring in verifier/verifier.md"),
        ),
    },
    c.PackageInfo: rows(NOTE, "name version description authors keywords"),
    c.Author: rows(NOTE, "name email"),
    c.AgentConfig: rows(ENGINE, "allowed_hosts", timeout_sec=TIME, user=USER, network_mode=NETWORK),
    c.MCPServer: rows(ENGINE, "name transport url command args env headers"),
    c.HealthcheckConfig: rows(
        needs("healthcheck"), "command interval_sec timeout_sec start_period_sec start_interval_sec retries"
    ),
    c.TPUConfig: rows(needs("tpu"), "type topology"),
    c.EnvironmentConfig: rows(
        ENGINE,
        "allowed_hosts build_timeout_sec mcp_servers env skills_dir allow_internet memory storage",
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
    c.JudgeConfig: rows(ENGINE, "model rubric_path input_dir input_type context"),
    c.MemoryConfig: rows(refused("no verifier measures expected skills"), "expected_skills"),
    c.HardeningConfig: rows(
        ENGINE,
        "cleanup_conftests keep_system_changes",
        keep_processes=judged("needs forward if true", lambda value: ["forward"] if value else []),
    ),
    c.CollectHook: rows(ENGINE, "command", service=SERVICE, timeout_sec=TIME),
    c.VerifierConfig: rows(
        ENGINE,
        "type env reward_range allowed_hosts environment_mode environment collect judge memory hardening"
        " pytest_plugins",
        isolation=judged("services needs forward", lambda value: ["forward"] if value == "services" else []),
        timeout_sec=TIME,
        user=USER,
        network_mode=NETWORK,
        service=SERVICE,
    ),
    c.OracleConfig: rows(ENGINE, "env", timeout_sec=TIME),
    c.ArtifactConfig: rows(ENGINE, "source destination exclude", service=SERVICE),
    c.StepConfig: rows(ENGINE, "name agent verifier min_reward artifacts", healthcheck=needs("healthcheck")),
    i.Agents: rows(ENGINE, "roles"),
    i.Role: rows(
        ENGINE, "agent model reasoning_effort env idle_timeout_sec skills_dir", timeout_sec=TIME, capabilities=NOTE
    ),
    i.Scene: rows(ENGINE, "name roles turns skills_dir"),
    i.Turn: rows(ENGINE, "role prompt"),
    i.User: rows(ENGINE, "model stop_rule private_facts persona tools", account=USER),
    i.UserTool: rows(ENGINE, "name description command arguments", timeout_sec=TIME),
    i.PromptPolicy: rows(ENGINE, "composition order"),
    i.Handoff: rows(
        ENGINE,
        "mode trajectory_visibility artifacts",
        workspace_visibility=judged("isolated needs fork", lambda value: ["fork"] if value == "isolated" else []),
    ),
    i.Team: rows(ENGINE, "handoff roles"),
    i.Nudges: rows(
        ENGINE,
        "mode nudge_budget branchable confirmation_policy",
        branch_execution=judged(
            "forked-snapshot needs fork", lambda value: ["fork"] if value == "forked-snapshot" else []
        ),
    ),
    i.Interaction: rows(ENGINE, "mode assessor participants"),
    n.Namespace: {
        **rows(
            ENGINE, "prompt interaction teams nudges agent_policy runtime_policy verifier oracle assets secrets ors"
        ),
        **rows(
            NOTE, "document_version provenance evidence compatibility compat authoring", environment=needs("services")
        ),
    },
    n.OrsEnvironment: rows(ENGINE, "url environment split index spec_digest token_env"),
    n.TrajectoryAudit: rows(ENGINE, "require_no_forbidden_tool_calls"),
    n.AgentPolicy: rows(ENGINE, "skill_access allowed_skill_roots search forbidden_tools trajectory_audit"),
    n.NetworkRules: rows(
        ENGINE,
        "allowed_hosts",
        task_default=NETWORK,
        agent_egress=Rule("needs the network it names", by_value=_EGRESS),
        phase_overrides=judged(
            "needs the network modes it names",
            lambda value: sorted({_NETWORK[mode] for mode in value.values()}),
        ),
    ),
    n.PrivateMount: rows(
        refused("private volumes are not mounted by any sandbox"), "source target mode visibility secret_ref"
    ),
    n.PersistentState: rows(NOTE, "required scope cleanup"),
    n.RuntimePolicy: rows(
        ENGINE,
        "backend required_capabilities network",
        private_mounts=refused("private volumes are not mounted by any sandbox"),
        persistent_state=judged("refused when required", _state),
    ),
    n.StrategyWeight: rows(NOTE, "weight required"),
    n.Implementation: {
        "type": judged("a known strategy", _implementation),
        "strategies": judged("known strategies", lambda value: [d for name in value for d in _implementation(name)]),
    },
    n.Transfer: rows(ENGINE, "source exclude max_mb"),
    n.Transfers: rows(ENGINE, "agent_to_verifier verifier_to_result"),
    n.VerifierInput: rows(ENGINE, "path visibility", kind=NOTE),
    n.VerifierOutputs: rows(ENGINE, "artifacts", **_REWARD_FILES),
    n.VerifierWiring: rows(
        ENGINE, "path spec entrypoint rubric visibility inputs outputs transfer implementation downloads"
    ),
    n.OracleWiring: rows(ENGINE, "path"),
    n.EnvironmentWiring: rows(needs("services"), "manifest"),
    n.AssetSource: rows(NOTE, "url revision license"),
    n.Asset: {
        **rows(ENGINE, "visibility mount_phase"),
        **rows(NOTE, "path sha256 generated license kind source", target=needs("mounts")),
    },
    n.SecretDeclaration: rows(
        ENGINE,
        "name visibility env required scope",
        never_persist=only((True,), "secrets are never written down"),
    ),
    n.BuildSource: rows(NOTE, "path sha256"),
    n.ImageProvenance: rows(
        ENGINE,
        "reference digest credential_secret_ref",
        **rows(NOTE, "field_ registry provider build_source"),
        never_persist_credentials=only((True,), "credentials are never written down"),
    ),
    n.SourceProvenance: rows(NOTE, "url revision path license sha256 description"),
    n.Provenance: rows(NOTE, "images sources created_by created_at license"),
    n.TargetCompatibility: rows(NOTE, "export emits losses"),
    n.SourceInstruction: rows(NOTE, "before after breaks"),
    n.Compat: rows(NOTE, "source extra_paths extra spelling instruction"),
    n.Authoring: rows(NOTE, "profiles presets normalized"),
    e.OracleRuns: rows(PROOF, "required_reward artifact", last_job=NOTE),
    e.VerifierStability: rows(PROOF, "reruns flake_rate report depends_on"),
    e.Review: rows(PROOF, "anti_cheat instruction_alignment artifact", reviewer=NOTE),
    e.Example: rows(PROOF, "expected_reward artifact", name=NOTE),
    e.Calibration: rows(
        PROOF,
        "no_op_reward_max known_bad_reward_max partial_solution_range report human_or_reference_examples"
        " judge_agreement",
    ),
    e.JudgeAgreement: rows(PROOF, "required sample_count min_pairwise_agreement"),
    e.Pin: {
        **rows(PROOF, "path sha256", visibility=only(("evidence_only",), "no phase of a run gets evidence files")),
        **rows(NOTE, "kind mime_type produced_by description"),
    },
    e.Expectation: rows(PROOF, "reward_min reward_max reward_range reward_equals flake_rate_max"),
    e.LiveCase: rows(PROOF, "name type command reruns expect"),
    e.Workspace: rows(PROOF, "source target"),
    e.LiveCalibration: rows(PROOF, "from_ reruns flake_rate_max"),
    e.LiveLeaderboard: rows(PROOF, "required max_flake_rate"),
    e.AcceptanceLive: rows(PROOF, "workspace cases calibration leaderboard report"),
    e.Evidence: rows(
        PROOF,
        "oracle_runs verifier review calibration trajectories artifacts pins",
        acceptance_live=judged("run by the level acceptance-live", _live),
    ),
    m.ManifestRoot: rows(needs("services"), "environment"),
    m.Service: rows(needs("services"), "name command port health_path"),
    m.TaskSelection: rows(needs("services"), "mechanism key inject_into"),
    m.Readiness: rows(needs("services"), "http tcp timeout_sec"),
    m.ForwardEnv: rows(needs("services"), "keys"),
    m.State: rows(needs("services"), "kind paths"),
    m.EnvironmentManifest: rows(
        needs("services"),
        "name image base_image ports services owns_lifecycle task_selection readiness forward_env env",
        keep_alive=only((True,), "services run until verification is over"),
        isolation=only(("per_task",), "no sandbox is shared between tasks"),
        state=refused("no sandbox saves or restores the state of services"),
    ),
    v.VerifierRoot: rows(ENGINE, "verifier", document_version=NOTE),
    v.VerifierSpec: {**rows(ENGINE, "default_strategy strategies rubric outputs"), **rows(NOTE, "name description")},
    v.Rubric: rows(ENGINE, "combine dimensions files"),
    v.RubricFiles: rows(NOTE, "human structured"),
    v.Dimension: rows(ENGINE, "weight source", description=NOTE),
    v.AggregatePolicy: rows(ENGINE, "method fallback field_ weights threshold criteria"),
    v.Outputs: rows(ENGINE, "artifacts aggregate_policy", **_REWARD_FILES),
    s.Factor: rows(ENGINE, "strategy weight"),
    s.ScriptStrategy: rows(ENGINE, "type config command", description=NOTE),
    s.RewardKitStrategy: rows(ENGINE, "type config root entrypoint criteria", description=NOTE),
    s.LLMJudgeStrategy: rows(ENGINE, "type config rubric model input_dir context context_file", description=NOTE),
    s.AgentJudgeStrategy: rows(ENGINE, "type config role isolation inputs model agent verdict_file", description=NOTE),
    s.ORSEpisodeStrategy: rows(
        ENGINE, "type config inputs format reward_aggregation terminal_policy", description=NOTE
    ),
    s.HybridStrategy: rows(ENGINE, "type config combine factors", description=NOTE),
    s.GainStrategy: rows(ENGINE, "type config strategy baseline ceiling", description=NOTE),
    s.LeaderboardStrategy: rows(ENGINE, "type config inputs command url secret timeout_sec", description=NOTE),
    s.AssessorStrategy: rows(
        ENGINE,
        "type config role agent model",
        protocol=only(("a2a",), "assessors speak A2A"),
        inputs=refused("an assessor sees the exchange itself, and reads no files of it"),
        description=NOTE,
    ),
    s.PluginStrategy: rows(ENGINE, "type config", description=NOTE),
}
"""Record type to field to rule."""
