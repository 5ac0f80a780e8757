"""Heavy per-task data on disk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cube.task import info_file, read_info, write_info


def test_what_is_written_is_read(tmp_path):
    data = {"text": "ä\n", "list": [1, {"a": None}]}
    path = write_info(tmp_path / "new", "group/task", data)
    assert path == tmp_path / "new" / "group" / "task.json"
    assert read_info(tmp_path / "new", ("group/task",)) == data
    assert [entry.name for entry in path.parent.iterdir()] == ["task.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_first_id_with_data_counts(tmp_path):
    write_info(tmp_path, "task", {"a": 1})
    assert read_info(tmp_path, ("bench/task", "task")) == {"a": 1}


def test_missing_data_tells_the_command_to_run(tmp_path):
    with pytest.raises(RuntimeError, match=r"No execution data for task_id='bench/task'.*cube install"):
        read_info(tmp_path, ("bench/task", "task"))


@pytest.mark.parametrize(
    ("content", "reason"), [("{", "is damaged"), ("[]", "must contain a JSON object"), (b"\xff", "damaged")]
)
def test_damaged_data_is_named_with_its_file(tmp_path, content, reason):
    (tmp_path / "task.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RuntimeError, match=rf"task\.json.*{reason}"):
        read_info(tmp_path, ("task",))


def test_an_id_that_is_too_long_for_a_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="exceeds 250 bytes"):
        write_info(tmp_path, "group/" + "ä" * 126, {})
    assert write_info(tmp_path, "x" * 250, {}).is_file()


@pytest.mark.parametrize("task_id", ["", "..", "../x", "a/../../x", "/etc/passwd", "a\0b", "..\\x", "."])
def test_an_id_that_would_leave_the_folder_is_refused(tmp_path, task_id):
    for act in (lambda: read_info(tmp_path, (task_id,)), lambda: write_info(tmp_path, task_id, {})):
        with pytest.raises(ValueError, match="outside the cache folder"):
            act()


def test_data_that_json_does_not_know_leaves_nothing_behind(tmp_path):
    with pytest.raises(TypeError):
        write_info(tmp_path, "task", {"a": object()})
    assert list(tmp_path.iterdir()) == []


@given(st.text(max_size=30))
def test_any_id_is_refused_or_stays_inside(tmp_path_factory, task_id):
    folder = tmp_path_factory.getbasetemp() / "cache"
    try:
        path = info_file(folder, task_id)
    except ValueError:
        return
    assert path.resolve().is_relative_to(folder.resolve())
