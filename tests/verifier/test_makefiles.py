"""Which targets of makefiles are actions, for which no file of the agent may stand."""

from __future__ import annotations

import pytest

from benchflow.verifier.surviving.makefiles import actions, actions_of, phony


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
