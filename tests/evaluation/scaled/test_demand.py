"""What a task needs of a node, from what its package declares and the job asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.evaluation.scaled.abilities import Demand
from benchflow.evaluation.scaled.demand import demand_of
from benchflow.evaluation.sources import Sources
from benchflow.record import JobRequest

EXAMPLES = Path(__file__).parents[3] / "examples/packages"
VERIFIER = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"


Environ = dict[str, str]


def demand(folder: Path, text: str, environ: Environ | None = None, *, dockerfile: str = "", **job: str) -> Demand:
    place = folder / "task"
    (place / "verifier").mkdir(parents=True)
    (place / "task.md").write_text(f"---\nschema_version: '1.3'\ntask: {{name: acme/task}}\n{text}---\nDo it.\n")
    (place / "verifier/test.sh").write_text(VERIFIER)
    if dockerfile:
        (place / "environment").mkdir()
        (place / "environment/Dockerfile").write_text(dockerfile)
    request = JobRequest((str(place),), **{"agent": "nop", **job})
    [task] = Sources(request).tasks()
    return demand_of(task, request, environ or {})


def test_what_a_package_declares_counts_and_defaults_of_the_format_do_not(tmp_path: Path) -> None:
    plain = demand(tmp_path / "plain", "environment: {network_mode: no-network}\n")
    assert (plain.processors, plain.memory_mb, plain.storage_mb) == (None, None, None)
    assert plain.sandboxes == ("local",)
    assert dict(plain.capabilities) == {"network.none": "the network of the environment phase"}
    declared = demand(
        tmp_path / "declared",
        "environment: {cpus: 1.5, memory: 1G, storage_mb: 300, network_mode: no-network}\n"
        "verifier: {environment_mode: separate, environment: {memory_mb: 4096, network_mode: no-network}}\n",
    )
    assert (declared.processors, declared.memory_mb, declared.storage_mb) == (1.5, 4096, 300)
    assert {"limits.cpu", "limits.memory", "limits.disk"} <= dict(declared.capabilities).keys()


def test_an_image_can_run_on_any_backend_that_auto_considers_and_a_named_one_is_the_only_one(tmp_path: Path) -> None:
    dockerfile = "FROM debian:12-slim\n"
    assert demand(tmp_path / "auto", "", dockerfile=dockerfile).sandboxes == ("local", "docker", "podman")
    assert demand(tmp_path / "named", "", dockerfile=dockerfile, sandbox="podman").sandboxes == ("podman",)
    substituted = demand(tmp_path / "instead", "", dockerfile=dockerfile, base_image="my-base")
    assert (substituted.sandboxes, substituted.base_image) == (("local",), "my-base")
    assert demand(tmp_path / "host", "", base_image="host").base_image is None


@pytest.mark.parametrize("declared", ["cpus: many", "gpus: 4", "os: windows"])
def test_what_gets_the_same_result_on_every_machine_needs_nothing(tmp_path: Path, declared: str) -> None:
    assert demand(tmp_path, f"environment: {{{declared}}}\n") == Demand()


VARIABLES = """
environment: {env: {A: "${NEEDED}", B: "${WITH_DEFAULT:-1}", C: "${SET_HERE:-1}", D: plain}}
oracle: {env: {O: "${OF_ORACLE}"}}
benchflow:
  secrets:
    - {name: FOR_VERIFIER, scope: verifier}
    - {name: key, env: FOR_AGENT, scope: agent}
    - {name: MAYBE, scope: judge, required: false}
    - {name: MAYBE_SET, scope: judge, required: false}
"""


def test_variables_are_needed_where_nothing_starts_without_them_and_where_they_are_set_here(tmp_path: Path) -> None:
    environ = {"SET_HERE": "x", "MAYBE_SET": "x", "UNRELATED_API_KEY": "x", "OPENAI_BASE_URL": "x"}
    assert demand(tmp_path / "nop", VARIABLES, environ).names == {"NEEDED", "SET_HERE", "FOR_VERIFIER", "MAYBE_SET"}
    oracle = demand(tmp_path / "oracle", VARIABLES, environ, agent="oracle").names
    assert oracle == {"NEEDED", "SET_HERE", "FOR_VERIFIER", "MAYBE_SET", "OF_ORACLE"}


@pytest.mark.slow  # the client of models loads for seconds
def test_an_agent_must_be_able_to_start_there_and_call_the_same_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-real-key")
    environ = {"OPENAI_BASE_URL": "http://127.0.0.1:9", "OPENAI_API_KEY": "x", "ANTHROPIC_BASE_URL": "x"}
    found = demand(tmp_path / "model", "", environ, agent="model:openai/gpt-x")
    assert found.agents == (("model:openai/gpt-x", None),)
    assert found.variables == {"OPENAI_BASE_URL"}, "whether a key is there, the node finds out by a check"
    assert "gpt" not in repr(demand(tmp_path / "nop", "", environ).agents)


def test_the_key_of_a_judge_that_is_set_here_must_be_set_there() -> None:
    request = JobRequest((str(EXAMPLES / "explain-outage"),), "nop")
    [task] = Sources(request).tasks()
    environ = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "x", "ANTHROPIC_API_KEY": "x"}
    found = demand_of(task, request, environ)
    assert (found.one_of, found.variables) == ((frozenset({"OPENAI_API_KEY"}),), {"OPENAI_BASE_URL"})
    assert demand_of(task, request, {}).names == frozenset(), (
        "without a key here its rollouts say so, as on one machine"
    )
