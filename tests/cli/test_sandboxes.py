"""`bench sandboxes`: what works here, in words and as JSON."""

import json

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
