"""Packages of a few lines for the tests of trainers."""

import pytest


@pytest.fixture
def make_package(tmp_path):
    """A folder with a package whose verifier is this script."""

    def make(verifier="if [ -f answer ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n", name="p", **more):
        folder = tmp_path / name
        (folder / "verifier").mkdir(parents=True)
        keys = "".join(f"{key}: {value}\n" for key, value in more.items())
        (folder / "task.md").write_text(f"---\ntask: {{name: acme/{name}}}\n{keys}---\nWrite the file `answer`.\n")
        (folder / "verifier" / "test.sh").write_text(verifier)
        return folder

    return make
