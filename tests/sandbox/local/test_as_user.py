"""Sandboxes of an ordinary user: the tests again whose outcome depends on who runs them.

With one user id that is all that starts sandboxes; with a granted range it is what a second user id changes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NAME = f"benchcube-{os.getpid()}"
HERE = Path(__file__).parent
PROJECT = HERE.parents[2]

IMAGES = HERE.parent / "images"
ONE_ID = (
    *(HERE / f"test_{name}.py" for name in ("commands", "entrance", "escape", "fork", "lifecycle", "limits")),
    *(HERE / f"test_{name}.py" for name in ("forwarding", "network", "local_transfer", "traps", "id_ranges", "kills")),
    *(IMAGES / f"test_{name}.py" for name in ("local_builds", "unpack")),
)
SAME_ID = "processor and time or killed_from_inside and root"
"""Left out: with one id, root and the agent are the same to the kernel."""
RANGE = (
    *(HERE / f"test_{name}.py" for name in ("commands", "escape", "local_transfer", "traps", "id_ranges")),
    IMAGES / "test_local_builds.py",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="this run is an ordinary user's already"),
]


@pytest.fixture(scope="module")
def user() -> Iterator[pwd.struct_passwd]:
    """An ordinary user with a range of user ids of its own."""
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", NAME], check=False, capture_output=True)
    account = pwd.getpwnam(NAME)
    granted = [path for path in ("/etc/subuid", "/etc/subgid") if NAME not in Path(path).read_text()]
    for path in granted:
        with Path(path).open("a") as file:
            file.write(f"{NAME}:{1_600_000_000 + os.getpid() % 4000 * 65536}:65536\n")
    yield account
    subprocess.run(["userdel", "--remove", NAME], check=False, capture_output=True)


def interpreter(account: pwd.struct_passwd) -> tuple[str, str]:
    """An interpreter that the user may run, and the path its modules are found by."""
    modules = ":".join(path for path in [str(PROJECT / "src"), *sys.path] if "site-packages" in path or "src" in path)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/python{version}"):
        check = [candidate, "-c", "import pytest, hypothesis, anyio"]
        if shutil.which(candidate) and run_as(account, check, modules).returncode == 0:
            return candidate, modules
    pytest.fail(f"No interpreter of version {version} can be run by an ordinary user.")


def run_as(
    account: pwd.struct_passwd, command: list[str], modules: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": account.pw_dir, "PYTHONPATH": modules, **variables}
    return subprocess.run(
        ["env", *command],  # says 126 where the user may not run it
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


@pytest.mark.parametrize(
    ("identity", "files", "leave_out"),
    [
        pytest.param("single", ONE_ID, SAME_ID, marks=pytest.mark.xdist_group("ordinary-user")),
        pytest.param("range", RANGE, "hog or bomb or ended or killed", marks=pytest.mark.xdist_group("user-range")),
    ],
)
def test_everything_holds_for_an_ordinary_user(
    identity: str, files: tuple[Path, ...], leave_out: str, user: pwd.struct_passwd
) -> None:
    python, modules = interpreter(user)
    base = Path(user.pw_dir) / f"tests-{identity}"
    command = [
        python,
        "-m",
        "pytest",
        *map(str, files),
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        f"not ({leave_out})",
    ]
    command += ["--basetemp", str(base), "-m", "not slow", "--tb=short"]
    result = run_as(user, command, modules, BENCHCUBE_TEST_IDENTITY=identity, HYPOTHESIS_STORAGE_DIRECTORY=str(base))
    assert result.returncode == 0, result.stdout[-20_000:] + result.stderr[-5_000:]
