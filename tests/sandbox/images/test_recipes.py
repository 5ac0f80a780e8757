"""Ready bases: what the machine's own settings reached is in the image, and nothing of the machine."""

import pytest

from benchflow.errors import UsageError
from benchflow.sandbox.images import recipes
from benchflow.sandbox.images.build.bases import missing_image


@pytest.fixture
def root(tmp_path):
    """A root as debootstrap and apt leave it."""
    files = {
        "etc/os-release": "ID=debian\n",
        "etc/apt/sources.list": "deb http://mirror.internal.example/debian bookworm main\n",
        "etc/resolv.conf": "nameserver 192.0.2.1\n",
        "etc/hostname": "build-machine\n",
        "usr/bin/python3": "",
        "usr/lib/python3.11/EXTERNALLY-MANAGED": "",
        "usr/lib/python3.11/os.py": "",
        "usr/lib/python3.11/inspect.py": "",
        "usr/sbin/policy-rc.d": "",
        "var/lib/apt/lists/mirror.internal.example_Packages": "",
        "var/log/bootstrap.log": "http://mirror.internal.example",
        "var/log/apt/history.log": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    return tmp_path


def test_a_finished_root_names_public_addresses_and_nothing_of_this_machine(root):
    recipes.finish(root, "bookworm")
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
    library = {"usr/lib/python3.11/os.py", "usr/lib/python3.11/inspect.py"}
    assert left == {"etc/os-release", "etc/apt/sources.list", "usr/bin/python3"} | library
    sources = (root / "etc/apt/sources.list").read_text()
    assert "internal" not in sources
    assert sources.startswith(f"deb {recipes.public_archive()} bookworm main\n")
    assert str((root / "usr/local/bin/python3").readlink()) == "/usr/bin/python3"


def test_a_finished_root_has_pythons_library_where_published_images_have_it(root):
    recipes.finish(root, "bookworm")
    place = root / "usr/local/lib/python3.11"
    links = {path.name: str(path.readlink()) for path in place.iterdir() if path.is_symlink()}
    assert links == {"inspect.py": "/usr/lib/python3.11/inspect.py", "site-packages": "dist-packages"}
    assert (place / "site-packages").is_dir()


def test_a_finished_root_has_tools_where_published_images_have_them(root):
    for name in ("usr/lib/jvm/java-17-openjdk-amd64/bin", "usr/lib/go-1.24/bin"):
        (root / name).mkdir(parents=True)
    (root / "usr/lib/go").symlink_to("go-1.24")
    for recipe in ("java", "go"):
        recipes.finish(root, "bookworm", recipes.RECIPES[recipe])
    assert str((root / "opt/java/openjdk").readlink()) == "/usr/lib/jvm/java-17-openjdk-amd64"
    assert str((root / "usr/local/go").readlink()) == "/usr/lib/go"
    assert (root / "go/bin").stat().st_mode & 0o7777 == 0o777


def test_every_recipe_stands_for_images_and_no_two_for_the_same_name():
    patterns = [pattern for recipe in recipes.RECIPES.values() for pattern in recipe.stands_for]
    assert len(patterns) == len(set(patterns))
    assert all(recipe.stands_for for recipe in recipes.RECIPES.values())


@pytest.mark.parametrize(
    ("image", "recipe"),
    [
        ("python:3.10-slim", "python"),
        ("docker.io/library/python:3.13", "python-3.13"),
        ("node:18-slim", "node"),
        ("node:22", "node-20"),
        ("ubuntu", "debian"),
        ("golang:1.22", "go"),
        ("golang@sha256:" + "0" * 64, None),
        ("acme/own:1", None),
    ],
)
def test_a_missing_image_is_reported_with_the_recipe_that_stands_for_it(image, recipe):
    message = str(missing_image(image))
    assert recipes.recipe_for(image) == recipe
    assert (f"`bench images add --recipe {recipe}`" in message) == (recipe is not None)


def test_progress_counts_within_a_phase_and_survives_torn_lines():
    reported = []
    steps = recipes.Steps(reported.append)
    for chunk in (b"I: Retrieving a 1\nI: Retr", b"ieving b 2\nI: Validating b\nGet:1 x", b"\nother\n"):
        steps.read("stdout", chunk)
    assert reported == [
        "downloading the base system (1)",
        "downloading the base system (2)",
        "downloading packages (1)",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--recipe", "cobol"], "Unknown recipe 'cobol'; available: debian"),
        (["x:1", "--debootstrap", "bookworm", "--as", "y:*"], "--as needs --recipe"),
        (["--rootfs", "x"], "Give the image a NAME"),
        (["x:1", "--recipe", "python", "--debootstrap", "bookworm"], "exactly one of"),
    ],
)
def test_wrong_usage_of_a_recipe_is_refused(arguments, said):
    from benchflow.cli.images import add

    with pytest.raises(UsageError, match=said):
        add.main(arguments, standalone_mode=False)
