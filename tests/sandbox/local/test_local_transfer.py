"""Files into and out of running sandboxes, with everything hostile that may stand in the way."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from benchflow.errors import SandboxFailure
from benchflow.sandbox.local.inside.messages import Identity
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import NO_SUCH_FILE, Limits, SandboxSpec

pytestmark = pytest.mark.anyio


async def sh(box: LocalSandbox, command: str, user: str = "root") -> str:
    result = await box.exec(command, user=user, timeout=60)
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "run.sh").write_text("echo ran")
    (source / "run.sh").chmod(0o755)
    (source / "sub" / "data").write_bytes(os.urandom(400_000))
    (source / "link").symlink_to("sub/data")
    return source


async def test_a_folder_goes_in_and_comes_out_as_it_was(box: LocalSandbox, tree: Path, tmp_path: Path) -> None:
    await box.upload(tree, "/opt/new/place")
    assert await sh(box, "cd /opt/new/place && ./run.sh && ls && readlink link && stat -c %U sub/data")
    await box.download("/opt/new/place", tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "data").read_bytes() == (tree / "sub" / "data").read_bytes()
    assert (tmp_path / "out" / "link").readlink() == Path("sub/data")
    assert stat.S_IMODE((tmp_path / "out" / "run.sh").stat().st_mode) == 0o755
    assert (tmp_path / "out" / "sub" / "empty").is_dir()


async def test_a_file_goes_in_and_comes_out(box: LocalSandbox, tree: Path, tmp_path: Path) -> None:
    await box.upload(tree / "sub" / "data", "/app/data")
    await box.download("/app/data", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tree / "sub" / "data").read_bytes()
    await box.write_file("/app/note", b"text", mode=0o600)
    assert await box.read_file("/app/note") == b"text"
    assert await sh(box, "stat -c %a /app/note") == "600"


async def test_files_belong_to_root_or_to_whom_they_are_given(
    box: LocalSandbox, tree: Path, identity: Identity
) -> None:
    await box.upload(tree, "/srv/a")
    await box.upload(tree, "/srv/b", owner="agent")
    await box.write_file("/srv/c", b"", owner="agent")
    owners = await sh(box, "stat -c %U /srv/a/run.sh /srv/a/sub /srv/b/run.sh /srv/b/sub /srv/b/link /srv/c")
    if identity == "single":
        assert set(owners.split()) == {"root"}
        await sh(box, "echo more >> /srv/b/run.sh", user="agent")
    else:
        assert owners.split() == ["root", "root", "agent", "agent", "agent", "agent"]


async def test_an_upload_replaces_a_link_at_its_target_and_follows_none(box: LocalSandbox, tree: Path) -> None:
    await sh(box, "mkdir /opt/trap && ln -s /opt/trap /tests && mkdir /work && ln -s /opt/trap /work/sub")
    await box.upload(tree, "/tests")
    await box.upload(tree, "/work")
    assert (
        await sh(box, "ls -A /opt/trap; test -d /tests -a ! -L /tests && test ! -L /work/sub && echo plain") == "plain"
    )


async def test_a_link_on_the_way_is_an_error_that_names_it(box: LocalSandbox, tree: Path) -> None:
    await sh(box, "ln -s /etc /opt/way")
    with pytest.raises(SandboxFailure, match="/opt/way/deeper"):
        await box.upload(tree, "/opt/way/deeper")
    with pytest.raises(SandboxFailure, match="link"):
        await box.write_file("/opt/way/passwd", b"owned")
    with pytest.raises(SandboxFailure, match="link"):
        await box.read_file("/opt/way/passwd")


@pytest.mark.parametrize("path", ["relative", "/a/../../etc/x", "/", "/app/..", "/nul\0byte"])
async def test_paths_with_tricks_are_refused(path: str, box: LocalSandbox) -> None:
    with pytest.raises(SandboxFailure):
        await box.write_file(path, b"")


async def test_nothing_but_regular_files_is_read(box: LocalSandbox) -> None:
    await sh(box, "cd /app; mkfifo pipe; ln -s /etc/passwd link; ln -s /proc/self/environ magic; mkdir folder")
    for name in ("pipe", "link", "magic", "folder"):
        with pytest.raises(SandboxFailure):
            await box.read_file(f"/app/{name}")
    with pytest.raises(SandboxFailure):
        await box.read_file("/dev/zero")
    with pytest.raises(SandboxFailure, match="missing"):
        await box.read_file("/app/missing")


async def test_a_file_that_is_too_large_is_refused_unread(box: LocalSandbox, tmp_path: Path) -> None:
    await sh(box, "truncate -s 100G /tmp/huge")
    with pytest.raises(SandboxFailure, match="larger than 1000"):
        await box.read_file("/tmp/huge", max_bytes=1000)
    with pytest.raises(SandboxFailure, match="larger than"):
        await box.download("/tmp/huge", tmp_path / "huge")
    with pytest.raises(SandboxFailure, match="more than"):
        await box.download("/tmp", tmp_path / "all")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "plant",
    [
        "ln -s /etc/passwd out",
        "ln -s ../../../../etc/passwd out",
        "mkdir d && ln -s .. d/up && ln -s d/up/../../etc out",
        "mkfifo pipe",
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"",
        "for i in $(seq 60); do touch f$i; done",
        "mkdir -p $(printf 'd/%.0s' $(seq 300))",
    ],
)
async def test_a_hostile_tree_is_refused_and_nothing_arrives(plant: str, box: LocalSandbox, tmp_path: Path) -> None:
    await sh(box, f"mkdir /app/tree && cd /app/tree && {plant}", user="agent")
    with pytest.raises(SandboxFailure):
        await box.download("/app/tree", tmp_path / "out", max_files=50)
    assert not any(tmp_path.iterdir())


async def test_a_download_into_a_folder_of_the_machine_replaces_links_there(box: LocalSandbox, tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.write_text("precious")
    (target / "file").symlink_to(outside)
    await box.write_file("/app/tree/file", b"new")
    await box.download("/app/tree", target)
    assert ((target / "file").read_text(), outside.read_text()) == ("new", "precious")


async def test_a_full_disk_is_said_in_a_sentence(backend: LocalBackend, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(40 << 20))
    async with backend.create(SandboxSpec(limits=Limits(storage_mb=16))) as box:
        with pytest.raises(SandboxFailure, match="storage limit"):
            await box.upload(tmp_path / "big", "/app/big")
        with pytest.raises(SandboxFailure, match="storage limit"):
            await box.upload(tmp_path, "/app/tree")
        assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_what_an_agent_does_meanwhile_cannot_turn_a_copy_elsewhere(box: LocalSandbox, tree: Path) -> None:
    await box.exec("mkdir -m 777 /work /work/d", user="root")
    swap = "while true; do rm -rf /work/d; ln -s /etc /work/d; rm -f /work/d; mkdir -m 777 /work/d; done"
    racer = await box.process(swap, user="agent")
    for _ in range(15):
        try:
            await box.upload(tree, "/work/d")
        except SandboxFailure:
            continue
    await racer.kill()
    assert await sh(box, "ls /etc/run.sh /etc/sub 2>/dev/null || true") == ""


async def test_folders_nested_without_end_are_refused_and_the_sandbox_goes_on(
    box: LocalSandbox, tmp_path: Path
) -> None:
    nest = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\n"
    await box.exec(["python3", "-c", nest], user="root", cwd="/opt", timeout=60)
    with pytest.raises(SandboxFailure, match="more than 256 deep|ended early") as refused:
        await box.download("/opt/d", tmp_path / "out")
    assert refused.value.code == "refused"
    assert await sh(box, "echo alive") == "alive"


async def test_a_file_that_is_not_there_has_a_code_of_its_own(box: LocalSandbox, tmp_path: Path) -> None:
    for path in ("/opt/nothing", "/etc/passwd/below"):
        for attempt in (box.read_file(path), box.download(path, tmp_path / "out")):
            with pytest.raises(SandboxFailure) as missing:
                await attempt
            assert missing.value.code == NO_SUCH_FILE
