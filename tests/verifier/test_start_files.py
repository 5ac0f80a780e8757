"""Files that programs read by themselves, however they are spelled."""

from __future__ import annotations

import pytest

from benchflow.sandbox.protocol import Change
from benchflow.verifier.surviving.survival import Rules, withhold

RULES = Rules("/app")


def reasons(*changes: Change, rules: Rules = RULES) -> dict[str, str]:
    return {item.path: item.reason for item in withhold(changes, rules)}


@pytest.mark.parametrize(
    "path",
    [
        ".Rprofile",
        ".Renviron",
        ".RData",
        "deep/.Rprofile",
        ".npmrc",
        ".yarnrc.yml",
        ".bundle/config",
        ".proverc",
        ".rspec",
        ".cargo/config",
        ".cargo/config.toml",
        "rust-toolchain",
        "go.work",
        "GNUmakefile",
        "makefile",
        ".mvn/jvm.config",
        "META-INF/services/javax.annotation.processing.Processor",
        "jest.config.js",
        "vitest.workspace.ts",
        "vitest.projects.json",
        "phpunit.xml",
        "phpunit.dist.xml",
        ".mocharc.json",
        ".gdbinit",
        "bunfig.toml",
    ],
)
@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_a_file_that_a_program_reads_by_itself_is_as_built(path, kind):
    target = "/app/other" if kind == "symlink" else None
    assert reasons(Change(f"/app/{path}", "added", kind, target=target)) == {f"/app/{path}": "hook"}


@pytest.mark.parametrize("path", [".cargo", ".bundle", ".mvn", "META-INF", "META-INF/services", "node_modules/.bin"])
def test_a_folder_of_such_files_is_not_replaced_by_a_link(path):
    assert reasons(Change(f"/app/{path}", "added", "symlink", target="/app/other")) == {f"/app/{path}": "hook"}


@pytest.mark.parametrize(
    "path",
    [
        "Makefile",
        "src/main.rs",
        "Cargo.toml",
        "go.mod",
        "package.json",
        "META-INF/services/com.example.Codec",
        "config",
        "support/x.py",
    ],
)
def test_ordinary_files_survive(path):
    assert reasons(Change(f"/app/{path}", "added", "file")) == {}


def test_a_file_that_the_task_names_survives():
    rules = Rules("/app", expected=frozenset({".Rprofile", "Makefile"}))
    assert (
        reasons(Change("/app/.Rprofile", "added", "file"), Change("/app/makefile", "added", "file"), rules=rules) == {}
    )


def test_a_program_of_node_modules_does_not_stand_before_one_of_the_environment():
    rules = Rules("/app", programs=frozenset({"cmp"}))
    changes = [Change(f"/app/node_modules/.bin/{name}", "added", "file") for name in ("cmp", "tsc")]
    assert reasons(*changes, rules=rules) == {"/app/node_modules/.bin/cmp": "hook"}


@pytest.mark.parametrize("kind", ["added", "changed"])
@pytest.mark.parametrize(
    "path",
    [
        "/etc/pam.d/common-account",
        "/etc/pam.d/other",
        "/etc/login.defs",
        "/etc/default/su",
        "/etc/os-release",
        "/etc/magic",
    ],
)
def test_what_su_and_scripts_read_of_the_system_is_as_built_where_system_changes_are_kept(path, kind):
    assert reasons(Change(path, kind, "file"), rules=Rules("/app", keep_system=True)) == {path: "startup"}
    linked = Change(path.rpartition("/")[0], kind, "symlink", target="/app/x")
    assert reasons(linked, rules=Rules("/app", keep_system=True)) == {linked.path: "startup"}
