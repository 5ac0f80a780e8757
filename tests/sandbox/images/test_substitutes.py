"""What a substitute lacks is found from the name of the image, the commands of the Dockerfile and the files."""

import pytest

from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.images.image_registry import ImageRecord
from benchflow.sandbox.images.layer_tree import LayerTree
from benchflow.sandbox.images.substitutes import lacking


@pytest.fixture
def tree(tmp_path):
    """A Debian 12 with Python 3.11 and Node 18."""
    programs = tmp_path / "usr/bin"
    programs.mkdir(parents=True)
    for name in ("apt-get", "python3.11", "pip", "node", "npm"):
        (programs / name).write_text("")
    (programs / "python3").symlink_to("python3.11")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text("Package: nodejs\nStatus: ok\nVersion: 18.20.4+dfsg-1\n\n")
    return LayerTree([tmp_path])


@pytest.mark.parametrize(
    ("image", "phrases"),
    [
        ("python:3.11-slim", ()),
        ("python", ()),
        ("python:3.12-slim", ("python 3.12 asked, substitute has 3.11",)),
        ("example.org/x/python-3-13:20250620", ("python 3.13 asked, substitute has 3.11",)),
        ("node:18", ()),
        ("node:20-slim", ("node 20 asked, substitute has 18",)),
        ("debian:bookworm-slim", ()),
        ("debian:13", ("debian 13 asked, substitute is debian 12",)),
        ("ubuntu:24.04", ("ubuntu 24.04 asked, substitute is debian 12",)),
        ("example.org/x/ubuntu-24-04:20250624", ("ubuntu 24.04 asked, substitute is debian 12",)),
        ("golang:1.22", ("go is missing",)),
        ("eclipse-temurin:17-jdk", ("java is missing", "javac is missing")),
        ("acme/tool:3@sha256:00", ()),
    ],
)
def test_versions_and_programs_of_the_image_are_compared(tree, image, phrases):
    assert lacking(image, (), tree) == phrases


def test_a_package_manager_that_the_dockerfile_uses_is_looked_for(tree):
    runs = ["apt-get update && apt-get install -y curl", "apk add --no-cache git; yum install x", "echo dnf"]
    assert lacking("acme/tool:3", runs, tree) == ("apk is missing", "yum is missing")


def test_a_tree_without_anything_lacks_everything(tmp_path):
    assert lacking("ubuntu:22.04", ["apt-get update"], LayerTree([tmp_path])) == (
        "ubuntu 22.04 asked, substitute is unknown",
        "apt-get is missing",
    )


def test_the_longest_pattern_names_the_stand_in_also_for_other_registries(registry):
    registry.save(ImageRecord("base-a:1", (), ImageConfig(), "test", "now", 0, ("python:*", "debian:*")))
    registry.save(ImageRecord("base-b:1", (), ImageConfig(), "test", "now", 0, ("python:3.13*",)))
    found = {
        name: getattr(registry.stand_in(name), "name", None)
        for name in ("python", "docker.io/library/python:3.13-slim", "mirror.example/library/python:3.9", "cpython:3")
    }
    assert list(found.values()) == ["base-a:1", "base-b:1", "base-a:1", None]
    assert registry.get("base-b:1").stands_for == ("python:3.13*",)
