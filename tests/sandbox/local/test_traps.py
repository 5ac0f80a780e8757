"""The eight ways in which sandboxes like this one were broken, each shut."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from benchflow.errors import SandboxFailure
from benchflow.sandbox.inside.accounts import IDS
from benchflow.sandbox.local.beside import host_profile, id_ranges
from benchflow.sandbox.local.inside.messages import Identity
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import Limits, Mount, SandboxSpec

pytestmark = pytest.mark.anyio


async def sh(box: LocalSandbox, command: str, user: str = "root") -> str:
    result = await box.exec(command, user=user, timeout=60)
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


@pytest.mark.parametrize(
    "plant",
    [
        "ln -s /opt/mine /tests",
        "ln -s ../../opt/mine /tests",
        "echo a file > /tests",
        "mkfifo /tests",
        "mkdir /tests && echo fake > /tests/test.txt && mkdir /tests/more",
    ],
)
async def test_1_a_mount_lands_at_its_target_whatever_the_agent_put_there(
    plant: str, box: LocalSandbox, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o755)
    (hidden / "test.txt").write_text("genuine\n")
    await sh(box, f"mkdir /opt/mine; echo fake > /opt/mine/test.txt; {plant}")
    fork = await box.fork(mounts=[Mount(hidden, "/tests")])
    assert await sh(fork, "cat /tests/test.txt; ls /tests; cat /opt/mine/test.txt") == "genuine\ntest.txt\nfake"
    assert (await fork.exec("echo x > /tests/test.txt", user="root")).exit_code != 0
    assert (hidden / "test.txt").read_text() == "genuine\n"
    await fork.stop()


async def test_1_the_same_on_the_way_to_the_target_and_for_single_files(box: LocalSandbox, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("genuine")
    (tmp_path / "key").chmod(0o644)
    await sh(box, "mkdir -p /opt/mine/deep /run/x; ln -s /opt/mine /verifier; ln -s /etc/passwd /run/x/key")
    fork = await box.fork(mounts=[Mount(tmp_path / "key", "/verifier/deep/key"), Mount(tmp_path / "key", "/run/x/key")])
    assert (
        await sh(fork, "cat /verifier/deep/key /run/x/key; ls /opt/mine/deep; head -c 4 /etc/passwd")
        == "genuinegenuineroot"
    )
    await fork.stop()


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_2_the_socket_family_of_hypervisors_cannot_be_opened(user: str, box: LocalSandbox) -> None:
    program = "import socket\ntry: socket.socket(40, 1); print('open')\nexcept OSError as e: print(e.errno)"
    assert await sh(box, f'/usr/bin/python3 -c "{program}"', user=user) == "97"


async def test_3_root_inside_is_nobody_outside(box: LocalSandbox, identity: Identity) -> None:
    process = await box.process(["bash", "-c", f"echo up; exec -a inside-{box.id} sleep 1000"], user="root")
    assert await anext(process.stdout()) == b"up\n"
    owners = owners_of(f"inside-{box.id}")
    if identity == "idmap":
        (owner,) = owners
        assert owner in range(id_ranges.FIRST, id_ranges.FIRST + id_ranges.COUNT * IDS, IDS)
    else:
        assert owners == {0 if identity == "identity" else os.getuid()}
    await process.kill()


def owners_of(name: str) -> set[int]:
    """The users of the machine whose processes have this name."""
    for _ in range(500):
        listed = subprocess.run(["ps", "axo", "uid,args"], capture_output=True, text=True, check=True).stdout
        found = {int(line.split()[0]) for line in listed.splitlines() if line.split()[1:2] == [name]}
        if found:
            return found
    return set()


async def test_4_the_written_layer_is_never_read_through_the_agents_links(box: LocalSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    await sh(box, f"cd /app; ln -s {tmp_path} folder; ln -s {tmp_path}/secret file; ln -s / root", user="agent")
    found = {change.path: (change.type, change.size) for change in await box.changes()}
    assert found == {"/app/folder": ("symlink", 0), "/app/file": ("symlink", 0), "/app/root": ("symlink", 0)}


async def test_5_the_supervisor_runs_nothing_of_the_environment(box: LocalSandbox) -> None:
    """Libraries, modules and accounts of the sandbox are replaced by traps that would leave a mark."""
    trap = "import os\nopen('/tmp/sprung', 'a').write(str(os.getpid()) + chr(10))\n"
    await box.write_file("/tmp/trap.py", trap.encode())
    await sh(
        box,
        "mkdir -p /opt/lib; for name in codecs tarfile pwd grp json socket; do cp /tmp/trap.py /opt/lib/$name.py; done;"
        "rm -f /etc/passwd /etc/nsswitch.conf; mkfifo /etc/passwd; echo /opt/lib/x.so > /etc/ld.so.preload",
    )
    await box.write_file("/opt/data/file", b"x", owner="root")
    assert await box.read_file("/opt/data/file") == b"x"
    await box.exec("true", user="0")
    assert (await box.exec("cat /tmp/sprung", user="0")).exit_code == 1


async def test_5_nothing_can_be_imported_in_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from benchflow.sandbox.local.inside import supervisor

    calls: list[int] = []
    monkeypatch.setattr(supervisor.sc, "prctl", lambda *arguments: calls.append(arguments[0]))
    for name in ("path", "meta_path", "path_hooks"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    supervisor.seal()
    assert (sys.path, sys.meta_path, sys.path_hooks, calls) == ([], [], [], [supervisor.sc.PR_SET_DUMPABLE])
    monkeypatch.undo()


async def test_6_filling_memory_cannot_end_the_supervisor(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(memory_mb=60))) as box:
        await box.exec("head -c 300000000 /dev/zero > /dev/shm/fill; tail -c 300000000 /dev/zero", timeout=60)
        assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_7_the_host_profile_has_what_is_named_and_nothing_else(box: LocalSandbox) -> None:
    top = set((await sh(box, "ls -A /")).split())
    folders = "app dev etc home media mnt opt proc root run srv sys tmp usr var bin sbin lib lib32 lib64 libx32"
    assert top <= set(folders.split())
    assert await sh(box, "ls /etc/shadow /etc/gshadow /etc/ssh /etc/ssl/private /etc/sudoers 2>/dev/null || true") == ""


def is_plain(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def test_7_what_not_everybody_may_read_and_what_holds_a_login_stays_out(tmp_path: Path) -> None:
    root, layer = tmp_path / "machine", tmp_path / "layer"
    for folder in (
        "etc/apt/sources.list.d",
        "etc/ssl/certs",
        "etc/ssl/private",
        "etc/default",
        "usr/bin",
        "var/lib/dpkg",
    ):
        (root / folder).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000:Alice:/home/alice:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:alice\nalice:x:1000:\n")
    (root / "etc/shadow").write_text("root:hash")
    (root / "etc/ssl/private/key.pem").write_text("key")
    (root / "etc/ssl/certs/ca.pem").write_text("cert")
    (root / "etc/default/locked").write_text("secret")
    (root / "etc/default/locked").chmod(0o600)
    (root / "etc/default/plain").write_text("LANG=C")
    (root / "etc/apt/sources.list.d/private.list").write_text("deb https://user:token@mirror.test/ x main")
    (root / "etc/pip.conf").write_text("[global]\nindex-url = https://me:pass@index.test/simple")
    (root / "etc/environment").write_text("TOKEN=x")
    host_profile.compose(layer, root, owners=False)
    found = {str(path.relative_to(layer)) for path in (layer / "etc").rglob("*") if is_plain(path)}
    named = {"passwd", "group", "gitconfig", "ssl/certs/ca.pem", "default/plain", "hosts", "hostname", "resolv.conf"}
    assert found == {f"etc/{name}" for name in named}
    assert "alice" not in (layer / "etc/passwd").read_text() + (layer / "etc/group").read_text()
    assert stat.S_IMODE((layer / "root").stat().st_mode) == 0o700


async def test_8_copies_do_not_depend_on_the_archive_filters_of_the_interpreter(
    box: LocalSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an archive was opened")

    monkeypatch.setattr(tarfile, "open", refuse)
    monkeypatch.setattr(tarfile, "TarFile", refuse)
    await sh(box, "mkdir good bad; echo x > good/file; ln -s /etc/passwd bad/link", user="agent")
    await box.download("/app/good", tmp_path / "good")
    assert (tmp_path / "good" / "file").read_text() == "x\n"
    with pytest.raises(SandboxFailure, match="points outside"):
        await box.download("/app/bad", tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
