"""`bench sandboxes`: what works here, in words and as JSON."""

import json

import pytest

from benchflow.sandbox.protocol import CAPABILITIES


def test_every_backend_is_listed_with_what_it_can_and_lacks(bench, tmp_path):
    result = bench("sandboxes", "--json", env={"BENCHCUBE_STORE": str(tmp_path / "store")})
    assert (result.returncode, result.stderr) == (0, "")
    found = {item["name"]: item for item in json.loads(result.stdout)["sandboxes"]}
    assert list(found)[:3] == ["local", "docker", "podman"]
    for item in found.values():
        assert set(item) == {"name", "usable", "reason", "capabilities", "missing", "notes"}
        assert item["usable"] is (item["reason"] is None)
        assert set(item["capabilities"]) <= set(CAPABILITIES)
        assert item["capabilities"] == sorted(item["capabilities"])
        for missing in item["missing"]:
            assert missing["how"]
            assert missing["capability"] not in item["capabilities"]


def test_the_words_say_the_same(bench, tmp_path):
    result = bench("sandboxes", env={"BENCHCUBE_STORE": str(tmp_path / "store")})
    assert result.returncode == 0
    for name in ("local", "docker", "podman"):
        assert f"{name}: " in result.stdout


PLUGIN = """
from benchflow.testing import InMemoryBackend

class Silent(InMemoryBackend):
    name = "silent"

    async def status(self):
        raise RuntimeError("no route to the cloud")

class Other(InMemoryBackend):
    name = "another"
"""


@pytest.fixture
def plugins(tmp_path):
    """The environment of a command that finds sandbox plugins: one of a built-in name, and broken ones."""
    site = tmp_path / "site"
    info = site / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[benchflow.sandboxes]\n"
        "local = broken_plugin:Silent\nsilent = broken_plugin:Silent\nother = broken_plugin:Other\ngone = no_such:It\n"
    )
    (site / "broken_plugin.py").write_text(PLUGIN)
    return {"PYTHONPATH": str(site), "BENCHCUBE_STORE": str(tmp_path / "store")}


def test_a_plugin_of_a_built_in_name_is_reported(bench, plugins):
    result = bench("sandboxes", env=plugins)
    assert result.returncode == 0
    assert result.stderr == (
        "warning: The sandbox plugin 'local' (broken_plugin:Silent) is ignored: the name is built in. "
        "Rename its entry point.\n"
    )


REFUSED = {
    "gone": "(no_such:It) cannot be loaded: ModuleNotFoundError: No module named 'no_such'.",
    "other": "(broken_plugin:Other) has the name 'another'; set its class attribute `name` to 'other'.",
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_command_refuses_a_broken_plugin_in_the_same_words_and_writes_nothing(
    bench, plugins, make_package, tmp_path, name
):
    said = f"The sandbox plugin '{name}' {REFUSED[name]}"
    package = make_package()
    (package / "environment" / "Dockerfile").unlink()
    for command in (["tasks", "check"], ["tasks", "show"], ["run"], ["verify"], ["eval", "run", "--agent", "nop"]):
        refused = bench(*command, package, "--sandbox", name, env=plugins)
        assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", f"bench: {said}\n"), command
    assert not (tmp_path / "jobs").exists()
    shown = bench("sandboxes", "--json", env=plugins)
    assert [item["reason"] for item in json.loads(shown.stdout)["sandboxes"] if item["name"] == name] == [said]


def test_a_status_that_raises_is_reported_with_its_reason(bench, plugins, make_package):
    package = make_package()
    (package / "environment" / "Dockerfile").unlink()
    failed = bench("run", package, "--sandbox", "silent", "--json", env=plugins)
    assert failed.returncode == 1
    error = json.loads(failed.stdout)["error"]
    assert (error["category"], error["code"]) == ("infrastructure", "sandbox-unusable")
    assert error["message"] == (
        "The sandbox silent is not usable: Its status() failed: RuntimeError: no route to the cloud."
    )
