"""A kernel that refuses namespaces is said to do so, with what to set, and not as a disk that is full."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from benchflow.sandbox.local.inside.namespaces import explain

PROBE = """
import pathlib, sys, anyio
pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("0")
from benchflow.sandbox.local.local_backend import LocalBackend
status = anyio.run(LocalBackend(pathlib.Path(sys.argv[1])).status)
print(status.usable, status.reason)
"""


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("most", "words"), [("0", "user.max_user_namespaces = 0: run `sysctl"), ("1", "limit of names")]
)
def test_a_limit_of_namespaces_is_no_full_disk(most: str, words: str, tmp_path: Path) -> None:
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", PROBE, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip("this machine has no user namespaces to try it in")
    assert done.stdout.startswith("False The local sandbox needs namespaces, and the kernel refuses them: "), done
    assert "user.max_user_namespaces = 0: run `sysctl" in done.stdout
    assert "No space left" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("number", "settings", "words"),
    [
        (errno.ENOSPC, {"user/max_user_namespaces": "0"}, "sysctl user.max_user_namespaces=10000"),
        (errno.ENOSPC, {"user/max_net_namespaces": "0"}, "sysctl user.max_net_namespaces=10000"),
        (errno.ENOSPC, {"user/max_user_namespaces": "9"}, "the limit of namespaces is reached"),
        (errno.EUSERS, {"user/max_user_namespaces": "9"}, "the limit of namespaces is reached"),
        (errno.EPERM, {"kernel/unprivileged_userns_clone": "0"}, "sysctl kernel.unprivileged_userns_clone=1"),
        (errno.EACCES, {"kernel/apparmor_restrict_unprivileged_userns": "1"}, "AppArmor profile"),
        (errno.EPERM, {"user/max_user_namespaces": "9"}, "surrounding container"),
        (errno.EINVAL, {}, "built without user namespaces"),
    ],
)
def test_every_refusal_comes_with_its_remedy(number: int, settings: dict[str, str], words: str) -> None:
    assert words in explain(OSError(number, "No space left on device"), settings.get)
