"""What a .dockerignore leaves out."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.dockerfile.dockerignore import ignore_rules, parse_dockerignore


@pytest.mark.parametrize(
    ("text", "path", "ignored"),
    [
        ("", "a", False),
        ("a", "a", True),
        ("a", "a/b/c", True),
        ("a", "b/a", False),
        ("/a", "a", True),
        ("a/", "a/x", True),
        ("./a", "a", True),
        ("a/../b", "b", True),
        ("*.log", "x.log", True),
        ("*.log", "d/x.log", False),
        ("*/*.log", "d/x.log", True),
        ("**/*.log", "x.log", True),
        ("**/*.log", "a/b/x.log", True),
        ("**/x", "a/x/y", True),
        ("**", "anything/at/all", True),
        ("a/**", "a", False),
        ("a/**", "a/b/c", True),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/b/b/c", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[ab].txt", "a.txt", True),
        ("[ab].txt", "c.txt", False),
        ("[^ab].txt", "c.txt", True),
        ("[a-c]", "b", True),
        ("[^a]", "/", False),
        (r"\*", "*", True),
        (r"\*", "x", False),
        ("# comment\na", "a", True),
        ("# comment\na", "# comment", False),
        (" a ", "a", True),
        ("*\n!keep", "keep", False),
        ("*\n!keep", "keep/inner", False),
        ("*\n!keep", "other", True),
        ("!keep\n*", "keep", True),
        ("a\n!a/b", "a/b/c", False),
        ("a\n!a/b", "a/c", True),
        ("a\n!a/b\na/b/c", "a/b/c", True),
        ("*.md\n!README*.md\nREADME-secret.md", "README-secret.md", True),
        ("*.md\n!README*.md\nREADME-secret.md", "README.md", False),
        ("a.b", "axb", False),
        ("a+b", "aab", False),
    ],
)
def test_a_path_is_ignored_by_the_last_pattern_that_matches_it_or_a_parent(text, path, ignored):
    assert parse_dockerignore(text).ignores(path) is ignored


@pytest.mark.parametrize("text", ["ok\n!", "[ab", "ends\\", "[z-a]"])
def test_a_pattern_that_means_nothing_is_refused_with_its_line(text):
    with pytest.raises(EnvironmentFailure) as caught:
        parse_dockerignore(text)
    assert caught.value.line == len(text.splitlines())
    assert caught.value.file == ".dockerignore"


names = st.text(st.sampled_from("ab.-_ é+$("), min_size=1, max_size=4).filter(lambda s: s.strip(". ") == s and s)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@given(paths, paths)
def test_a_plain_name_ignores_itself_and_what_is_below_and_nothing_else(pattern, path):
    below = path == pattern or path.startswith(pattern + "/")
    assert ignore_rules([pattern]).ignores(path) is below


@given(st.text(max_size=20))
def test_any_text_gives_rules_or_one_clear_error(text):
    with suppress(EnvironmentFailure):
        assert parse_dockerignore(text).ignores("a/b") in (True, False)
