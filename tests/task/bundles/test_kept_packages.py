"""Packages in the cache: whole for everybody who asks for one, however many ask at once."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from benchflow.task.bundles.bundle_index import Member
from benchflow.task.bundles.kept_packages import keep, kept_place

TEXTS = {f"file-{number}": b"whole" * number for number in range(20)}
MEMBERS = [Member(name, "file", len(data), hashlib.sha256(data).hexdigest()) for name, data in TEXTS.items()]
CONTENTS = [(member, TEXTS[member.path]) for member in MEMBERS]
AT_ONCE = 4


@pytest.mark.parametrize("before", ["nothing", "damaged"])
@pytest.mark.parametrize("_round", range(5))
def test_one_of_those_who_find_a_package_missing_or_damaged_makes_it_and_no_other_removes_that(before, _round):
    folder = kept_place("task", MEMBERS)
    if before == "damaged":
        keep("task", MEMBERS, lambda: CONTENTS)
        (folder / "file-3").write_bytes(b"else")
    all_have_looked = Barrier(AT_ONCE)

    def contents():
        all_have_looked.wait(60)
        return CONTENTS

    def ask(_):
        kept = keep("task", MEMBERS, contents)
        return kept, kept.stat().st_ino

    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = set(threads.map(ask, range(AT_ONCE)))
    assert len(found) == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == TEXTS
    assert [path.name for path in folder.parent.parent.iterdir()] == [folder.parent.name]
