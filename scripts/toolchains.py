"""An image with interpreters, compilers and runners for tests on engines, from the Debian packages of this machine.

`make_image(command, env, large=...)` packs it once, in the user's cache, imports it into an engine that does not have
it yet, and returns its name.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

SMALL = (
    *("base-files", "dash", "debianutils", "libc-bin", "mawk", "tar", "util-linux"),
    *("bash", "coreutils", "diffutils", "findutils", "grep", "sed", "git", "make", "perl", "python3", "python3-pytest"),
    *("python3-coverage", "python3-hypothesis"),
    *("ruby", "ruby-bundler", "nodejs"),
)
LARGE = (
    *(*SMALL, "tox", "npm", "python3-pip", "r-base-core", "default-jdk-headless", "golang-go", "cargo"),
    *("gcc", "libc6-dev"),
)
_KINDS = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
_UNUSED = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info")
_MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ACCOUNTS = {
    "etc/passwd": (
        "root:x:0:0::/root:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/bash\nnobody:x:65534:65534::/:/bin/sh\n"
    ),
    "etc/group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
}
_FOLDERS = {
    "tmp": (0o1777, 0),
    "root": (0o700, 0),
    "opt": (0o755, 0),
    "app": (0o755, 1000),
    "home/agent/work": (0o755, 1000),
    "home/agent": (0o755, 1000),
}


def make_image(command: Sequence[str], env: dict[str, str], *, large: bool) -> str:
    """The image in an engine; it is packed once for the packages that are installed, and kept."""
    installed = subprocess.run(["dpkg-query", "-W"], capture_output=True, check=True).stdout
    key = hashlib.sha256(installed + Path(__file__).read_bytes()).hexdigest()[:16]
    size = "large" if large else "small"
    image = f"benchcube-test/toolchains:{size}-{key}"
    if subprocess.run([*command, "image", "inspect", image], env=env, capture_output=True, check=False).returncode == 0:
        return image
    archive = Path.home() / ".cache/benchcube-tests" / f"toolchains-{size}-{key}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        for old in archive.parent.glob(f"toolchains-{size}-*.tar"):
            old.unlink(missing_ok=True)
        unfinished = archive.with_suffix(f".{os.getpid()}")
        _pack(unfinished, LARGE if large else SMALL)
        unfinished.replace(archive)
    change = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    subprocess.run(
        [*command, "import", "--change", change, str(archive), image], env=env, capture_output=True, check=True
    )
    return image


def _pack(target: Path, packages: Sequence[str]) -> None:
    options = ("--recurse", "--installed", *(f"--no-{kind}" for kind in _KINDS))
    lines = subprocess.run(
        ["apt-cache", "depends", *options, *packages], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = [line for line in lines if line and line[0] not in " <"]
    listed = subprocess.run(["dpkg", "-L", *names], capture_output=True, text=True, check=False).stdout.splitlines()
    links = [name for name in _MERGED if Path(name).is_symlink()]
    files = {_where(name, links) for name in listed if name.startswith("/") and not name.startswith(_UNUSED)}
    chosen = [
        *links,
        *(name for name in files if os.path.lexists(name) and name != "/."),
        *_compiled(files),
        *_alternatives(),
        "/etc/ld.so.cache",
    ]
    with tempfile.TemporaryDirectory() as folder:
        listing = Path(folder, "list")
        own = [*_ACCOUNTS, "home", *_FOLDERS]
        listing.write_text("\n".join(sorted(set(chosen) - {f"/{name}" for name in own})))
        subprocess.run(["tar", "-cf", target, "--no-recursion", "-T", listing], capture_output=True, check=True)
        _make_accounts(Path(folder, "root"))
        words = ["tar", "-rf", target, "--no-recursion", "-C", f"{folder}/root", *own]
        subprocess.run(words, capture_output=True, check=True)


def _where(name: str, links: Sequence[str]) -> str:
    """Where a file of a package is if `/bin` and its like are links into `/usr`."""
    first = "/" + name.split("/")[1]
    return f"/usr{name}" if first in links else name


def _compiled(files: Iterable[str]) -> list[str]:
    """The bytecode of Python files, which packages make when they are installed: otherwise each start compiles it."""
    folders = {Path(name).parent / "__pycache__" for name in files if name.endswith(".py")}
    return [str(place) for folder in folders if folder.is_dir() for place in (folder, *folder.glob("*.pyc"))]


def _alternatives() -> list[str]:
    """The links that choose one of several programs or libraries, and the names that lead to them."""
    named = [
        entry.path
        for folder in (Path("/usr/bin"), *Path("/usr/lib").glob("*-linux-gnu"))
        for entry in os.scandir(folder)
        if entry.is_symlink() and str(Path(entry.path).readlink()).startswith("/etc/alternatives/")
    ]
    return [*named, *(entry.path for entry in os.scandir("/etc/alternatives")), "/etc/alternatives"]


def _make_accounts(root: Path) -> None:
    for name, (mode, owner) in _FOLDERS.items():
        place = root / name
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(mode)
        os.chown(place, owner, owner)
    (root / "etc").mkdir(mode=0o755)
    root.chmod(0o755)
    for name, text in _ACCOUNTS.items():
        (root / name).write_text(text)
