"""The configuration: every section, strict natively, lenient on import, aliases, rules across keys."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from benchflow.task.config.parsed_record import FrozenMap, IssueLog, Record, split_unknown, walk_models
from benchflow.task.config.task_config import TaskConfig, TaskConfigError


def problems(data: Any, *, foreign: bool = False) -> list[tuple[str, str]]:
    log = IssueLog(foreign=foreign)
    TaskConfig.parse(data, "", log)
    return [(issue.code, issue.path) for issue in log.issues if issue.severity == "error"]


FULL: dict[str, Any] = {
    "schema_version": "1.4",
    "task": {
        "name": "acme/all-keys",
        "version": "1.0.0",
        "description": "d",
        "authors": [{"name": "A", "email": "a@example.org"}],
        "keywords": ["k"],
    },
    "metadata": {"anything": [1, {"x": None}]},
    "agent": {
        "timeout_sec": 60,
        "user": "agent",
        "network_mode": "allowlist",
        "allowed_hosts": ["*.Example.org."],
    },
    "verifier": {
        "type": "llm-judge",
        "timeout_sec": 30.5,
        "env": {"KEY": "${KEY:-x}"},
        "reward_range": [-1, 2],
        "user": 0,
        "network_mode": "no-network",
        "isolation": "separate",
        "environment_mode": "separate",
        "environment": {"docker_image": "debian:12", "cpus": 2},
        "service": "main",
        "collect": [{"command": "true", "service": "db"}],
        "judge": {"model": "m", "rubric_path": "verifier/rubric.toml", "input_dir": "/out", "context": "c"},
        "memory": {"expected_skills": ["hidden"]},
        "hardening": {"cleanup_conftests": False, "keep_system_changes": False, "keep_processes": False},
        "pytest_plugins": ["ctrf"],
    },
    "environment": {
        "network_mode": "public",
        "build_timeout_sec": 100,
        "docker_image": "debian:12",
        "os": "Linux",
        "cpus": "2",
        "memory_mb": 4096,
        "storage_mb": 1024.0,
        "gpus": 1,
        "gpu_types": ["H100"],
        "tpu": {"type": "v5", "topology": "2x4"},
        "mcp_servers": [
            {"name": "a", "transport": "stdio", "command": "python", "args": ["x"]},
            {
                "name": "b",
                "transport": "http",
                "url": "http://localhost",
                "headers": {"Authorization": "${T}"},
            },
        ],
        "env": {"A": "1"},
        "skills_dir": "/skills",
        "healthcheck": {"command": "true", "retries": 5},
        "workdir": "/app",
        "bugswarm_image_tag": "t",
    },
    "oracle": {"env": {"A": "b"}, "timeout_sec": 9},
    "source": "somewhere",
    "artifacts": [
        "/app/out",
        {"source": "/var/log/x", "destination": "x", "exclude": ["*.tmp"], "service": "db"},
    ],
    "steps": [
        {
            "name": "one",
            "agent": {"timeout_sec": 1},
            "verifier": {"timeout_sec": 1},
            "min_reward": {"reward": 0.5},
            "healthcheck": {"command": "true"},
            "artifacts": ["/x"],
        },
        {"name": "two", "min_reward": 1},
    ],
    "multi_step_reward_strategy": "final",
    "reward": {"free": 1},
}


def test_every_key_is_accepted_and_kept() -> None:
    config = TaskConfig.model_validate(FULL)
    assert config.task is not None
    assert f"{config.task.org}/{config.task.short_name}" == config.task.name
    assert config.environment.cpus == 2.0
    assert config.environment.os == "linux"
    assert config.environment.storage_mb == 1024
    assert config.environment.mcp_servers[1].transport == "streamable-http"
    assert config.agent.allowed_hosts == ("*.example.org",)
    assert config.artifacts[0].source == "/app/out"
    assert config.steps is not None
    assert config.steps[0].min_reward == {"reward": 0.5}
    assert config.verifier.isolation == "separate"
    assert config.sandbox is config.environment
    assert config.solution is config.oracle
    assert config.expected_skills == ("hidden",)


def test_reading_what_was_declared_gives_the_same() -> None:
    config = TaskConfig.model_validate(FULL)
    assert TaskConfig.model_validate(config.to_declared_dict()) == config


def test_hidden_expectations_are_in_no_dump() -> None:
    config = TaskConfig.model_validate(FULL)
    assert "hidden" not in str(config.to_dict())
    assert "hidden" not in repr(config)


def test_defaults_are_read_but_not_declared() -> None:
    config = TaskConfig.model_validate({})
    assert (config.environment.cpus, config.environment.memory_mb, config.verifier.timeout_sec) == (
        1,
        2048,
        600,
    )
    assert config.declared == frozenset()
    assert config.to_declared_dict() == {}
    assert config == TaskConfig.model_validate({"environment": {"cpus": 1}, "schema_version": "1.3"})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"nonsense": 1}, [("unknown-key", "nonsense")]),
        ({"environment": {"cpuz": 1}}, [("unknown-key", "environment.cpuz")]),
        ({"sandbox": {"cpuz": 1}}, [("unknown-key", "sandbox.cpuz")]),
        ({"steps": [{"name": "a", "verifier": {"envs": {}}}]}, [("unknown-key", "steps[0].verifier.envs")]),
        ({"oracle": {}, "solution": {}}, [("conflicting-keys", "solution")]),
        ({"environment": {}, "sandbox": {}}, [("conflicting-keys", "sandbox")]),
        (
            {"environment": {"image": "a", "docker_image": "b"}},
            [("conflicting-keys", "environment.docker_image")],
        ),
        ({"schema_version": 1.3}, [("invalid-type", "schema_version")]),
        ({"version": 1.3}, [("invalid-type", "version")]),
        ({"schema_version": "2.0"}, [("invalid-value", "schema_version")]),
        ({"schema_version": "one"}, [("invalid-value", "schema_version")]),
        ({"task": {}}, [("missing-key", "task.name")]),
        ({"task": {"name": "no-slash"}}, [("invalid-value", "task.name")]),
        ({"task": {"name": "a/b..c"}}, [("invalid-value", "task.name")]),
        ({"task": {"name": "a/b", "authors": ["A"]}}, [("invalid-type", "task.authors[0]")]),
        ({"agent": None}, [("invalid-type", "agent")]),
        ({"agent": {"timeout_sec": 0}}, [("invalid-value", "agent.timeout_sec")]),
        ({"agent": {"timeout_sec": float("inf")}}, [("invalid-value", "agent.timeout_sec")]),
        ({"agent": {"timeout_sec": 10**400}}, [("invalid-value", "agent.timeout_sec")]),
        ({"agent": {"timeout_sec": True}}, [("invalid-type", "agent.timeout_sec")]),
        ({"agent": {"user": True}}, [("invalid-type", "agent.user")]),
        ({"environment": {"env": {"A": 1}}}, [("invalid-type", "environment.env.A")]),
        ({"environment": {"env": {"A=": "x"}}}, [("invalid-value", "environment.env.A=")]),
        ({"environment": {"memory_mb": 1.5}}, [("invalid-type", "environment.memory_mb")]),
        ({"environment": {"memory": "4GB"}}, [("invalid-value", "environment.memory")]),
        ({"environment": {"memory": "1G", "memory_mb": 2}}, [("conflicting-keys", "environment.memory")]),
        (
            {"environment": {"tpu": {"type": "a", "topology": "2"}}},
            [("invalid-value", "environment.tpu.topology")],
        ),
        (
            {"environment": {"mcp_servers": [{"name": "a"}]}},
            [("missing-key", "environment.mcp_servers[0].url")],
        ),
        ({"environment": {"skills_dir": "rel"}}, [("unsafe-path", "environment.skills_dir")]),
        (
            {"environment": {"allow_internet": False, "network_mode": "public"}},
            [("conflicting-keys", "environment.allow_internet")],
        ),
        ({"environment": {"network_mode": "allowlist"}}, [("invalid-value", "environment.allowed_hosts")]),
        ({"environment": {"allowed_hosts": ["a.b"]}}, [("conflicting-keys", "environment.allowed_hosts")]),
        ({"verifier": {"reward_range": [0, 0.5]}}, [("invalid-value", "verifier.reward_range")]),
        ({"verifier": {"reward_range": [0]}}, [("invalid-value", "verifier.reward_range")]),
        (
            {"verifier": {"environment_mode": "shared", "environment": {}}},
            [("conflicting-keys", "verifier.environment")],
        ),
        ({"verifier": {"judge": {"rubric_path": "../x"}}}, [("unsafe-path", "verifier.judge.rubric_path")]),
        ({"oracle": {"A": "1", "env": {"A": "2"}}}, [("conflicting-keys", "oracle.A")]),
        ({"oracle": {"lower": "1"}}, [("unknown-key", "oracle.lower")]),
        ({"artifacts": [{"source": "../x"}]}, [("unsafe-path", "artifacts[0].source")]),
        (
            {"artifacts": [{"source": "x", "destination": "/abs"}]},
            [("unsafe-path", "artifacts[0].destination")],
        ),
        ({"artifacts": "x"}, [("invalid-type", "artifacts")]),
        ({"steps": [{"name": "a"}, {"name": "A"}]}, [("invalid-value", "steps")]),
        ({"steps": [{"name": "a/b"}]}, [("invalid-value", "steps[0].name")]),
        ({"multi_step_reward_strategy": "max"}, [("invalid-value", "multi_step_reward_strategy")]),
        ([], [("invalid-type", "")]),
    ],
)
def test_wrong_configuration_is_reported_with_its_path(data: Any, expected: list[tuple[str, str]]) -> None:
    assert problems(data) == expected


def test_all_problems_are_reported_at_once() -> None:
    assert len(problems({"nonsense": 1, "environment": {"cpus": -1, "gpus": "x"}, "agent": {"user": 1.5}})) == 4


def test_unknown_keys_name_a_near_one() -> None:
    with pytest.raises(TaskConfigError, match="did you mean 'cpus'"):
        TaskConfig.model_validate({"environment": {"cpuz": 1}})


@pytest.mark.parametrize(
    ("host", "kept"),
    [
        ("API.Example.org.", "api.example.org"),
        ("*.x.y", "*.x.y"),
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("::1", "::1"),
    ],
)
def test_hosts_are_folded(host: str, kept: str) -> None:
    config = TaskConfig.model_validate({"agent": {"network_mode": "allowlist", "allowed_hosts": [host]}})
    assert config.agent.allowed_hosts == (kept,)


@pytest.mark.parametrize(
    "host", ["", " ", "http://a.b", "a.b:80", "a.b/c", "a_b.c", "-a.b", "*", "a.*.b", "a" * 300, "10.0.0.1/8"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    path = "agent.allowed_hosts[0]"
    assert ("invalid-value", path) in problems({"agent": {"network_mode": "allowlist", "allowed_hosts": [host]}})


def test_old_spellings_become_canonical() -> None:
    config = TaskConfig.model_validate(
        {
            "version": "1.0",
            "sandbox": {"memory": "2G", "storage": "512M", "allow_internet": False, "image": "x"},
            "solution": {"TOKEN": "t"},
            "verifier": {"sandbox_mode": "separate", "sandbox": {"cpus": 1}},
        }
    )
    assert config.to_declared_dict() == {
        "schema_version": "1.0",
        "environment": {
            "docker_image": "x",
            "memory_mb": 2048,
            "storage_mb": 512,
            "network_mode": "no-network",
        },
        "oracle": {"env": {"TOKEN": "t"}},
        "verifier": {"environment_mode": "separate", "environment": {"cpus": 1}},
    }


def test_schema_version_wins_over_version() -> None:
    assert TaskConfig.model_validate({"version": "1.0", "schema_version": "1.2"}).schema_version == "1.2"


def test_foreign_import_is_lenient_where_the_foreign_format_is() -> None:
    data = {
        "schema_version": "0.0",
        "nonsense": 1,
        "task": {"name": "a/b", "authors": ["Someone"]},
        "environment": {"network_mode": "allowlist", "allowed_hosts": []},
    }
    assert problems(data, foreign=True) == []
    config = TaskConfig.model_validate(data, foreign=True)
    assert config.task is not None
    assert config.task.authors[0].name == "Someone"
    assert ("invalid-value", "environment.cpus") in problems({"environment": {"cpus": 0}}, foreign=True)


def test_unknown_parts_are_taken_apart_as_they_were_nested() -> None:
    data = {
        "x": 1,
        "environment": {"cpus": 1, "y": {"z": 2}},
        "steps": [{"name": "a"}, {"name": "b", "verifier": {"q": 1}}],
    }
    known, extra = split_unknown(TaskConfig, data)
    assert known == {"environment": {"cpus": 1}, "steps": [{"name": "a"}, {"name": "b", "verifier": {}}]}
    assert extra == {"x": 1, "environment": {"y": {"z": 2}}, "steps": [None, {"verifier": {"q": 1}}]}


def test_records_do_not_change() -> None:
    config = TaskConfig.model_validate(FULL)
    with pytest.raises(AttributeError):
        config.source = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.metadata["a"] = 1
    with pytest.raises(TypeError):
        config.environment.env.update(a="b")
    with pytest.raises(TypeError):
        TaskConfig(nonsense=1)  # type: ignore[call-arg]


def test_records_travel_between_processes() -> None:
    config = TaskConfig.model_validate(FULL)
    assert pickle.loads(pickle.dumps(config)) == config
    assert isinstance(pickle.loads(pickle.dumps(config)).metadata, FrozenMap)


def test_every_record_has_a_docstring_of_its_own() -> None:
    for model in walk_models(TaskConfig):
        assert model.__doc__
        assert model.__doc__ != Record.__doc__
