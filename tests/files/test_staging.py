"""A folder appears whole or not at all."""

import pytest

from benchflow.files import staged_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class InterruptedBlockError(Exception):
    pass


def fill(folder, text):
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text(text)


def fail_after_filling(folder):
    fill(folder, "x")
    raise InterruptedBlockError


def fill_as_another(out):
    out.mkdir()
    (out / "other").write_text("theirs")


def test_a_missing_destination_is_made_with_its_parents(tmp_path):
    out = tmp_path / "a" / "b" / "out"
    with staged_folder(out) as folder:
        fill(folder, "x")
        assert not out.exists()
    assert (out / "sub" / "file").read_text() == "x"
    assert names(out.parent) == ["out"]


def test_an_empty_destination_is_filled(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with staged_folder(out) as folder:
        fill(folder, "x")
    assert (out / "sub" / "file").read_text() == "x"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_or_a_link_in_its_place_is_refused(tmp_path, kind, overwrite):
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    else:
        (tmp_path / "real").mkdir()
        out.symlink_to(tmp_path / "real")
    before = names(tmp_path)
    with pytest.raises(FileExistsError), staged_folder(out, overwrite=overwrite):
        pytest.fail("the block must not run")
    assert names(tmp_path) == before


def test_content_is_replaced_only_when_told(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("old")
    with pytest.raises(FileExistsError), staged_folder(out):
        pytest.fail("the block must not run")
    assert names(out) == ["mine"]
    with staged_folder(out, overwrite=True) as folder:
        fill(folder, "x")
    assert names(out) == ["sub"]
    assert names(tmp_path) == ["out"]


def test_a_block_that_fails_leaves_nothing_and_the_old_content(tmp_path):
    with pytest.raises(InterruptedBlockError), staged_folder(tmp_path / "a" / "out") as folder:
        fail_after_filling(folder)
    assert names(tmp_path) == []
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("old")
    with pytest.raises(InterruptedBlockError), staged_folder(out, overwrite=True) as folder:
        fail_after_filling(folder)
    assert (out / "mine").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_content_that_arrives_meanwhile_is_not_overwritten(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(FileExistsError), staged_folder(out):
        fill_as_another(out)
    assert names(out) == ["other"]
    assert names(tmp_path) == ["out"]


def test_a_parent_that_is_a_file_is_refused_without_traces(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="file"), staged_folder(tmp_path / "file" / "sub" / "out"):
        pytest.fail("the block must not run")
    assert names(tmp_path) == ["file"]
