"""`bench images`: register, list, remove."""

import json
import tarfile

import pytest

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.protocol import BackendStatus


@pytest.fixture
def images(bench, tmp_path):
    def run(*arguments):
        return bench("images", *arguments, env={"BENCHCUBE_STORE": str(tmp_path / "store")})

    return run


@pytest.fixture
def rootfs(tmp_path):
    folder = tmp_path / "root"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "tool").write_text("x" * 1500)
    return folder


def test_a_root_folder_is_added_listed_and_removed(images, rootfs):
    added = images("add", "docker.io/library/mine", "--rootfs", rootfs, "--json")
    assert (added.returncode, added.stderr) == (0, "")
    record = json.loads(added.stdout)
    assert (record["name"], record["size"]) == ("mine:latest", 1500)
    listed = images("list")
    assert listed.stdout.startswith("mine:latest")
    assert "2 kB" in listed.stdout
    assert json.loads(images("list", "--json").stdout)["images"] == [record]
    assert images("remove", "mine").returncode == 0
    assert json.loads(images("list", "--json").stdout) == {"images": []}


def test_a_tar_is_added_in_words(images, rootfs, tmp_path):
    with tarfile.open(tmp_path / "root.tar.gz", "w:gz") as file:
        file.add(rootfs, arcname=".")
    added = images("add", "mine:1", "--rootfs", tmp_path / "root.tar.gz")
    assert added.returncode == 0
    assert added.stdout.startswith("mine:1  sha256:")
    assert "1 layer" in added.stdout


@pytest.fixture
def engines(monkeypatch):
    """Engines of which only some answer; gives the list of those that were asked for an image, and fail."""
    asked = []

    def set_up(*usable):
        class Engine:
            def __init__(self, name):
                self.name = name

            async def status(self):
                works = self.name in usable
                reason = None if works else f"{self.name} does not answer."
                return BackendStatus(self.name, works, reason, frozenset())

            async def close(self):
                pass

        async def save(registry, name, engine):
            asked.append(engine)
            raise EnvironmentFailure(f"{engine} save {name} exited with code 125:\nError: {name}: not known\x07")

        monkeypatch.setattr("benchflow.sandbox.backends.load_backend", Engine)
        monkeypatch.setattr("benchflow.sandbox.images.image_sources.add_from_engine", save)
        return asked

    return set_up


def test_the_engine_that_runs_is_asked_and_what_it_says_is_readable(invoke, engines):
    asked = engines("podman")
    code, out, err = invoke("images", "add", "x", "--engine")
    assert (code, out, asked) == (1, "", ["podman"])
    assert err == "bench: podman save x exited with code 125:\n  Error: x: not known\\x07\n"


@pytest.mark.parametrize("chosen", [[], ["docker"]])
def test_an_engine_that_does_not_run_is_told_in_one_sentence(invoke, engines, chosen):
    asked = engines(*(["podman"] if chosen else []))
    code, _, err = invoke("images", "add", "x", "--engine", *chosen)
    assert (code, asked) == (1, [])
    assert "No container engine is usable: docker does not answer." in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["add", "x"], "exactly one"),
        (["add", "x", "--rootfs", "/nowhere", "--oci", "/nowhere"], "exactly one"),
        (["add", "x", "--rootfs", "/nowhere"], "does not exist"),
        (["add", "x", "--oci", "/nowhere"], "does not exist"),
        (["add", "NOT A NAME", "--rootfs", "/"], "not an image name"),
        (["add", "x", "--engine", "lxc"], "Unknown engine"),
        (["add"], "NAME"),
        (["remove", "nobody"], "Unknown image nobody"),
        (["remove"], "NAME"),
    ],
)
def test_wrong_usage_is_refused_with_2_and_changes_nothing(images, tmp_path, arguments, part):
    result = images(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert part in result.stderr
    assert not (tmp_path / "store" / "images").exists()


def test_an_empty_list_says_what_to_do(images):
    assert "bench images add" in images("list").stdout


def test_a_bad_archive_ends_with_1_and_one_sentence(images, tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"no tar" * 1000)
    result = images("add", "x", "--rootfs", tmp_path / "bad.tar")
    assert result.returncode == 1
    assert result.stderr.startswith("bench: The archive cannot be read")
    assert "Traceback" not in result.stderr
