"""Which `package.json` of an agent would break how Node loads the hook, and what is done then."""

from __future__ import annotations

import pytest

from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change, SandboxSpec
from benchflow.verifier.lookups import NODE_HOOK, with_hook
from benchflow.verifier.surviving.node_packages import candidates, is_harmless

NOTHING = PathSet()
SPEC = SandboxSpec(workdir="/app", env={"NODE_OPTIONS": "--require=dotenv/config --no-warnings -r /opt/start.cjs"})


def added(path: str, kind: str = "file", target: str | None = None) -> Change:
    return Change(path, "added", kind, target=target)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ['{"name": "@a/b"}', "{}", '{"name": "b", "name": "c", "exports": "./x.js"}'])
def test_an_ordinary_package_is_harmless(text):
    assert is_harmless(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{broken",
        b"[]",
        b"NaN",
        b"[" * 60000,
        b" " * 70000 + b"{}",
        b'{"a": "\xff"}',
    ],
    ids=lambda text: repr(text[:16]),
)
def test_one_that_cannot_be_judged_is_not(text):
    assert not is_harmless(text)


def test_installed_packages_are_read_only_if_a_link_leads_to_them():
    files = [added("/app/package.json"), added("/app/node_modules/x/package.json")]
    assert candidates(files, NOTHING) == ["/app/package.json"]
    assert candidates([*files, added("/app/t", "symlink", "./node_modules/x")], NOTHING) == [
        "/app/package.json",
        "/app/node_modules/x/package.json",
    ]
    inside = added("/app/node_modules/.bin/x", "symlink", "../x/node_modules/y")
    assert candidates([*files, inside], PathSet(["/app/package.json"])) == []


def test_the_environments_own_options_of_node_stay():
    own = SPEC.env["NODE_OPTIONS"]
    assert with_hook({}, SPEC)["NODE_OPTIONS"] == f"--require={NODE_HOOK} {own}"
    misled = with_hook({}, SPEC, misleads_node=True)
    assert misled["NODE_OPTIONS"] == f"--import=file://{NODE_HOOK} --no-warnings"
    assert misled["VERIFIER_GROUND_REQUIRE"] == "dotenv/config /opt/start.cjs"
