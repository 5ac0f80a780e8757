"""Presets expand and vanish; profiles are inherited, persist and count in the digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchflow.task.config.parsed_record import IssueLog
from benchflow.task.document.authoring import PRESETS, expand_authoring
from benchflow.task.document.task_document import TaskDocument, read_document
from benchflow.task.package import load_package
from benchflow.task.runtime_capabilities import validate_task_runtime_support


def document(frontmatter: str) -> TaskDocument:
    return TaskDocument.from_text(f"---\n{frontmatter}---\nDo it.\n")


def codes(frontmatter: str) -> list[tuple[str, str]]:
    return [(issue.code, issue.path) for issue in read_document(f"---\n{frontmatter}---\nx\n", sidecars={})[1]]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_each_preset_makes_a_valid_document_that_local_can_run(name: str) -> None:
    parsed = document(f"preset: {name}\nname: thing\n")
    assert parsed.presets == (name,)
    assert validate_task_runtime_support(parsed, sandbox="local") == []


def test_the_author_wins_over_a_preset_under_any_spelling() -> None:
    config = document(
        "preset: code-change\nsandbox: {cpus: 1, image: debian, memory: 1G, allow_internet: true}\n"
    ).config
    environment = config.environment
    assert (environment.cpus, environment.docker_image, environment.memory_mb) == (1, "debian", 1024)
    assert environment.network_mode == "public"
    assert environment.workdir == "/repo"
    assert config.agent.timeout_sec == 7200


def test_a_later_preset_wins_over_an_earlier_one() -> None:
    assert document("presets: [code-change, harbor-compatible]\n").config.metadata["category"] == "harbor-compatible"
    assert document("preset: [harbor-compatible, code-change]\n").config.metadata["category"] == "code-change"


def test_expansion_leaves_no_trace_of_presets() -> None:
    log = IssueLog()
    expanded = expand_authoring({"profile": "code-change", "name": "x", "image": "debian"}, log)
    assert log.issues == []
    assert not expanded.mapping.keys() & {"preset", "presets", "profile", "profiles", "name", "image"}
    assert "authoring" not in expanded.mapping["benchflow"]
    assert expand_authoring(expanded.mapping, log).mapping == expanded.mapping


def test_expansion_does_not_share_state_between_documents() -> None:
    first = expand_authoring({"preset": "code-change"}, IssueLog()).mapping
    first["environment"]["cpus"] = 99
    assert expand_authoring({"preset": "code-change"}, IssueLog()).mapping["environment"]["cpus"] == 4


def test_shorthands_become_canonical() -> None:
    parsed = document("name: tidy\nimage: debian:12\nverifier: verifier/\noracle: oracle\n")
    assert parsed.config.task is not None
    assert parsed.config.task.name == "benchflow/tidy"
    assert parsed.config.environment.docker_image == "debian:12"
    assert parsed.namespace.verifier is not None
    assert parsed.namespace.verifier.spec == "verifier/verifier.md"
    assert parsed.namespace.oracle is not None
    assert parsed.namespace.oracle.path == "oracle"


def test_explicit_keys_win_over_shorthands() -> None:
    parsed = document("name: short\ntask: {name: a/long}\nimage: one\nenvironment: {image: two}\n")
    assert parsed.config.task is not None
    assert parsed.config.task.name == "a/long"
    assert parsed.config.environment.docker_image == "two"


@pytest.mark.parametrize(
    ("frontmatter", "code", "path"),
    [
        ("preset: nonsense\n", "unknown-preset", "preset"),
        ("presets: [code-change, nonsense]\n", "unknown-preset", "presets[1]"),
        ("preset: 1\n", "invalid-type", "preset"),
        ("preset: code-change\nprofile: code-change\n", "conflicting-keys", "profile"),
        ("name: 1\n", "invalid-type", "name"),
        ("name: 'bad name'\n", "invalid-value", "name"),
        ("image: [a]\n", "invalid-type", "image"),
        ("verifier: ../elsewhere\n", "unsafe-path", "verifier"),
        ("oracle: /abs\n", "unsafe-path", "oracle"),
    ],
)
def test_wrong_sugar_is_reported_as_it_was_written(frontmatter: str, code: str, path: str) -> None:
    assert (code, path) in codes(frontmatter)


def with_profiles(make_package, profiles: dict[str, Any], frontmatter: str, **files: str) -> Path:
    folder: Path = make_package({"task.md": f"---\n{frontmatter}---\nDo it.\n", **files})
    for name, text in profiles.items():
        target = folder.parent / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return folder


def test_a_profile_goes_below_the_keys_of_the_package(make_package) -> None:
    folder = with_profiles(
        make_package,
        {
            "profiles/env.yaml": "cpus: 4\nmemory: 4G\nimage: base:1\nenv: {A: '1', B: '2'}\n"
            "healthcheck: {command: up, retries: 9}\n"
        },
        "environment-profile: ../profiles/env.yaml\nsandbox: {memory_mb: 512, docker_image: own:1, env: {B: '3'}}\n",
    )
    package = load_package(folder)
    assert package.issues == ()
    environment = package.view.config.environment
    assert (environment.cpus, environment.memory_mb, environment.docker_image) == (4, 512, "own:1")
    assert environment.env == {"A": "1", "B": "3"}
    assert environment.healthcheck is not None
    assert environment.healthcheck.retries == 9
    assert package.view.profiles["environment-profile"].path == "../profiles/env.yaml"
    assert package.to_dict()["config"]["environment"]["cpus"] == 4


@pytest.mark.parametrize(
    "profile",
    [
        "timeout_sec: 5\nroles: {a: {agent: x, model: m}}\n",
        "agent: {timeout_sec: 5}\nagents: {roles: {a: {agent: x, model: m}}}\n",
    ],
)
def test_an_agent_profile_holds_agent_and_agents(make_package, profile: str) -> None:
    folder = with_profiles(
        make_package,
        {"agents.yaml": profile},
        "agent-profile: ../agents.yaml\nagents: {roles: {a: {agent: mine}, b: {agent: z}}}\n"
        "scenes: [{turns: [a, b]}]\n",
    )
    package = load_package(folder)
    assert package.issues == ()
    assert package.view.config.agent.timeout_sec == 5
    assert package.view.roles["a"].to_declared_dict() == {"agent": "mine", "model": "m"}


def test_a_verifier_profile_shares_settings_strategies_and_rubric(make_package) -> None:
    profile = (
        "timeout_sec: 7\nstrategies: {shared: {type: script, command: ./test.sh}}\ndefault_strategy: shared\n"
        "rubric: {dimensions: {right: {weight: 1}}}\n"
    )
    verifier = "---\nverifier:\n  name: own\n  strategies: {own: {type: script, command: ./own.sh}}\n---\n"
    folder = with_profiles(
        make_package,
        {"v.yaml": profile},
        "verifier-profile: ../v.yaml\n",
        **{"verifier/verifier.md": verifier},
    )
    package = load_package(folder)
    assert package.issues == ()
    assert package.view.config.verifier.timeout_sec == 7
    assert package.verifier_document is not None
    assert package.verifier_document.default_strategy == "shared"
    assert set(package.verifier_document.strategies) == {"shared", "own"}
    assert "right" in package.verifier_document.rubric.dimensions


def test_a_verifier_profile_stands_in_for_a_missing_document(make_package) -> None:
    profile = "strategies: {shared: {type: script, command: ./test.sh}}\n"
    folder = with_profiles(make_package, {"v.yaml": profile}, "verifier-profile: ../v.yaml\n")
    (folder / "verifier" / "verifier.md").unlink()
    package = load_package(folder)
    assert package.issues == ()
    assert package.view.verifier_document is not None
    assert package.view.verifier_document.default_strategy == "shared"


def test_a_broken_profile_does_not_hide_a_good_one(make_package) -> None:
    folder = with_profiles(
        make_package,
        {"bad.yaml": "cpuz: 1\n", "good.yaml": "timeout_sec: 5\n"},
        "environment-profile: ../bad.yaml\nagent-profile: ../good.yaml\n",
    )
    package = load_package(folder)
    assert [issue.code for issue in package.issues] == ["unknown-key"]
    assert package.config is not None
    assert package.config.agent.timeout_sec == 5


def test_profiles_count_in_digest_and_source_hashes(make_package) -> None:
    folder = with_profiles(make_package, {"env.yaml": "cpus: 2\n"}, "environment-profile: ../env.yaml\n")
    before = load_package(folder)
    (folder.parent / "env.yaml").write_text("cpus: 2 \n")
    after = load_package(folder)
    assert before.config == after.config
    assert before.digest != after.digest
    assert "../env.yaml" in before.source_hashes


def test_a_profile_inside_the_package_is_counted_once(make_package) -> None:
    folder = with_profiles(make_package, {}, "environment-profile: profile.yaml\n", **{"profile.yaml": "cpus: 3\n"})
    package = load_package(folder)
    assert package.view.config.environment.cpus == 3
    assert package.digest == package.files.digest()


def test_what_only_the_merged_result_can_decide_is_not_judged_in_the_profile(make_package) -> None:
    folder = with_profiles(
        make_package,
        {"env.yaml": "allowed_hosts: [a.example]\nhealthcheck: {retries: 2}\n"},
        "environment-profile: ../env.yaml\nenvironment: {healthcheck: {command: up}}\n",
    )
    codes_found = [(issue.code, issue.path) for issue in load_package(folder).issues]
    assert codes_found == [("conflicting-keys", "environment.allowed_hosts")]


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("../missing.yaml", "profile-missing"),
        ("../../outside.yaml", "profile-outside"),
        ("/etc/hostname", "profile-outside"),
        ("..", "profile-outside"),
        ("../link.yaml", "profile-outside"),
        ("../pipe.yaml", "profile-missing"),
        ('"../a\\0b"', "unsafe-path"),
    ],
)
def test_a_profile_that_points_nowhere_or_outside_is_an_error(make_package, reference: str, code: str) -> None:
    import os

    folder = with_profiles(make_package, {}, f"environment-profile: {reference}\n")
    (folder.parent.parent / "outside.yaml").write_text("cpus: 2\n")
    (folder.parent / "link.yaml").symlink_to(folder.parent.parent / "outside.yaml")
    os.mkfifo(folder.parent / "pipe.yaml")
    issue = load_package(folder).issues[0]
    assert (issue.code, issue.path, issue.file, issue.line) == (code, "environment-profile", "task.md", 2)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("cpus: 1\ncpuz: 2\n", "unknown-key", 2),
        ("cpus: -1\n", "invalid-value", 1),
        ("- a\n", "not-a-mapping", 1),
        ("a: [\n", "invalid-yaml", 2),
        ("a: 1\na: 2\n", "duplicate-key", 2),
    ],
)
def test_problems_of_a_profile_name_its_file_and_line(make_package, text: str, code: str, line: int) -> None:
    folder = with_profiles(make_package, {"env.yaml": text}, "environment-profile: ../env.yaml\n")
    issue = load_package(folder).issues[0]
    assert (issue.code, issue.file, issue.line) == (code, "../env.yaml", line)


def test_a_preset_wins_over_a_profile_as_it_does_once_normalised(make_package) -> None:
    folder = with_profiles(
        make_package,
        {"env.yaml": "cpus: 16\nbuild_timeout_sec: 9\n"},
        "preset: code-change\nenvironment-profile: ../env.yaml\n",
    )
    environment = load_package(folder).view.config.environment
    assert (environment.cpus, environment.build_timeout_sec) == (4, 9)
