"""Packages whose images are in a registry run as their authors wrote them; what they pin and declare is honoured."""

import json
import os
import shutil
from pathlib import Path

import pytest

import loaded_commands
from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.pulling import ANY_IMAGE, PullSettings
from benchflow.sandbox.task_policy import package_pulls
from benchflow.task.package import load_package

BUSYBOX = shutil.which("busybox") or "/bin/busybox"


def write_package(folder, image, namespace=""):
    text = f"---\nschema_version: '1.3'\ntask: {{name: t/pulled}}\n{namespace}---\n\nWrite done into answer.txt.\n"
    files = {
        "task.md": text,
        "environment/Dockerfile": f"FROM {image}\nRUN echo built > /built\nWORKDIR /app\n",
        "oracle/solve.sh": "#!/bin/sh\necho done > answer.txt\n",
        "verifier/test.sh": "#!/bin/sh\nread word < answer.txt\nread made < /built\n"
        'reward=0\n[ "$word $made" = "done built" ] && reward=1\necho $reward > /logs/verifier/reward.txt\n',
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    return folder


def bench(tmp_path, *arguments):
    env = {**os.environ, "BENCHCUBE_STORE": str(tmp_path / "store")}
    done = loaded_commands.bench(*arguments, env=env, cwd=tmp_path, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.sandbox
def test_a_package_on_an_image_of_a_registry_runs_with_its_oracle_and_records_the_digest(served, layer, tmp_path):
    program = Path(BUSYBOX).read_bytes()
    programs = {f"bin__{name}": program for name in ("sh", "mkdir", "cat", "id", "chown")}
    pushed = served.push("base", layer(**programs), Env=["PATH=/bin"])
    package = write_package(tmp_path / "package", served.name("base"))
    code, output, notes = bench(tmp_path, "run", str(package), "--sandbox", "local", "--json")
    result = json.loads(output)
    assert (code, result["reward"]) == (0, 1.0), notes + output
    assert result["sandbox"]["fidelity"] == "built"
    assert result["sandbox"]["base"] == served.name("base")
    assert result["sandbox"]["base_digest"] == pushed["digest"]
    assert f"pulled {served.name('base')}" in notes

    code, output, _ = bench(tmp_path, "run", str(package), "--sandbox", "local", "--pull", "never", "--json")
    assert (code, json.loads(output)["reward"]) == (0, 1.0)
    missing = write_package(tmp_path / "missing", served.name("other"))
    code, output, _ = bench(tmp_path, "run", str(missing), "--sandbox", "local", "--pull", "never", "--json")
    assert code == 1
    assert "`--pull never` forbids" in json.loads(output)["error"]["message"]


@pytest.mark.slow
def test_images_are_pulled_by_name_and_failures_are_reported_beside_what_worked(served, layer, tmp_path):
    pushed = served.push("named", layer(a="a"))
    names = [served.name("named"), served.name("absent")]
    code, output, notes = bench(tmp_path, "images", "pull", *names, "--json")
    found = json.loads(output)
    assert code == 1
    assert [image["manifests"] for image in found["images"]] == [[pushed["digest"]]]
    assert [(item["name"], item["code"]) for item in found["failed"]] == [(names[1], "image-missing")]
    assert "pulled" in notes
    assert bench(tmp_path, "images", "pull", "Not A Name")[0] == 2
    assert bench(tmp_path, "images", "pull", names[0], "--platform", "windows")[0] == 2


NAMESPACE = """benchflow:
  provenance:
    images: [{reference: 'r.io/x:1', digest: 'sha256:DIGEST', credential_secret_ref: pull}]
  secrets: [{name: pull, scope: image-pull, env: PULL_TOKEN, visibility: runtime_secret, never_persist: true}]
""".replace("DIGEST", "a" * 64)


def test_pins_and_secrets_of_a_package_decide_how_its_images_are_pulled(tmp_path):
    view = load_package(write_package(tmp_path / "p", "r.io/x:1", NAMESPACE)).view
    found = package_pulls(view, PullSettings("always"), {"PULL_TOKEN": "ann:secret"})
    assert found.policy == "always"
    assert dict(found.pins) == {"r.io/x:1": "sha256:" + "a" * 64}
    assert dict(found.credentials) == {"r.io/x:1": "ann:secret"}
    assert "secret" not in repr(found)
    assert package_pulls(view, PullSettings(), {}).unset == ("PULL_TOKEN",)


def test_a_secret_that_no_image_refers_to_is_for_the_declared_images_that_have_none(tmp_path):
    namespace = NAMESPACE.replace("images: [", "images: [{reference: 'r.io/y:1'}, ")
    namespace = namespace.replace("secrets: [", "secrets: [{name: LOOSE, scope: image-pull}, ")
    namespace += "environment: {docker_image: 'r.io/z:1'}\n"
    view = load_package(write_package(tmp_path / "p", "r.io/x:1", namespace)).view
    found = package_pulls(view, PullSettings(), {"PULL_TOKEN": "ann:secret", "LOOSE": "bob:other"})
    assert dict(found.credentials) == {"r.io/x:1": "ann:secret", "r.io/y:1": "bob:other", "r.io/z:1": "bob:other"}


def test_two_secrets_that_no_image_refers_to_are_refused(tmp_path):
    namespace = "benchflow:\n  secrets: [{name: A, scope: image-pull}, {name: B, scope: image-pull}]\n"
    view = load_package(write_package(tmp_path / "p", "r.io/x:1", namespace)).view
    with pytest.raises(EnvironmentFailure, match="the secrets A, B of scope image-pull") as caught:
        package_pulls(view, PullSettings(), {})
    assert caught.value.code == "secret-ambiguous"


def test_where_no_image_is_declared_a_secret_is_for_all_of_them(tmp_path):
    namespace = "benchflow:\n  secrets: [{name: PULL, scope: image-pull}]\n"
    view = load_package(write_package(tmp_path / "p", "r.io/x:1", namespace)).view
    assert dict(package_pulls(view, PullSettings(), {"PULL": "ann:secret"}).credentials) == {ANY_IMAGE: "ann:secret"}


def test_a_secret_that_is_not_declared_for_pulling_is_refused(tmp_path):
    namespace = NAMESPACE.replace("scope: image-pull", "scope: agent")
    view = load_package(write_package(tmp_path / "p", "r.io/x:1", namespace)).view
    with pytest.raises(EnvironmentFailure, match="is not a secret of scope image-pull"):
        package_pulls(view, PullSettings(), {})
