"""Which targets of makefiles are actions, for which no file of the agent may stand."""

from __future__ import annotations

import pytest

from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change, Rights
from benchflow.verifier.surviving.makefiles import actions, actions_of, made_by, of_the_future, phony, stand_for


@pytest.mark.parametrize(
    "text",
    [
        "check:\n\tpytest\n",
        "all: check\ncheck: unit\nunit:\n\t./run check\n",
        "check : ; cmp one two\n",
        "check other:: prog\n\tgo test ./...\n",
        "check: \\\n  prog\n\t./prog\n",
        "check: export X = 1\ncheck:\n\ttrue\n",
        "cat > Makefile <<EOF\ncheck:\n\ttrue\nEOF\n",
    ],
)
def test_a_target_that_its_recipe_does_not_make_is_an_action(text):
    assert "check" in actions(text)


@pytest.mark.parametrize(
    "text",
    [
        "prog: prog.c\n\tcc -o $@ $<\n",
        "prog: prog.c\n\tcc prog.c -o prog\n",
        "prog:\n\tgo build -o ./prog .\n",
        "prog:\n\techo x > prog\n",
        "prog:\n\tmkdir -p prog\n",
        "prog: a\n\n\tcp a prog\n",
        "prog = 1\nother := prog: x\n",
        "# prog: x\n\tprog: x\n",
        "%prog: x\n\ttrue\n$(prog): x\n\ttrue\n.prog: x\n\ttrue\n",
    ],
)
def test_a_target_that_is_made_stays_a_file(text):
    assert "prog" not in actions(text)


def test_paths_and_folders_of_tools_stay_files():
    assert actions("node_modules: package.json\n\tnpm ci\nout/x:\n\trun\nx.o: x.c\n\tcc -c x.c\n") == frozenset()


def test_makefiles_are_found_in_every_file_of_a_verifier(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/rules.txt").write_text("check:\n\ttrue\n")
    (tmp_path / "test.py").write_text("if True:\n    pass\n")
    assert actions_of((tmp_path,)) == {"check"}


def test_the_targets_are_declared():
    assert phony({"two", "one"}) == b".PHONY: one two\n"


def test_files_of_the_agent_do_not_stand_for_what_the_verifier_makes(tmp_path):
    rules = (
        "all: out/x.ok\nout/x.ok: a.txt\n\tcheck && touch $@\n%.o: %.c\n\tcc -c $<\n%:\n\ttrue\nnone: x\n.PHONY: all\n"
    )
    (tmp_path / "Makefile").write_text(rules)
    (tmp_path / "test.py").write_text("if x:\n\tpass\n")
    left = [Change(f"/app/{name}", "added", "file") for name in ("out/x.ok", "x.ok", "sub/y.o", "x", "none", "mine.o")]
    changed = Change("/app/z.o", "changed", "file")
    found = stand_for([*left, changed], made_by((tmp_path,)), {"mine.o"})
    assert [change.path for change in found] == ["/app/out/x.ok", "/app/sub/y.o"]
    assert stand_for(left, made_by((tmp_path / "none",)), ()) == []


def test_files_that_are_or_may_be_of_the_future_are_known():
    times = {"old": Rights(0o644, 0, 0, 1), "new": Rights(0o644, 0, 0, 3), "unknown": None}
    changes = [Change(f"/app/{name}", "added", "file", rights=rights) for name, rights in times.items()]
    assert of_the_future(changes, PathSet(), 2.0) == ["/app/new", "/app/unknown"]
    assert of_the_future(changes, PathSet(["/app"]), 2.0) == []


def test_folders_lose_times_of_the_future_too_and_links_have_those_of_their_targets():
    ahead = Rights(0o755, 0, 0, 3)
    changes = [Change(f"/app/{kind}", "added", kind, rights=ahead) for kind in ("directory", "symlink")]
    assert of_the_future(changes, PathSet(), 2.0) == ["/app/directory"]
