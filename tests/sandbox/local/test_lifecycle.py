"""How drivers come and go: crashes leave nothing, leftovers are found and proven, many run at once."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import pytest

from benchflow.errors import EnvironmentFailure, InfrastructureFailure, SandboxFailure
from benchflow.sandbox.local import cgroups
from benchflow.sandbox.local.inside.messages import Identity, Message
from benchflow.sandbox.local.link import Launcher
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import BackendStatus, Limits, Mount, SandboxSpec

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

DRIVER = """
    import anyio, sys
    from pathlib import Path
    from benchflow.sandbox.local.local_backend import LocalBackend
    from benchflow.sandbox.protocol import Limits, NetworkPolicy, SandboxSpec

    async def main():
        backend = LocalBackend(Path(sys.argv[1]), identity=sys.argv[2])
        for spec in (
            SandboxSpec(limits=Limits(pids=50, memory_mb=200)),
            SandboxSpec(limits=Limits(storage_mb=16)),
            SandboxSpec(network=NetworkPolicy("allowlist", ("a.test",))),
        ):
            box = backend.create(spec)
            await box.start()
            await box.exec(["bash", "-c", "exec -a " + sys.argv[3] + " sleep 1000 >/dev/null 2>&1 &"])
            await box.exec("setsid sh -c 'trap \\"\\" TERM HUP INT; while true; do sleep 1; done' >/dev/null 2>&1 &")
        print("up", flush=True)
        await anyio.sleep(1000)

    anyio.run(main)
"""


def eventually(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether something becomes true before long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def processes_with(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if marker in text and str(os.getpid()) != entry.parent.name and "DRIVER" not in text:
            found.append(text)
    return found


def parts(store: Path) -> list[str]:
    """What drivers have in the store."""
    return sorted(str(path.relative_to(store)) for path in store.glob("owners/*/*"))


def new_parts(store: Path, before: list[str]) -> list[str]:
    """What came to the store since; a sandbox's files may outlive it for a moment."""
    return [part for part in parts(store) if part not in before]


def mounted(store: Path) -> list[str]:
    """Mounts of any process that show the store."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            found += [line for line in entry.read_text().splitlines() if str(store) in line]
        except OSError:
            continue
    return found


async def test_kill_9_of_the_driver_leaves_nothing_running_or_mounted(tmp_path: Path, identity: Identity) -> None:
    store = tmp_path / "store"
    marker = f"orphan-{os.getpid()}-{time.time_ns()}"
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(store), identity, marker], stdout=subprocess.PIPE
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"up\n"
    assert processes_with(marker)
    owners = [path.stem for path in (store / "owners").glob("*.lock")]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    others = lambda: [text for text in processes_with(marker) if "LocalBackend" not in text]  # noqa: E731
    assert eventually(lambda: not others()), others()
    assert eventually(lambda: not mounted(store)), mounted(store)
    assert eventually(lambda: not list((store / "owners").iterdir())), list((store / "owners").iterdir())
    assert [cgroups.leftovers(cgroups.find_hierarchies(), owner).folders for owner in owners] == [()] * len(owners)
    loops = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=False).stdout
    assert str(store) not in loops
    backend = LocalBackend(store, identity=identity)
    async with backend.create(SandboxSpec()) as box:
        assert (await box.exec("echo new")).stdout == b"new\n"
    await backend.close()


async def test_leftovers_are_removed_at_the_next_start_and_live_drivers_are_left_alone(
    tmp_path: Path, identity: Identity
) -> None:
    store = tmp_path / "store"
    first = LocalBackend(store, identity=identity)
    async with first.create(SandboxSpec()) as box:
        dead = store / "owners" / "deadbeef0000"
        (dead / "box" / "u" / "deep").mkdir(parents=True)
        (dead / "box" / "u" / "link").symlink_to(tmp_path)
        (tmp_path / "precious").write_text("kept")
        (store / "owners" / "deadbeef0000.lock").write_text("")
        second = LocalBackend(store, identity=identity)
        async with second.create(SandboxSpec()):
            assert not dead.exists()
            assert not (store / "owners" / "deadbeef0000.lock").exists()
            assert (await box.exec("echo untouched")).stdout == b"untouched\n"
        await second.close()
    assert (tmp_path / "precious").read_text() == "kept"
    await first.close()
    assert not any((store / "owners").iterdir())


@pytest.mark.slow
async def test_sixty_sandboxes_at_once_are_all_whole_and_apart(backend: LocalBackend) -> None:
    boxes = [backend.create(SandboxSpec(limits=Limits(pids=30))) for _ in range(60)]
    answers: dict[str, bytes] = {}

    async def use(number: int) -> None:
        box = boxes[number]
        await box.start()
        await box.exec(f"echo {number} > mine")
        answers[str(number)] = (await box.exec("cat mine; ls | wc -l; ps ax --no-headers | wc -l")).stdout

    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(use, number)
    assert {key: value.split()[:2] for key, value in answers.items()} == {
        str(n): [str(n).encode(), b"1"] for n in range(60)
    }
    async with anyio.create_task_group() as group:
        for box in boxes:
            group.start_soon(box.stop)


async def test_closing_a_backend_ends_sandboxes_that_still_run(tmp_path: Path, identity: Identity) -> None:
    backend = LocalBackend(tmp_path / "store", identity=identity)
    box = backend.create(SandboxSpec())
    await box.start()
    await backend.close()
    assert not any((tmp_path / "store" / "owners").iterdir())
    with pytest.raises(Exception, match="not running"):
        await box.exec("true")
    await box.stop()


def worker_of(helper: int) -> int:
    """The child that does the file work: the one that is in no namespace of processes of its own."""
    children = Path(f"/proc/{helper}/task/{helper}/children").read_text().split()
    status = {pid: Path(f"/proc/{pid}/status").read_text() for pid in children}
    [found] = [pid for pid, text in status.items() if re.search(r"^NSpid:\s\d+$", text, re.MULTILINE)]
    return int(found)


@pytest.mark.parametrize("victim", ["helper", "worker"])
async def test_a_helper_that_is_killed_costs_its_sandboxes_and_no_others(
    tmp_path: Path, identity: Identity, victim: str
) -> None:
    store = tmp_path / "store"
    backend = LocalBackend(store, identity=identity)
    lost = backend.create(SandboxSpec(limits=Limits(storage_mb=8)))
    await lost.start()
    helper = (await backend.runtime()).launcher.pid
    os.kill(helper if victim == "helper" else worker_of(helper), signal.SIGKILL)
    with pytest.raises(SandboxFailure, match="not running|ended|gone"):
        await lost.exec("sleep 60")
    await lost.stop()
    async with backend.create(SandboxSpec(limits=Limits(storage_mb=8))) as box:
        assert (await box.exec("echo new")).stdout == b"new\n"
        assert (await backend.runtime()).launcher.pid != helper
    await backend.close()
    after = LocalBackend(store, identity=identity)
    async with after.create(SandboxSpec()):
        assert len(list((store / "owners").glob("*.lock"))) == 1
    await after.close()
    assert not any((store / "owners").iterdir())


async def test_trees_of_any_depth_and_permission_are_removed(backend: LocalBackend, store: Path) -> None:
    before = parts(store)
    dig = "import os\nfor _ in range(1200):\n os.mkdir('d'); os.chdir('d')\nopen('f', 'w').close(); os.chmod('.', 0)"
    async with backend.create(SandboxSpec()) as box:
        result = await box.exec(["/usr/bin/python3", "-c", dig], timeout=60)
        assert result.ok, result
        assert len(await box.changes()) > 200
    assert eventually(lambda: not new_parts(store, before)), new_parts(store, before)


async def test_a_missing_mount_is_an_error_before_anything_starts(backend: LocalBackend, store: Path) -> None:
    before = parts(store)
    with pytest.raises(EnvironmentFailure, match="nowhere"):
        await backend.create(SandboxSpec(mounts=(Mount(Path("/nowhere"), "/x"),))).start()
    assert parts(store) == before


async def test_a_start_that_fails_leaves_nothing_but_a_volume_for_the_next(backend: LocalBackend, store: Path) -> None:
    limits = Limits(pids=9, storage_mb=8)
    async with backend.create(SandboxSpec(limits=limits)):
        pass
    before = parts(store)
    groups = cgroups.find_hierarchies()
    for _ in range(3):
        with pytest.raises(Exception, match="plain absolute path"):
            await backend.create(SandboxSpec(mounts=(Mount(store, "/a/../b"),), limits=limits)).start()
    assert eventually(lambda: not new_parts(store, before)), new_parts(store, before)
    owner = next(iter(store.glob("owners/*.lock"))).stem
    assert cgroups.leftovers(groups, owner).folders == ()


async def test_a_store_that_cannot_be_made_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureFailure, match="BENCHCUBE_STORE"):
        await LocalBackend(tmp_path / "file" / "store").create(SandboxSpec()).start()


async def test_what_was_unusable_once_is_tried_again(tmp_path: Path, identity: Identity) -> None:
    (tmp_path / "store").write_text("in the way")
    backend = LocalBackend(tmp_path / "store", identity=identity)
    assert not (await backend.status()).usable
    (tmp_path / "store").unlink()
    assert (await backend.status()).usable
    await backend.close()


async def test_status_is_found_by_trying(backend: LocalBackend, identity: Identity) -> None:
    status = await backend.status()
    assert (status.usable, status.reason) == (True, None)
    assert {
        "network.none",
        "limits.memory",
        "limits.pids",
        "limits.disk",
        "limits.cpu",
        "fork",
        "mounts",
    } <= status.capabilities
    assert ("users" in status.capabilities) == (identity != "single")
    missing = {item.capability: item.how for item in status.missing}
    assert {"gpu", "windows"} <= set(missing)
    assert all(missing.values())
    assert not set(missing) & status.capabilities


async def test_the_one_blank_that_waits_may_end_and_is_replaced(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec()):
        pass
    launcher = backend._launcher
    assert launcher is not None
    zygote = launcher._process.pid

    def blanks() -> list[int]:
        """Children that lead a session of their own; the worker does not."""
        found = []
        for pid in Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split():
            with contextlib.suppress(OSError):  # it is gone
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3] == pid:
                    found.append(int(pid))
        return found

    assert eventually(lambda: len(blanks()) == 1)
    first = blanks()
    os.kill(first[0], signal.SIGKILL)
    assert eventually(lambda: len(blanks()) == 1 and blanks() != first)
    async with backend.create(SandboxSpec()) as box:
        assert (await box.exec(["echo", "fine"])).stdout == b"fine\n"


async def status_of(store: Path) -> BackendStatus:
    backend = LocalBackend(store)
    try:
        return await backend.status()
    finally:
        await backend.close()


async def test_what_worked_on_this_machine_is_not_tried_again_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = (await status_of(tmp_path / "store")).capabilities
    monkeypatch.setattr("benchflow.sandbox.local.local_backend._works", lambda *_: pytest.fail("tried again"))
    assert (await status_of(tmp_path / "store")).capabilities == tried


@pytest.mark.parametrize("content", ["", "[]", '{"machine": "another"}'])
async def test_what_is_known_of_another_machine_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "machine.json").write_text(content)

    async def fails(*_: object) -> bool:
        return False

    monkeypatch.setattr("benchflow.sandbox.local.local_backend._works", fails)
    status = await status_of(tmp_path / "store")
    assert status.usable
    assert "network.allowlist" not in status.capabilities
    assert (tmp_path / "store" / "machine.json").read_text() == content


async def test_a_helper_that_was_started_ahead_serves_sandboxes(tmp_path: Path, identity: Identity) -> None:
    backend = LocalBackend(tmp_path, identity=identity)
    backend.start_ahead(host=True)
    try:
        async with backend.create(SandboxSpec()) as sandbox:
            assert (await sandbox.exec(["true"], timeout=60)).ok
            assert len([path for path in tmp_path.glob("owners/*") if path.is_dir()]) == 1
    finally:
        await backend.close()
    assert list(tmp_path.glob("owners/*")) == []


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_layer_is_checked_while_the_helper_starts_and_one_that_is_damaged_is_made_again(
    tmp_path: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    first = LocalBackend(tmp_path, identity=identity)
    async with first.create(SandboxSpec()) as sandbox:
        expected = await sandbox.read_file("/etc/passwd")
    await first.close()
    [layer] = [path for path in tmp_path.glob("layers/host-*") if "-" not in path.name.removeprefix("host-")]
    if damaged:
        (layer / "etc" / "passwd").write_text("agent:x:0:0::/root:/bin/sh\n")
    asked: list[str] = []
    request = Launcher.request

    def remember(self: Launcher, message: Message, fds: Sequence[int] = ()) -> socket.socket:
        asked.append(message["op"])
        return request(self, message, fds)

    monkeypatch.setattr(Launcher, "request", remember)
    backend = LocalBackend(tmp_path, identity=identity)
    backend.start_ahead(host=True)
    try:
        async with backend.create(SandboxSpec()) as sandbox:
            assert await sandbox.read_file("/etc/passwd") == expected
    finally:
        await backend.close()
    assert asked.index("check-layer") < asked.index("launch")
    assert asked.count("check-layer") == (2 if damaged else 1)
    assert asked.count("compose-host") == int(damaged)


async def test_a_backend_that_is_closed_while_its_helper_starts_leaves_nothing(
    tmp_path: Path, identity: Identity
) -> None:
    backend = LocalBackend(tmp_path, identity=identity)
    backend.start_ahead(host=True)
    await backend.close()
    assert list(tmp_path.glob("owners/*")) == []
