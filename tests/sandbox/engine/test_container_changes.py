"""What an engine says about changes, in the protocol's words."""

from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.engine.box.file_records import Record
from benchflow.sandbox.engine.container_changes import lay_over, make_changes, parse_diff, with_touched, without

PATHS = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))


def test_a_name_that_the_engine_cannot_tell_is_a_change_that_cannot_be_judged() -> None:
    [change] = make_changes({"/app/bad\ufffd": "added", "/app/gone": "added"}, [])
    assert (change.path, change.type) == ("/app/bad\ufffd", "special")


def test_names_with_line_ends_are_read_whole() -> None:
    found = parse_diff("A /app/one\ntwo\nA /app/three\u2028four\rfive\nC /etc\n")
    assert found == {"/app/one\ntwo": "added", "/app/three\u2028four\rfive": "added", "/etc": "changed"}


def test_what_the_engine_put_there_and_mounts_are_left_out():
    text = "A /.dockerenv\nC /etc\nC /etc/hosts\nA /dev/x\nA /app/x\nD /opt/y\nA /tests/z\n"
    assert parse_diff(text, ["/tests"]) == {"/etc": "changed", "/app/x": "added", "/opt/y": "deleted"}


def test_a_touched_file_that_the_engine_does_not_list_is_changed():
    kinds = {"/app/x": "added", "/opt/y": "deleted"}
    touched = ["/app/x", "/usr/lib/python3/json.py", "/etc/hosts", "/dev/shm/x", "/tests/z"]
    assert with_touched(kinds, touched, ["/tests"]) == {**kinds, "/usr/lib/python3/json.py": "changed"}


def test_a_folder_counts_when_it_is_new_and_not_when_something_in_it_is():
    kinds = {"/etc": "changed", "/new": "added", "/etc/f": "changed", "/gone": "deleted"}
    records = [Record("d", "/etc"), Record("d", "/new"), Record("f", "/etc/f", 7), Record("-", "/other")]
    found = [(change.path, change.kind, change.type, change.size) for change in make_changes(kinds, records)]
    assert found == [
        ("/etc/f", "changed", "file", 7),
        ("/gone", "deleted", "file", 0),
        ("/new", "added", "directory", 0),
    ]


def test_a_fork_forgets_what_it_undid_and_remembers_the_rest():
    origin = {"/added": "added", "/changed": "changed", "/gone": "deleted", "/dir": "added", "/dir/x": "added"}
    later = {"/added": "deleted", "/changed": "deleted", "/gone": "added", "/dir": "deleted"}
    assert lay_over(origin, later) == {"/changed": "deleted", "/gone": "changed"}


@given(st.dictionaries(PATHS, st.sampled_from(["added", "changed"])))
def test_nothing_laid_over_changes_nothing(kinds):
    assert lay_over(kinds, {}) == kinds
    assert lay_over({}, kinds) == kinds


def test_places_are_left_out_with_all_below():
    assert without({"/a": "added", "/a/b": "added", "/ab": "added"}, ["/a"]) == {"/ab": "added"}
