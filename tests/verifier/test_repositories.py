"""Settings of repositories: what cannot run or redirect anything stays, all else is the environment's."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change
from benchflow.verifier.shared_box import Survivors
from benchflow.verifier.surviving import node_packages, repositories
from benchflow.verifier.surviving.repositories import Setting, candidates, is_harmless, plain_settings, rendered
from benchflow.verifier.surviving.survival import Rules

CONFIG = "/app/.git/config"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("core.bare", "false"),
        ("user.name", "A"),
        ("remote.origin.url", "https://example.org/x.git"),
        ("remote.origin.url", "git@example.org:x.git"),
        ("remote.a.b.fetch", "+refs/heads/*:refs/remotes/a.b/*"),
        ("branch.main.remote", "origin"),
        ("extensions.worktreeconfig", "true"),
        ("submodule.x.url", "../x"),
    ],
)
def test_settings_of_everyday_work_stay(key, value):
    assert is_harmless(Setting(key, value), CONFIG, "/app")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("core.fsmonitor", "x"),
        ("core.hookspath", "x"),
        ("core.sshcommand", "x"),
        ("core.pager", "x"),
        ("core.editor", "x"),
        ("core.worktree", "/logs/verifier"),
        ("core.worktree", "../../logs"),
        ("core.worktree", ""),
        ("alias.st", "!x"),
        ("diff.external", "x"),
        ("diff.zz.textconv", "x"),
        ("diff.zz.command", "x"),
        ("filter.zz.clean", "x"),
        ("filter.zz.process", "x"),
        ("merge.zz.driver", "x"),
        ("include.path", "x"),
        ("includeif.gitdir:/app/.path", "x"),
        ("remote.origin.url", "ext::sh -c x"),
        ("remote.origin.url", "-x"),
        ("remote.origin.uploadpack", "x"),
        ("remote.origin.vcs", "x"),
        ("branch.main.remote", "ext::x"),
        ("submodule.x.update", "!x"),
        ("gpg.program", "x"),
        ("credential.helper", "x"),
        ("url.ext::x.insteadof", "https://"),
        ("protocol.ext.allow", "always"),
        ("trailer.x.command", "x"),
        ("core.alternaterefscommand", "x"),
        ("uploadpack.packobjectshook", "x"),
    ],
)
def test_settings_that_run_or_redirect_something_do_not(key, value):
    assert not is_harmless(Setting(key, value), CONFIG, "/app")


def test_a_submodule_may_say_where_its_files_are():
    assert is_harmless(Setting("core.worktree", "../../../x"), "/app/.git/modules/x/config", "/app")


def test_files_of_that_name_are_candidates_unless_they_are_withheld():
    changes = [
        Change(CONFIG, "added", "file"),
        Change("/app/b.git/config", "changed", "symlink"),
        Change("/app/config", "added", "directory"),
    ]
    assert [change.path for change in candidates(changes, PathSet())] == [CONFIG, "/app/b.git/config"]
    assert candidates(changes, PathSet(["/app"])) == []


_TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r\v\f"), max_size=12)


@given(st.lists(st.tuples(st.text('abcXY."\\ é', max_size=6), st.one_of(st.none(), _TEXT)), max_size=5))
def test_what_is_written_is_what_git_reads(tmp_path_factory, pairs):
    settings = [Setting(f"remote.{one}.url" if one else "user.name", value) for one, value in pairs]
    place = tmp_path_factory.mktemp("git") / "config"
    place.write_text(rendered(settings), encoding="utf-8", newline="")
    words = ["git", "config", "--file", place, "--no-includes", "--null", "--list"]
    found = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", check=True).stdout.split("\0")[:-1]
    assert [tuple(item.partition("\n")[::2]) if "\n" in item else (item, None) for item in found] == [
        (item.key, item.value) for item in settings
    ]


_NAMES = st.sampled_from(
    [".git", "CommonDir", "commondir", "Config", "config.worktree", "package.json", "x", "ſ", "node_modules"]
)
_CHANGES = st.builds(
    Change,
    st.lists(_NAMES, min_size=1, max_size=4).map(lambda names: "/app/" + "/".join(names)),
    st.sampled_from(["added", "changed", "deleted"]),
    st.sampled_from(["file", "directory", "symlink"]),
)


@given(st.lists(_CHANGES, max_size=6, unique_by=lambda change: change.path))
def test_everything_that_must_be_settled_in_the_copy_is_chosen_whatever_else_the_agent_changed(changes):
    survivors = Survivors(Rules("/app"))
    left = PathSet(survivors.choose(changes))
    assert survivors.repositories == repositories.candidates(changes, left)
    assert survivors.elsewhere == repositories.elsewhere(changes, left)
    assert survivors.node_packages == node_packages.candidates(changes, left)


SECTIONS = st.sampled_from(
    ["[core]", "[Core]", '[remote "origin"]', "[remote.a]", '[branch "a/b"]', '[a "b\\"c"]', "[x]"]
)
ENTRIES = st.sampled_from(
    ["\tbare = false", "name=A B ", "url = ext::sh", "a", "b =", "c = d # e", 'f = "g"', "h = i\\"]
)
SPACE = st.sampled_from(["", "\t", "; note", "# note", "\u2028", "\x0b", "\r"])


@given(lines=st.lists(st.one_of(SECTIONS, ENTRIES, SPACE, st.text('[]=.-ab"\\ \t;#', max_size=8)), max_size=6))
def test_what_is_read_without_git_is_what_git_reads(tmp_path_factory, lines):
    file, text = tmp_path_factory.mktemp("git") / "config", "\n".join(lines)
    file.write_bytes(text.encode())
    found = plain_settings(text)
    if found is not None:
        words = ("git", "config", "--file", str(file), "--null", "--list")
        listed = subprocess.run(words, capture_output=True, check=True).stdout.decode()
        assert "".join(f"{item.key}\n{item.value}\0" for item in found) == listed


def test_settings_that_git_writes_are_read_without_it(tmp_path):
    commands = (
        ("init", "-q"),
        ("remote", "add", "origin", "https://example.org/a/b.git"),
        ("config", "user.name", "Anna Bell"),
        ("config", "user.email", "a@example.org"),
        ("config", "branch.main.merge", "refs/heads/main"),
    )
    for words in commands:
        subprocess.run(("git", *words), cwd=tmp_path, check=True)
    found = plain_settings((tmp_path / ".git/config").read_text())
    assert found is not None
    assert {"remote.origin.url", "user.name", "branch.main.merge"} <= {item.key for item in found}
    assert all(is_harmless(item, CONFIG, "/app") for item in found)


LATER = "RUN mkdir /usr/share/later && mv /usr/bin/git /usr/share/later/git\n"
"""An environment in which git is installed by the verifier."""
DIFF = """\
#!/bin/bash
cd /app; cp /usr/share/later/git /usr/local/bin/git
git diff --exit-code > /dev/null
grep -q right answer.txt && [ "$(git log --format=%an)$(git remote get-url origin)" = "Anna Bellhttps://example.org/" ]
echo $((! $?)) > /logs/verifier/reward.txt
"""
REPOSITORY = """\
cd /app; git() { /usr/share/later/git "$@"; }
git init -q .; git config user.name 'Anna Bell'; git config user.email a@example.org
git remote add origin https://example.org/
echo right > answer.txt; git add answer.txt; git commit -qm work; git rev-parse HEAD
"""
REDIRECTED = """\
printf '#!/bin/sh\\necho right > /app/answer.txt\\n' > tool; chmod 755 tool
echo wrong > answer.txt; git config diff.external /app/tool
"""


@pytest.mark.anyio
@pytest.mark.sandbox
@pytest.mark.parametrize(("more", "reward"), [("", 1), (REDIRECTED, 0)], ids=["honest", "attack"])
async def test_settings_are_reduced_where_git_is_installed_later(bench, package, more, reward):
    files = {"environment/Dockerfile": f"FROM debian:12\nWORKDIR /app\n{LATER}", "verifier/test.sh": DIFF}
    async with bench(package("verifier: {isolation: shared}\n", files), base_image="host") as it:
        await it.agent(REPOSITORY + more, user="root")
        found = await it.verify()
        assert found.verdict.reward == reward, ((it.output / "test-stdout.txt").read_text(), found)
