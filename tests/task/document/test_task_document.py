"""`task.md`: grammar, sections, sidecars, scenes, the user, modes; every issue knows its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.task.document.task_document import TaskDocument, TaskDocumentParseError, read_document

ROLES = "agents: {roles: {a: {agent: x}, b: {agent: y, model: m, timeout_sec: 5, capabilities: [review]}}}\n"


def doc(frontmatter: str = "", body: str = "Do it.\n") -> str:
    return f"---\n{frontmatter}---\n{body}"


def codes(text: str | bytes, **sidecars: str) -> list[tuple[str, str, int | None]]:
    _, issues = read_document(text, sidecars=sidecars)
    return [(issue.code, issue.path, issue.line) for issue in issues]


def test_frontmatter_and_prose_are_a_whole_task() -> None:
    document = TaskDocument.from_text(doc("task: {name: a/b}\n", "\n# Title\n\nDo it.\n"))
    assert document.instruction == "# Title\n\nDo it."
    assert document.config.task is not None
    assert document.mode == "single-shot"
    assert document.scenes == ()


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ("[read_file, {name: lamp, command: echo, arguments: {device: Which.}}]", []),
        ("[read_file, telepathy]", [("unknown-tool", "user.tools[1]", 5)]),
        ("[{name: bash, command: x}]", [("conflicting-keys", "user.tools[0]", 5)]),
        ("[read_file, read_file]", [("conflicting-keys", "user.tools[1]", 5)]),
        (
            "[{name: lamp, command: x, arguments: {Device: y}}]",
            [("invalid-value", "user.tools[0].arguments.Device", 5)],
        ),
    ],
)
def test_the_tools_of_a_user_are_known_or_have_a_command(tools: str, expected: list[object]) -> None:
    assert codes(doc(f"user:\n  model: gpt-5\n  account: home\n  tools: {tools}\n")) == expected


def test_tools_of_a_user_need_its_account() -> None:
    assert codes(doc("user:\n  tools: [bash]\n")) == [("missing-key", "user.account", 2)]


def test_empty_frontmatter_is_a_document() -> None:
    assert TaskDocument.from_text("---\n---\nx").instruction == "x"


def test_mark_and_line_ends_of_windows_are_accepted() -> None:
    document, issues = read_document(b"\xef\xbb\xbf---\r\ntask: {name: a/b}\r\n---\r\nDo\r\nit.\r\n", sidecars={})
    assert issues == []
    assert document is not None
    assert document.instruction == "Do\nit."


def test_issues_know_their_line_in_the_file() -> None:
    text = doc('schema_version: "1.3"\nenvironment:\n  cpus: 1\n  cpuz: 2\nagent: {timeout_sec: x}\n')
    assert codes(text) == [("unknown-key", "environment.cpuz", 5), ("invalid-type", "agent.timeout_sec", 6)]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("no frontmatter", "missing-frontmatter", 1),
        ("---\na: 1\n", "unclosed-frontmatter", 1),
        ("---\n- a\n---\n", "not-a-mapping", 2),
        ("---\ntext\n---\n", "not-a-mapping", 2),
        ("---\na: [\n---\n", "invalid-yaml", 3),
        ("---\na: 1\na: 2\n---\n", "duplicate-key", 3),
        (b"---\na: \xff\n---\n", "not-utf8", 2),
    ],
)
def test_what_cannot_be_read_is_one_issue(text: str | bytes, code: str, line: int) -> None:
    assert [(c, n) for c, _, n in codes(text)] == [(code, line)]


def test_parse_error_carries_every_issue() -> None:
    with pytest.raises(TaskDocumentParseError) as caught:
        TaskDocument.from_text(doc("x: 1\ny: 2\n"))
    assert [issue.path for issue in caught.value.issues] == ["x", "y"]
    assert isinstance(caught.value, ValueError)
    assert (caught.value.file, caught.value.line) == ("task.md", 2)


def test_sections_become_prompts() -> None:
    body = "## prompt\nBase.\n## role:a\nAs a.\n## scene:s\nIn s.\n## user-persona\nKind.\n"
    document = TaskDocument.from_text(doc(ROLES + "scenes: [{name: s, turns: [a]}]\nuser: {model: gpt-5}\n", body))
    assert document.instruction == "Base."
    assert document.role_prompts == {"a": "As a."}
    assert document.scene_prompts == {"s": "In s."}
    assert document.persona == "Kind."


def test_text_before_the_prompt_heading_is_reported_and_kept() -> None:
    document, issues = read_document(doc(body="# Title\n\n## prompt\nBase.\n"), sidecars={})
    assert [(issue.code, issue.severity, issue.line) for issue in issues] == [("preamble", "warning", 5)]
    assert document is not None
    assert (document.instruction, document.preamble) == ("Base.", "# Title")


def test_text_before_other_headings_is_the_prompt() -> None:
    document = TaskDocument.from_text(doc(ROLES, "Base.\n## role:a\nAs a.\n"))
    assert document.instruction == "Base."


def test_a_section_twice_is_an_error() -> None:
    assert codes(doc(ROLES, "## role:a\nx\n## role:a\ny\n")) == [("duplicate-section", "role:a", 6)]


def test_sidecars_win_over_headings() -> None:
    document = TaskDocument.from_text(doc(ROLES, "Base.\n## role:a\nold\n"), sidecars={"role:a": "new"})
    assert document.role_prompts["a"] == "new"


def test_prompts_without_role_or_scene_are_reported() -> None:
    assert [c for c, _, _ in codes(doc(body="Base.\n## role:ghost\nx\n## scene:none\ny\n"))] == ["unused-prompt"] * 2


def test_scenes_get_names_roles_and_turns() -> None:
    scenes = TaskDocument.from_text(
        doc(ROLES + "scenes: [{}, {name: s, turns: [b, {role: a, prompt: Now.}]}, {roles: [a]}]\n")
    ).scenes
    assert [scene.name for scene in scenes] == ["scene-0", "s", "scene-2"]
    assert [scene.roles for scene in scenes] == [("a", "b"), ("b", "a"), ("a",)]
    assert [[turn.role for turn in scene.turns or ()] for scene in scenes] == [["a", "b"], ["b", "a"], ["a"]]
    assert (scenes[1].turns or ())[1].prompt == "Now."


@pytest.mark.parametrize(
    ("namespace", "path"),
    [
        ("teams: {t: {handoff: {mode: sequential}, roles: [a, ghost]}}", "benchflow.teams.t.roles[1]"),
        ("interaction: {mode: arena-concurrent, participants: [ghost]}", "benchflow.interaction.participants[0]"),
    ],
)
def test_teams_and_peers_are_declared_roles(namespace: str, path: str) -> None:
    assert [(code, where) for code, where, _ in codes(doc(f"{ROLES}benchflow:\n  {namespace}\n"))] == [
        ("unknown-role", path)
    ]


@pytest.mark.parametrize(
    ("scenes", "code", "path"),
    [
        ("[{turns: [ghost]}]", "unknown-role", "scenes[0].turns[0]"),
        ("[{roles: [ghost]}]", "unknown-role", "scenes[0].roles[0]"),
        ("[{roles: [a], turns: [b]}]", "unknown-role", "scenes[0].turns[0]"),
        ("[{name: s}, {name: s}]", "invalid-value", "scenes[1].name"),
        ("[{turns: [{role: a, prompts: x}]}]", "unknown-key", "scenes[0].turns[0].prompts"),
        ("[{rolez: [a]}]", "unknown-key", "scenes[0].rolez"),
        ("[{turns: []}]", "invalid-value", "scenes[0]"),
        ("{}", "invalid-type", "scenes"),
    ],
)
def test_wrong_scenes_are_reported(scenes: str, code: str, path: str) -> None:
    assert (code, path) in [(c, p) for c, p, _ in codes(doc(ROLES + f"scenes: {scenes}\n"))]


@pytest.mark.parametrize(
    ("frontmatter", "path"),
    [
        ("agents: {roles: {a: {}}}", "agents.roles.a.agent"),
        ("agents: {roles: {a: {agent: x, colour: red}}}", "agents.roles.a.colour"),
        ("agents: {a: {agent: x}}", "agents.a"),
        ("user: {mood: happy}", "user.mood"),
        ("user: {private_facts: [a]}", "user.private_facts"),
        ("benchflow: {nonsense: 1}", "benchflow.nonsense"),
        ("user: text", "user"),
    ],
)
def test_unknown_and_wrong_document_keys_are_errors(frontmatter: str, path: str) -> None:
    assert path in [p for _, p, _ in codes(doc(frontmatter + "\n"))]


TWO = ROLES + "scenes: [{turns: [a, b]}]\n"
TWICE = ROLES + "scenes: [{turns: [a, a]}]\n"


@pytest.mark.parametrize(
    ("frontmatter", "mode"),
    [
        ("", "single-shot"),
        (ROLES + "scenes: [{turns: [a]}]\n", "single-shot"),
        (TWICE, "multi-round"),
        (TWO, "multi-agent-sequential"),
        ("user: {model: gpt-5, persona: Kind}\n", "simulated-user"),
        ("benchflow: {nudges: {mode: simulated-user}}\n", "simulated-user"),
        ("benchflow: {interaction: {mode: multi-round}}\n", "multi-round"),
        ("benchflow: {interaction: {mode: arena-concurrent}}\n", "arena-concurrent"),
        (TWO + "benchflow: {interaction: {mode: multi-agent-sequential}}\n", "multi-agent-sequential"),
        ("user: {private_facts: {k: v}}\nbenchflow: {interaction: {mode: multi-round}}\n", "multi-round"),
    ],
)
def test_the_mode_is_declared_or_derived(frontmatter: str, mode: str) -> None:
    assert TaskDocument.from_text(doc(frontmatter)).mode == mode


@pytest.mark.parametrize(
    ("frontmatter", "mode"),
    [
        (TWO, "single-shot"),
        (TWICE, "single-shot"),
        (TWO, "multi-round"),
        ("user: {model: gpt-5}\n", "multi-round"),
        ("", "simulated-user"),
        ("", "multi-agent-sequential"),
    ],
)
def test_a_contradicting_mode_is_an_error(frontmatter: str, mode: str) -> None:
    text = doc(frontmatter + f"benchflow: {{interaction: {{mode: {mode}}}}}\n")
    assert [(c, p) for c, p, _ in codes(text)] == [("mode-contradiction", "benchflow.interaction.mode")]


def test_a_package_folder_gives_its_document_with_sidecars(make_package) -> None:
    folder: Path = make_package(
        {"task.md": doc(ROLES), "prompts/role.a.md": "From the file.\n", "prompts/user-persona.md": "Kind."}
    )
    document = TaskDocument.from_path(folder)
    assert document.role_prompts == {"a": "From the file."}
    assert document.persona == "Kind."
    assert TaskDocument.from_path(folder / "task.md") == document


_keys = st.sampled_from(
    [
        "task",
        "agent",
        "environment",
        "sandbox",
        "verifier",
        "oracle",
        "solution",
        "steps",
        "scenes",
        "agents",
        "user",
        "benchflow",
        "preset",
        "profile",
        "name",
        "image",
        "environment-profile",
        "artifacts",
        "metadata",
        "version",
        "x",
    ]
)
_leaves = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["a/b", "code-change", "1.3"])
)
_trees = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "roles", "turns", "prompt", "env", "cpus", "nudges", "teams"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(_keys, _trees, max_size=4), st.text(max_size=60))
def test_any_frontmatter_gives_a_document_or_issues(frontmatter: dict[str, object], body: str) -> None:
    import yaml

    document, issues = read_document(doc(yaml.safe_dump(frontmatter) if frontmatter else "", body), sidecars={})
    assert document is not None or issues
    for issue in issues:
        assert issue.file == "task.md"
        assert issue.message
        assert issue.line is not None


@given(
    st.binary(max_size=120)
    | st.text(max_size=120).map(lambda text: f"---\n{text}\n---\n{text}".encode("utf-8", "replace"))
)
def test_any_bytes_give_a_document_or_issues(data: bytes) -> None:
    document, issues = read_document(data, sidecars={})
    assert document is not None or any(issue.severity == "error" for issue in issues)
