"""The canonical form says the same in one spelling, and moving headings changes no prompt."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import PackageError
from benchflow.task.document.prompt_plan import compile_task_prompt_plan
from benchflow.task.document.task_document import TaskDocument, TaskDocumentParseError
from benchflow.task.normalization import normalize_package, render_normalized_task_md
from benchflow.task.package import load_package

ROLES = """\
agents: {roles: {a: {agent: x}, b: {agent: y}}}
scenes: [{name: s, turns: [a, {role: b, prompt: T}]}]"""


def frontmatter(text):
    return yaml.safe_load(text.split("---\n")[1])


def plan(package):
    return load_package(package).prompt_plan


def test_presets_vanish_and_what_they_stand_for_stays():
    text = render_normalized_task_md("---\npreset: code-change\nagent: {timeout_sec: 5}\n---\nDo it.")
    written = frontmatter(text)
    assert not {"preset", "presets", "profile", "profiles"} & written.keys()
    assert "authoring" not in written["benchflow"]
    assert written["agent"] == {"timeout_sec": 5, "network_mode": "no-network"}
    assert written["environment"]["workdir"] == "/repo"
    assert text.endswith("---\n\nDo it.\n")


def test_shorthands_and_other_spellings_become_canonical():
    text = render_normalized_task_md(
        "---\nname: x\nimage: i:1\nsandbox: {cpus: 2}\nsolution: {env: {A: b}}\nversion: '1.0'\n---\nDo it."
    )
    assert frontmatter(text) == {
        "schema_version": "1.0",
        "environment": {"cpus": 2, "docker_image": "i:1"},
        "oracle": {"env": {"A": "b"}},
        "task": {"name": "benchflow/x"},
    }
    assert next(iter(frontmatter(text))) == "schema_version"


def test_private_facts_survive_being_rewritten():
    text = render_normalized_task_md("---\nuser: {model: scripted, private_facts: {k: v}}\n---\nDo it.")
    assert frontmatter(text)["user"]["private_facts"] == {"k": "v"}


def test_headings_move_into_prompts_and_no_turn_changes(make_native, look):
    package = make_native(
        ROLES,
        "Base.\n## role:a\nA.\n\n```\n## prompt\n```\n\\## scene:s\n## scene:s\nS.\n## user-persona\nP.",
    )
    before = plan(package)
    normalized = normalize_package(package, write=True)
    assert plan(package) == before
    assert (package / "prompts/role.a.md").read_text() == "A.\n\n```\n## prompt\n```\n## scene:s\n"
    assert sorted(normalized.prompts) == [
        "prompts/role.a.md",
        "prompts/scene.s.md",
        "prompts/user-persona.md",
    ]
    assert (package / "task.md").read_text().endswith("---\n\nBase.\n")
    assert load_package(package).valid
    again = look(package)
    assert normalize_package(package, write=True).prompts == {}
    assert look(package) == again


def test_headings_stay_when_moving_them_would_change_a_prompt(make_native):
    package = make_native(ROLES, "    ```\n## prompt\nBase.\n## role:a\nA.")
    before = plan(package)
    assert normalize_package(package, write=True).prompts == {}
    assert plan(package) == before
    assert not (package / "prompts").exists()


def test_without_write_nothing_changes(make_native, look):
    package = make_native(ROLES, "Base.\n## role:a\nA.")
    before = look(package)
    assert normalize_package(package).prompts == {"prompts/role.a.md": "A.\n"}
    assert look(package) == before


def test_a_prompt_file_wins_over_its_heading_which_is_reported(make_native, tree):
    package = make_native(ROLES, "Base.\n## role:a\nheading")
    tree(package, {"prompts/role.a.md": "file"})
    before = plan(package)
    normalized = normalize_package(package, write=True)
    assert plan(package) == before
    assert (package / "prompts/role.a.md").read_text() == "file"
    assert [issue.code for issue in normalized.issues] == ["shadowed-section"]


def test_text_before_the_prompt_heading_stays_outside_the_prompt(make_native):
    package = make_native("schema_version: '1.3'", "# Title\n\n## prompt\n\nDo it.")
    normalize_package(package, write=True)
    document = load_package(package).document
    assert (document.preamble, document.instruction) == ("# Title", "Do it.")


def test_profiles_stay_references(make_native, tmp_path):
    (tmp_path / "agents.yaml").write_text("roles: {a: {agent: x}}\n")
    package = make_native("agent-profile: ../agents.yaml\nscenes: [{name: s, turns: [a]}]")
    normalized = normalize_package(package, write=True)
    written = frontmatter(normalized.text)
    assert written["agent-profile"] == "../agents.yaml"
    assert "agents" not in written
    assert load_package(package).valid
    assert render_normalized_task_md(normalized.text, path=package / "task.md") == normalized.text


def test_an_invalid_document_is_refused_and_left_alone(make_native, look, split):
    package = make_native("zzz: 1")
    before = look(package)
    with pytest.raises(TaskDocumentParseError) as caught:
        normalize_package(package, write=True)
    assert caught.value.path == "zzz"
    assert look(package) == before
    with pytest.raises(PackageError) as other:
        normalize_package(split, write=True)
    assert other.value.code == "not-native"


HEADINGS = [
    "## prompt",
    "## role:a",
    "## scene:s",
    "## user-persona",
    "\\## role:a",
    "\\\\## prompt",
    "## ordinary",
]
lines = st.sampled_from([*HEADINGS, "text", "", "  indented", "```", "~~~", "---", "    ```"])
bodies = st.lists(lines, max_size=10).map("\n".join)
heads = st.sampled_from([ROLES, "name: x", "preset: multi-agent", "preset: [code-change]\nsandbox: {cpus: 2}"])


@given(heads, bodies)
def test_any_document_keeps_its_prompts_and_normalising_twice_is_normalising_once(head, body):
    text = f"---\n{head}\n---\n{body}"
    try:
        before = TaskDocument.from_text(text)
    except TaskDocumentParseError:
        return
    once = render_normalized_task_md(text)
    after = TaskDocument.from_text(once)
    assert compile_task_prompt_plan(after) == compile_task_prompt_plan(before)
    assert after.config == before.config
    assert render_normalized_task_md(once) == once
