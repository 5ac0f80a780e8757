"""Ready bases: images from Debian's packages alone, which stand for the images that public Dockerfiles name.

A recipe is debootstrap, some packages, and a few links. The machine's own apt settings reach the packages, from
outside the new root, so that nothing of them is left in it. The result is a substitute: no record calls it `exact`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio.to_thread

from benchflow.errors import EnvironmentFailure, InfrastructureFailure
from benchflow.sandbox.bounded_output import Stream
from benchflow.sandbox.host_process import run_process
from benchflow.sandbox.images.image_config import DEFAULT_PATH, ImageConfig
from benchflow.sandbox.images.image_registry import ImageRecord, ImageRegistry, fits
from benchflow.sandbox.images.image_sources import add_rootfs, debian_mirror, work_folder

OnProgress = Callable[[str], None]
"""Is given what is done now, in a few words, whenever that changes."""
_BUILD: Final = (
    "autoconf", "build-essential", "bzip2", "curl", "file", "git", "gnupg", "libbz2-dev", "libffi-dev", "liblzma-dev",
    "libsqlite3-dev", "libssl-dev", "openssh-client", "patch", "pkg-config", "procps", "python3", "unzip", "wget",
    "xz-utils", "zlib1g-dev",
)  # fmt: skip
"""What images for builds have; they have Python for their version control, and tests rely on it."""
_PYTHON: Final = (
    *_BUILD, "python-is-python3", "python3-dev", "python3-pip", "python3-setuptools", "python3-venv",
    "python3-wheel",
)  # fmt: skip
_NODE: Final = (*_BUILD, "nodejs", "npm")
_PUBLIC: Final = {
    "debian": (
        "deb {archive} {suite} main\ndeb {archive} {suite}-updates main\ndeb {archive}-security {suite}-security main\n"
    ),
    "ubuntu": (
        "deb http://archive.ubuntu.com/ubuntu {suite} main universe\n"
        "deb http://archive.ubuntu.com/ubuntu {suite}-updates main universe\n"
    ),
}
"""Where the packages of a published image come from."""
_NO_SERVICES: Final = "usr/sbin/policy-rc.d"
_UNWANTED: Final = (
    "etc/resolv.conf", "etc/hostname", "etc/hosts", "var/log/bootstrap.log", "var/log/dpkg.log", _NO_SERVICES,
)  # fmt: skip
"""What debootstrap and apt take from this machine or leave behind."""
_SETTINGS: Final = re.compile(r"^Acquire::(https?|ftp|Retries|Check-Valid-Until|ForceIPv[46])\b.*;$", re.MULTILINE)
"""Settings of apt that say how packages are reached."""
_MARK: Final = "usr/lib/python3*/EXTERNALLY-MANAGED"
_PROGRAMS: Final = ("python3", "python", "pip3", "pip", "node", "npm", "npx")
"""Published images have these in `/usr/local/bin`, and scripts name them there."""
_LANDMARKS: Final = frozenset({"os.py", "lib-dynload"})
"""By these Python finds its prefix, which stays `/usr`: Debian's venvs look for packages relative to it."""
_PHASES: Final = (
    (re.compile(rb"^I: Retrieving "), "downloading the base system"),
    (re.compile(rb"^I: (Extracting|Unpacking|Configuring) "), "installing the base system"),
    (re.compile(rb"^Get:\d+ "), "downloading packages"),
    (re.compile(rb"^(Unpacking|Setting up) "), "installing packages"),
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a base is made of, and for which images it stands."""

    suite: str
    stands_for: tuple[str, ...]
    packages: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    """Where published images have something, and a pattern for where Debian has it; both relative to the root."""
    shared: str | None = None
    """A folder that every user may write to, for what its tools download and install."""


RECIPES: Final[Mapping[str, Recipe]] = {
    "debian": Recipe("bookworm", ("debian:*", "ubuntu:*", "ubuntu-2[0-9]-*")),
    "build": Recipe("bookworm", ("buildpack-deps:*", "gcc:*"), _BUILD),
    "python": Recipe("bookworm", ("python:*", "python-3-*"), _PYTHON, {"LANG": "C.UTF-8"}),
    "python-3.13": Recipe("trixie", ("python:3.13*", "python:3.14*", "python-3-13:*"), _PYTHON, {"LANG": "C.UTF-8"}),
    "node": Recipe("bookworm", ("node:*",), _NODE),
    "node-20": Recipe("trixie", ("node:2[0-9]*", "node:lts*", "node:latest"), _NODE),
    "go": Recipe(
        "trixie",
        ("golang:*",),
        (*_BUILD, "golang-go"),
        {"PATH": f"/go/bin:/usr/local/go/bin:{DEFAULT_PATH}", "GOPATH": "/go", "GOTOOLCHAIN": "local"},
        {"usr/local/go": "usr/lib/go"},
        "go",
    ),
    "rust": Recipe(
        "trixie",
        ("rust:*",),
        (*_BUILD, "cargo", "rustc"),
        {"PATH": f"/usr/local/cargo/bin:{DEFAULT_PATH}", "CARGO_HOME": "/usr/local/cargo"},
        {f"usr/local/cargo/bin/{name}": f"usr/bin/{name}" for name in ("cargo", "rustc", "rustdoc")},
        "usr/local/cargo",
    ),
    "java": Recipe(
        "bookworm",
        ("eclipse-temurin:*", "openjdk:*"),
        (*_BUILD, "openjdk-17-jdk-headless"),
        {"PATH": f"/opt/java/openjdk/bin:{DEFAULT_PATH}", "JAVA_HOME": "/opt/java/openjdk"},
        {"opt/java/openjdk": "usr/lib/jvm/java-17-openjdk-*"},
    ),
}


def recipe_for(image: str) -> str | None:
    """The recipe whose base stands for an image of that name, if there is one."""
    fitting = [
        (len(pattern), name)
        for name, recipe in RECIPES.items()
        for pattern in recipe.stands_for
        if fits(image, pattern)
    ]
    return max(fitting)[1] if fitting else None


async def add_recipe(
    registry: ImageRegistry,
    recipe: str,
    name: str | None = None,
    *,
    stands_for: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> ImageRecord:
    """Make and register the base of a recipe, as `debian-RECIPE:SUITE` unless it is given a name."""
    made = RECIPES[recipe]
    name = name or f"debian-{recipe if recipe != 'debian' else 'base'}:{made.suite}"
    config = ImageConfig(env={"PATH": DEFAULT_PATH, **made.env})
    patterns = tuple(stands_for) or made.stands_for
    return await add_debian(
        registry, name, made.suite, made.packages, config=config, stands_for=patterns, on_progress=on_progress,
        recipe=made, source=f"recipe {recipe} ({made.suite})",
    )  # fmt: skip


async def add_debian(
    registry: ImageRegistry,
    name: str,
    suite: str,
    packages: Sequence[str] = (),
    *,
    source: str,
    config: ImageConfig | None = None,
    stands_for: tuple[str, ...] = (),
    recipe: Recipe | None = None,
    on_progress: OnProgress | None = None,
) -> ImageRecord:
    """Register a minimal Debian or Ubuntu with these packages, from the mirror that this machine's apt uses."""
    for tool in ("debootstrap", "apt-get", "unshare"):
        if shutil.which(tool) is None:
            raise InfrastructureFailure(f"{tool} is not installed: apt-get install debootstrap.", code="tool-missing")
    if os.geteuid() != 0:
        message = "debootstrap needs root; add a --rootfs created by root instead."
        raise InfrastructureFailure(message, code="needs-root")
    steps = Steps(on_progress)
    async with work_folder(registry) as work:
        root = work / "root"
        mirror = debian_mirror()
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, str(root), mirror]
        await steps.run(command, what=f"debootstrap {suite}")
        if packages:
            await _install(root, packages, work / "apt.conf", steps)
        steps.report("registering the image")
        await anyio.to_thread.run_sync(finish, root, suite, recipe)
        return await add_rootfs(registry, name, root, config=config, origin=source, stands_for=stands_for)


class Steps:
    """Runs programs of this machine and reports how far they are."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress: Final = on_progress
        self._rest = b""
        self._phase = ""
        self._count = 0

    async def run(self, command: Sequence[str], *, what: str, env: Mapping[str, str] | None = None) -> None:
        """Run to the end; the last lines are in the error when it fails."""
        done = await run_process(command, env=env, on_output=self.read, merge_stderr=True, max_output=1 << 20)
        if done.exit_code:
            tail = "\n".join(done.stdout.decode(errors="replace").splitlines()[-15:])
            raise EnvironmentFailure(f"{what} exited with code {done.exit_code}:\n{tail}", code="image-failed")

    def read(self, stream: Stream, data: bytes) -> None:
        del stream
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            phase = next((said for pattern, said in _PHASES if pattern.match(line)), None)
            if phase is None:
                continue
            self._count = self._count + 1 if phase == self._phase else 1
            self._phase = phase
            self.report(f"{phase} ({self._count})")

    def report(self, text: str) -> None:
        if self._on_progress is not None:
            self._on_progress(text)


async def _install(root: Path, packages: Sequence[str], settings: Path, steps: Steps) -> None:
    """Install with this machine's apt, outside the new root: its settings reach the packages and stay outside."""
    known = await run_process(["apt-config", "dump"])
    own = "\n".join(match[0] for match in _SETTINGS.finditer(known.stdout.decode(errors="replace")))
    await anyio.to_thread.run_sync(_write_settings, root, settings, own)
    env = {**os.environ, "APT_CONFIG": str(settings), "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    # Some packages configure themselves only where /proc is mounted; the mount ends with its namespace.
    mounted = ["unshare", "--mount", "sh", "-c", 'mount -t proc proc "$1/proc" && shift && exec "$@"', "sh", str(root)]
    await steps.run(["apt-get", "update"], what="apt-get update", env=env)
    install = ["apt-get", "install", "--yes", "--quiet", *packages]
    await steps.run([*mounted, *install], what="apt-get install", env=env)


def _write_settings(root: Path, settings: Path, own: str) -> None:
    settings.write_text(
        f'{own}\nDir "{root}/";\nDir::Bin::dpkg "/usr/bin/dpkg";\nDPkg::Chroot-Directory "{root}";\n'
        'APT::Install-Recommends "false";\nAPT::Sandbox::User "root";\nAcquire::Languages "none";\n'
    )
    (root / _NO_SERVICES).write_text("#!/bin/sh\nexit 101\n")
    (root / _NO_SERVICES).chmod(0o755)


def finish(root: Path, suite: str, recipe: Recipe | None = None) -> None:
    """Make the root what a published image is: links, public addresses of packages, nothing of this machine."""
    for name, pattern in recipe.links.items() if recipe is not None else ():
        for found in sorted(root.glob(pattern))[:1]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(f"/{found.relative_to(root)}")
    if recipe is not None and recipe.shared is not None:
        for place in (root / recipe.shared, root / recipe.shared / "bin"):
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o777)
    for mark in root.glob(_MARK):
        mark.unlink()
    for program in _PROGRAMS:
        place = root / "usr/local/bin" / program
        if os.path.lexists(root / "usr/bin" / program) and not os.path.lexists(place):
            place.symlink_to(f"/usr/bin/{program}")
    _link_python(root)
    for name in _UNWANTED:
        (root / name).unlink(missing_ok=True)
    for folder in ("var/lib/apt/lists", "var/cache/apt", "var/log/apt"):
        _empty(root / folder)
    release = (root / "etc/os-release").read_text(encoding="utf-8", errors="replace")
    system = "ubuntu" if re.search(r"^ID=ubuntu$", release, re.MULTILINE) else "debian"
    archive = public_archive()
    text = _PUBLIC[system].format(suite=suite, archive=archive) if archive or system == "ubuntu" else ""
    (root / "etc/apt/sources.list").write_text(text)


def _link_python(root: Path) -> None:
    """Offer Python's library and headers below `/usr/local`, where published images have them and scripts name them."""
    for library in root.glob("usr/lib/python3.*"):
        place = root / "usr/local/lib" / library.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "dist-packages").mkdir(exist_ok=True)
        entries = {path.name for path in library.iterdir()} - _LANDMARKS
        links = {name: f"/usr/lib/{library.name}/{name}" for name in entries}
        for name, target in {**links, "site-packages": "dist-packages"}.items():
            if not os.path.lexists(place / name):
                (place / name).symlink_to(target)
        headers = root / "usr/local/include" / library.name
        if (root / "usr/include" / library.name).is_dir() and not os.path.lexists(headers):
            headers.parent.mkdir(exist_ok=True)
            headers.symlink_to(f"/usr/include/{library.name}")


def public_archive() -> str | None:
    """The archive of Debian that debootstrap uses where it is given none; None if it does not say."""
    tool = shutil.which("debootstrap")
    found = re.search(r'^DEF_MIRROR="(\S+)"$', Path(tool).read_text(encoding="utf-8"), re.MULTILINE) if tool else None
    return found[1] if found is not None else None


def _empty(folder: Path) -> None:
    """Remove the files in a folder, and keep its folders."""
    for path in folder.rglob("*"):
        if path.is_file() or path.is_symlink():
            path.unlink()
