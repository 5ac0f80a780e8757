"""The gate: every field is in the table, and what a sandbox cannot honour is refused by path and reason."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from benchflow.plugins import SANDBOXES
from benchflow.sandbox.protocol import CAPABILITIES, SandboxBackend
from benchflow.task import (
    TaskConfig,
    TaskDocument,
    UnsupportedTaskFeatureError,
    load_package,
    validate_task_runtime_support,
)
from benchflow.task.capability_table import NOTE, TABLE, Rule, rows
from benchflow.task.checks import check_folder
from benchflow.task.config.kinds import some_text
from benchflow.task.config.namespace import DocumentRoot
from benchflow.task.config.parsed_record import Record, field, walk_models
from benchflow.task.config.task_config import AgentConfig
from benchflow.task.document.environment_manifest import ManifestRoot
from benchflow.task.verifier.declared_strategies import STRATEGIES, PluginStrategy, Strategy
from benchflow.task.verifier.verifier_document import VerifierRoot
from benchflow.testing import InMemoryBackend


def all_models() -> Iterator[type[Record]]:
    for root in (DocumentRoot, VerifierRoot, ManifestRoot, *STRATEGIES.values(), PluginStrategy):
        yield from walk_models(root)


def unequal(models: Iterable[type[Record]], table: Mapping[type[Record], Mapping[str, Rule]]) -> dict[str, set[str]]:
    """The fields of each model that have no row, and the rows that have no field."""
    differing = {model.__name__: set(model.FIELDS) ^ set(table.get(model, {})) for model in models}
    return {name: fields for name, fields in differing.items() if fields}


def test_every_field_of_every_model_has_its_own_row_and_no_row_is_left_over() -> None:
    models = [model for model in all_models() if model is not Strategy]
    assert unequal(models, TABLE) == {}
    assert set(TABLE) == set(models)


def test_a_field_that_nobody_put_into_the_table_is_noticed() -> None:
    class WithMore(AgentConfig):
        mood: str | None = field(some_text, default=None)

    assert unequal([WithMore], {WithMore: TABLE[AgentConfig]}) == {"WithMore": {"mood"}}
    assert unequal([AgentConfig], {AgentConfig: rows(NOTE, "allowed_hosts")}) == {
        "AgentConfig": {"timeout_sec", "user", "network_mode"}
    }
    assert unequal([WithMore], TABLE) == {"WithMore": set(WithMore.FIELDS)}


def test_capabilities_are_those_of_the_sandbox_protocol() -> None:
    named = {name for row in TABLE.values() for rule in row.values() for name in rule.demands}
    assert named <= CAPABILITIES.keys()


def refused(backend: str = "local", /, **frontmatter: Any) -> dict[str, str]:
    document = TaskDocument.from_text(f"---\n{yaml.safe_dump(frontmatter)}---\nDo it.\n")
    return {feature.path: feature.reason for feature in validate_task_runtime_support(document, sandbox=backend)}


HONOURED: dict[str, Any] = {
    "task": {"name": "a/b", "authors": [{"name": "A"}]},
    "metadata": {"x": 1},
    "source": "s",
    "agent": {"timeout_sec": 5, "user": "root", "network_mode": "allowlist", "allowed_hosts": ["a.b"]},
    "environment": {
        "cpus": 1,
        "memory_mb": 64,
        "storage_mb": 64,
        "workdir": "/app",
        "docker_image": "x",
        "healthcheck": {"command": "true"},
        "env": {"A": "b"},
        "mcp_servers": [{"name": "m", "url": "http://localhost"}],
        "gpus": 0,
        "os": "linux",
    },
    "verifier": {
        "environment_mode": "separate",
        "environment": {"cpus": 1},
        "user": 0,
        "network_mode": "no-network",
    },
    "oracle": {"env": {"A": "b"}, "timeout_sec": 3},
    "artifacts": ["/app/x"],
    "steps": [{"name": "one", "artifacts": ["/x"], "min_reward": 0.5, "healthcheck": {"command": "true"}}],
    "multi_step_reward_strategy": "mean",
    "benchflow": {
        "agent_policy": {"search": "disabled", "forbidden_tools": ["web"]},
        "runtime_policy": {"required_capabilities": ["fork"], "network": {"task_default": "no-network"}},
        "secrets": [{"name": "KEY", "scope": "judge"}],
        "assets": [{"path": "data", "visibility": "agent", "target": "/data"}],
    },
}


@pytest.mark.parametrize("sandbox", ["local", "docker", "podman"])
def test_what_the_backends_honour_passes(sandbox: str) -> None:
    assert refused(sandbox, **HONOURED) == {}


@pytest.mark.parametrize(
    ("frontmatter", "path"),
    [
        ({"environment": {"os": "windows"}}, "environment.os"),
        ({"environment": {"gpus": 1}}, "environment.gpus"),
        ({"environment": {"gpu_types": ["H100"]}}, "environment.gpu_types"),
        ({"environment": {"tpu": {"type": "v5", "topology": "2x2"}}}, "environment.tpu"),
        ({"environment": {"workdir": "/"}}, "environment.workdir"),
        ({"environment": {"workdir": "app"}}, "environment.workdir"),
        ({"environment": {"workdir": "/a/../b"}}, "environment.workdir"),
        ({"environment": {"bugswarm_image_tag": "x"}}, "environment.bugswarm_image_tag"),
        ({"sandbox": {"gpus": 2}}, "sandbox.gpus"),
        ({"verifier": {"environment": {"gpus": 2}}}, "verifier.environment.gpus"),
        ({"verifier": {"memory": {"expected_skills": ["x"]}}}, "verifier.memory.expected_skills"),
        ({"reward": {"x": 1}}, "reward"),
        (
            {"user": {"model": "scripted", "private_facts": {"a": "b"}, "account": "root", "tools": ["bash"]}},
            "user.tools",
        ),
        ({"benchflow": {"interaction": {"mode": "arena-concurrent"}}}, "benchflow.interaction.participants"),
        ({"benchflow": {"runtime_policy": {"backend": "modal"}}}, "benchflow.runtime_policy.backend"),
        (
            {"benchflow": {"runtime_policy": {"required_capabilities": ["fork", "teleport"]}}},
            "benchflow.runtime_policy.required_capabilities[1]",
        ),
        (
            {"benchflow": {"runtime_policy": {"private_mounts": [{"source": "vol://m", "target": "/m"}]}}},
            "benchflow.runtime_policy.private_mounts",
        ),
        (
            {"benchflow": {"runtime_policy": {"persistent_state": {"required": True}}}},
            "benchflow.runtime_policy.persistent_state",
        ),
        (
            {"benchflow": {"secrets": [{"name": "x", "scope": "agent", "never_persist": False}]}},
            "benchflow.secrets[0].never_persist",
        ),
        (
            {"benchflow": {"verifier": {"implementation": {"type": "oracle-of-delphi"}}}},
            "benchflow.verifier.implementation.type",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_path(frontmatter: dict[str, Any], path: str) -> None:
    assert path in refused(**frontmatter)


def test_services_beside_main_need_compose() -> None:
    declared = [
        ({"verifier": {"service": "db"}}, "verifier.service"),
        ({"artifacts": [{"source": "/x", "service": "db"}]}, "artifacts[0].service"),
        ({"steps": [{"name": "a", "verifier": {"service": "db"}}]}, "steps[0].verifier.service"),
    ]
    for frontmatter, path in declared:
        assert refused("docker", **frontmatter) == refused("local", **frontmatter) == {}
        assert "compose" in refused("folder", **frontmatter)[path]


def test_an_unknown_sandbox_fails(make_package) -> None:
    (feature,) = validate_task_runtime_support(load_package(make_package()), sandbox="moon")
    assert (feature.path, feature.sandbox) == ("sandbox", "moon")
    assert feature.to_dict().keys() == {"path", "reason", "sandbox"}


def test_a_configuration_alone_can_be_judged() -> None:
    config = TaskConfig.model_validate({"environment": {"os": "windows"}})
    assert [feature.path for feature in validate_task_runtime_support(config, sandbox="docker")] == ["environment.os"]


def test_the_layout_of_a_package_is_judged(make_package) -> None:
    folder = make_package({"environment/docker-compose.yaml": "services: {}\n"})
    package = load_package(folder)
    refusing = [feature.path for feature in validate_task_runtime_support(package, sandbox="folder")]
    assert "environment/docker-compose.yaml" in refusing
    assert validate_task_runtime_support(package, sandbox="local") == []
    assert validate_task_runtime_support(package, sandbox="docker") == []
    config = package.config
    assert config is not None
    judged = validate_task_runtime_support(config, sandbox="folder", task_dir=folder)
    assert [feature.path for feature in judged] == refusing


def test_only_the_selected_strategy_and_its_parts_count(make_package) -> None:
    body = (
        "---\nverifier:\n  default_strategy: {}\n  strategies:\n    s: {{type: script, command: ./test.sh}}\n"
        "    arena: {{type: assessor, role: r}}\n    mix: {{type: hybrid, factors: {{a: s, b: arena}}}}\n"
        "---\n## role:r\nx\n"
    )
    assert not load_package(
        make_package({"verifier/verifier.md": body.format("s")}, name="s"), sandbox="local"
    ).runtime_issues
    for chosen in ("arena", "mix"):
        package = load_package(
            make_package({"verifier/verifier.md": body.format(chosen)}, name=chosen), sandbox="local"
        )
        assert [feature.path for feature in package.runtime_issues] == ["verifier.strategies.arena.type"]


ARENA = (
    "---\nagents: {{roles: {{a: {{agent: nop}}, b: {{agent: nop}}}}}}\nbenchflow:\n"
    "  interaction: {{mode: arena-concurrent, participants: [a, b]{}}}\n{}---\nx\n"
)
PEER = (
    "---\nverifier:\n  strategies:\n    peer: {{type: assessor, role: judge, agent: 'a2a:x'{}}}\n"
    "---\n## role:judge\nJ.\n"
)


@pytest.mark.parametrize(
    ("interaction", "more", "strategy", "refusing"),
    [
        ("", "", "", []),
        (", assessor: judge", "", "", []),
        (", assessor: other", "", "", ["verifier.strategies.peer.role"]),
        (", assessor: b", "", "", ["benchflow.interaction.assessor", "verifier.strategies.peer.role"]),
        ("", "scenes: [{name: s, turns: [{role: a}]}]\n", "", ["scenes"]),
        ("", "user: {model: scripted, private_facts: {k: v}}\n", "", ["user"]),
        ("", "", ", protocol: acp", ["verifier.strategies.peer.protocol"]),
        ("", "", ", inputs: [answer.txt]", ["verifier.strategies.peer.inputs"]),
    ],
)
def test_an_arena_has_participants_and_an_assessor_that_agents_do_not_see(
    make_package, interaction, more, strategy, refusing
) -> None:
    files = {"task.md": ARENA.format(interaction, more), "verifier/verifier.md": PEER.format(strategy)}
    package = load_package(make_package(files), sandbox="local")
    assert [feature.path for feature in package.runtime_issues] == refusing


def test_an_arena_is_scored_by_an_assessor_only(make_package) -> None:
    script = "---\nverifier:\n  strategies:\n    s: {type: script, command: ./test.sh}\n---\n"
    files = {"task.md": ARENA.format("", ""), "verifier/verifier.md": script}
    package = load_package(make_package(files), sandbox="local")
    assert [feature.path for feature in package.runtime_issues] == ["verifier.default_strategy"]


def test_rewards_are_read_from_the_standard_paths_only(make_package) -> None:
    verifier = (
        "---\nverifier:\n  strategies: {s: {type: script, command: ./test.sh}}\n"
        "  outputs: {reward_json: /logs/verifier/other.json}\n---\n"
    )
    package = load_package(make_package({"verifier/verifier.md": verifier}), sandbox="local")
    assert [feature.path for feature in package.runtime_issues] == ["verifier.outputs.reward_json"]


def test_folders_other_than_the_selected_ones_are_refused(make_package) -> None:
    text = "---\nverifier: grading\noracle: answers\n---\nx\n"
    package = load_package(make_package({"task.md": text}), sandbox="local")
    assert [feature.path for feature in package.runtime_issues] == [
        "benchflow.verifier.path",
        "benchflow.verifier.spec",
        "benchflow.oracle.path",
    ]


def test_a_launch_is_refused_with_every_reason() -> None:
    config = TaskConfig.model_validate({"environment": {"os": "windows", "gpus": 1}})
    refusal = UnsupportedTaskFeatureError(tuple(validate_task_runtime_support(config, sandbox="local")))
    assert {feature.path for feature in refusal.features} == {"environment.os", "environment.gpus"}
    assert refusal.category == "unsupported"
    assert all(path in str(refusal) for path in ("environment.os", "environment.gpus"))
    issue = refusal.features[0].issue(definition="task.md")
    assert (issue.code, issue.severity, issue.file) == ("unsupported-feature", "error", "task.md")


def test_a_refused_section_is_named_once(make_package) -> None:
    text = "---\nenvironment: {tpu: {type: v5, topology: 2x2}}\n---\nx\n"
    package = load_package(make_package({"task.md": text}), sandbox="local")
    assert [feature.path for feature in package.runtime_issues] == ["environment.tpu"]


@pytest.mark.parametrize(("declared", "path"), [
    ("keep_alive = false", "environment.keep_alive"),
    ("[environment.state]\npaths = ['/data']", "environment.state"),
    ("[environment.state]", "environment.state"),
])  # fmt: skip
def test_what_no_sandbox_does_with_services_is_refused(make_package, declared, path) -> None:
    text = "---\nbenchflow: {environment: {manifest: environment.toml}}\n---\nx\n"
    manifest = f'[environment]\nname = "desk"\nimage = "desk"\n{declared}\n'
    issues = check_folder(make_package({"task.md": text, "environment.toml": manifest}), sandbox="local").issues
    found = [(issue.path, issue.file) for issue in issues if issue.code == "unsupported-feature"]
    assert found == [(path, "environment.toml")]


def test_services_that_live_until_the_end_are_what_every_sandbox_has(make_package) -> None:
    text = "---\nbenchflow: {environment: {manifest: environment.toml}}\n---\nx\n"
    manifest = '[environment]\nname = "desk"\nimage = "desk"\nkeep_alive = true\n'
    issues = check_folder(make_package({"task.md": text, "environment.toml": manifest}), sandbox="local").issues
    assert [issue for issue in issues if issue.code == "unsupported-feature"] == []


def test_what_is_refused_is_shown_in_the_file_that_declares_it(make_package) -> None:
    text = "---\nsandbox: {cpus: 1}\nbenchflow: {environment: {manifest: environment.toml}}\n---\nx\n"
    manifest = '[environment]\nname = "desk"\nimage = "desk"\nisolation = "persistent"\n'
    verifier = "---\nverifier:\n  strategies:\n    peer: {type: assessor, role: judge}\n---\n## role:judge\nJudge.\n"
    files = {
        "task.md": text,
        "environment.toml": manifest,
        "environment/compose.yaml": "services: {}\n",
        "verifier/verifier.md": verifier,
    }
    issues = check_folder(make_package(files), sandbox="local").issues
    assert [(issue.path, issue.file, issue.line) for issue in issues if issue.code == "unsupported-feature"] == [
        ("environment.isolation", "environment.toml", None),
        ("verifier.strategies.peer.type", "verifier/verifier.md", 4),
    ]


class Moon(InMemoryBackend):
    name = "moon"
    declared = frozenset({"network.public", "gpu"})


@pytest.fixture
def plugins(monkeypatch) -> None:
    modules = {"moon_plugin": SimpleNamespace(Moon=Moon, Silent=type("Silent", (SandboxBackend,), {}))}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    points = [EntryPoint(name, f"moon_plugin:{name.title()}", SANDBOXES.group) for name in ("moon", "silent", "gone")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == SANDBOXES.group else [])


def test_plugins_are_known_and_honour_what_they_declare(plugins) -> None:
    assert refused("moon", environment={"gpus": 1, "network_mode": "public"}) == {}
    assert refused("moon", environment={"network_mode": "no-network"}).keys() == {"environment.network_mode"}


@pytest.mark.parametrize(
    ("name", "why"), [("silent", "does not define create, declared, status"), ("gone", "cannot be loaded")]
)
def test_a_plugin_that_cannot_be_used_is_refused_as_a_whole(plugins, name, why) -> None:
    found = refused(name)
    assert found.keys() == {"sandbox"}
    assert why in found["sandbox"]


def test_what_the_caller_knows_of_a_sandbox_wins_over_its_name() -> None:
    config = TaskConfig.model_validate({"environment": {"gpus": 1, "network_mode": "public"}})
    known = frozenset({"gpu", "network.public"})
    assert validate_task_runtime_support(config, sandbox="nameless", capabilities=known) == []


def test_a_verifier_needs_a_copy_of_the_sandbox(make_package) -> None:
    package = load_package(make_package())
    everything = frozenset(CAPABILITIES)
    assert validate_task_runtime_support(package, sandbox="x", capabilities=everything) == []
    (feature,) = validate_task_runtime_support(package, sandbox="x", capabilities=everything - {"fork"})
    assert (feature.path, feature.reason) == ("verifier", "needs fork, which x does not have")


@pytest.mark.parametrize(
    ("evidence", "path"),
    [
        ({"artifacts": [{"path": "evidence/a.json", "visibility": "agent"}]}, "artifacts[0].visibility"),
        (
            {"acceptance_live": {"cases": [{"name": "half", "type": "partial", "expect": {"reward_min": 0.1}}]}},
            "acceptance_live",
        ),
    ],
)
def test_evidence_that_nothing_would_run_is_refused(evidence, path):
    text = yaml.safe_dump({"task": {"name": "acme/a"}, "benchflow": {"evidence": evidence}})
    document = TaskDocument.from_text(f"---\n{text}---\nDo it.\n")
    found = validate_task_runtime_support(document, sandbox="local")
    assert [feature.path for feature in found] == [f"benchflow.evidence.{path}"]
