"""Split folders get a `task.md` that says the same, whole or not at all."""

import pytest
import yaml

from benchflow.errors import PackageError, UsageError
from benchflow.task.document.task_document import TaskDocument
from benchflow.task.interop.migration import migrate_task_to_task_md, render_task_md_from_legacy
from benchflow.task.package import load_package


def frontmatter(folder):
    return yaml.safe_load((folder / "task.md").read_text().split("---\n")[1])


def test_a_migrated_package_says_what_the_split_one_said(split):
    before = load_package(split)
    result = migrate_task_to_task_md(split)
    after = load_package(split)
    assert after.entrypoint == "task.md"
    assert after.valid, after.issues
    assert after.config == before.config
    assert after.instruction == before.instruction.strip()
    assert result.created == ("task.md",)
    assert result.removed == ()
    assert result.renamed == ()


def test_only_what_was_declared_is_written_under_native_names(split):
    migrate_task_to_task_md(split)
    written = frontmatter(split)
    assert next(iter(written)) == "schema_version"
    assert written["environment"] == {"cpus": 2, "memory_mb": 1024}
    assert written["oracle"] == {"env": {"A": "b"}}
    assert written["artifacts"] == ["/app/out.txt"]
    assert "solution" not in written


def test_foreign_keys_go_under_compat_extra(split):
    result = migrate_task_to_task_md(split)
    assert frontmatter(split)["benchflow"] == {
        "compat": {
            "source": "task.toml",
            "extra_paths": ["environment.modal.image"],
            "extra": {"environment": {"modal": {"image": "x"}}},
            "spelling": '[environment]\nmemory = "1G"\n',
        }
    }
    assert result.extra_paths == ("environment.modal.image",)
    assert "unknown-key" in {issue.code for issue in result.issues}


def test_a_line_that_would_read_as_a_heading_is_escaped(split):
    migrate_task_to_task_md(split)
    assert "\n\\## prompt\n" in (split / "task.md").read_text()
    assert load_package(split).instruction.splitlines()[2] == "## prompt"


def test_the_legacy_names_vanish_when_asked(split, look):
    before = look(split)
    result = migrate_task_to_task_md(split, remove_legacy=True)
    after = look(split)
    assert result.removed == ("task.toml", "instruction.md")
    assert result.renamed == (("tests", "verifier"), ("solution", "oracle"))
    assert after["verifier/test.sh"] == before["tests/test.sh"]
    assert after["oracle/solve.sh"] == before["solution/solve.sh"]
    assert not {"task.toml", "instruction.md", "tests", "solution"} & after.keys()
    assert load_package(split).valid


def test_equal_twins_lose_the_legacy_one_and_different_twins_are_refused(split, tree, look):
    tree(split, {"verifier/test.sh": (split / "tests/test.sh").read_text(), "oracle/solve.sh": "other"})
    before = look(split)
    with pytest.raises(PackageError) as caught:
        migrate_task_to_task_md(split, remove_legacy=True)
    assert (caught.value.code, caught.value.path) == ("alias-drift", "oracle|solution")
    assert look(split) == before
    (split / "oracle/solve.sh").write_bytes((split / "solution/solve.sh").read_bytes())
    assert migrate_task_to_task_md(split, remove_legacy=True).removed[2:] == ("tests", "solution")
    assert not (split / "tests").exists()


def test_steps_keep_their_folders_and_get_native_names(steps):
    before = load_package(steps)
    result = migrate_task_to_task_md(steps, remove_legacy=True)
    after = load_package(steps)
    assert after.valid, after.issues
    assert after.config == before.config
    assert ("steps/first/tests", "steps/first/verifier") in result.renamed
    assert ("steps/first/solution", "steps/first/oracle") in result.renamed
    assert (steps / "steps/second/verifier/test.sh").read_text().endswith("false\n")
    assert (steps / "steps/first/instruction.md").read_text() == "First.\n"
    assert frontmatter(steps)["benchflow"]["compat"]["extra"] == {"steps": [None, {"runner": "x"}]}


def test_a_judge_finds_its_rubric_after_the_rename(split, tree):
    toml = (split / "task.toml").read_text().replace("[verifier]", '[verifier]\ntype = "llm-judge"')
    tree(split, {"task.toml": toml, "tests/rubric.toml": ""})
    migrate_task_to_task_md(split, remove_legacy=True)
    assert load_package(split).config.verifier.judge.rubric_path == "verifier/rubric.toml"


def test_an_existing_document_is_replaced_only_when_told(split, native, look):
    (split / "task.md").write_text("mine")
    with pytest.raises(PackageError) as caught:
        migrate_task_to_task_md(split)
    assert caught.value.code == "already-native"
    assert (split / "task.md").read_text() == "mine"
    migrate_task_to_task_md(split, overwrite=True)
    assert load_package(split).valid
    before = look(native)
    with pytest.raises(PackageError):
        migrate_task_to_task_md(native, overwrite=True)
    assert look(native) == before


@pytest.mark.parametrize(
    ("name", "content", "file"),
    [
        ("task.toml", "a = ", "task.toml"),
        ("task.toml", "[agent]\ntimeout_sec = -1\n", "task.toml"),
        ("instruction.md", None, "instruction.md"),
        ("instruction.md", b"\xff\xfe", "instruction.md"),
    ],
)
def test_a_refused_folder_is_left_as_it_was(split, tree, look, name, content, file):
    if content is None:
        (split / name).unlink()
    else:
        tree(split, {name: content})
    before = look(split)
    with pytest.raises(PackageError) as caught:
        migrate_task_to_task_md(split, remove_legacy=True)
    assert caught.value.file == file
    assert look(split) == before


def test_a_folder_that_is_no_task_is_wrong_usage(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError):
            migrate_task_to_task_md(path)


def test_the_rendered_text_is_a_document_of_its_own(split):
    document = TaskDocument.from_text(render_task_md_from_legacy(split))
    assert document.config.task.name == "acme/split"
    assert not (split / "task.md").exists()
