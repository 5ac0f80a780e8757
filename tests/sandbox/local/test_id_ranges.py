"""Every sandbox of a driver that is root has its own user ids, so none can use up what the kernel counts per user."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from benchflow.sandbox.inside.accounts import IDS
from benchflow.sandbox.local.beside import id_ranges
from benchflow.sandbox.local.beside.id_ranges import IdRanges
from benchflow.sandbox.local.inside.messages import Identity
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import SandboxSpec

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

_INOTIFY = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
made = 0
while made < 100_000 and libc.inotify_init() >= 0:
    made += 1
print(made, flush=True)
if "stay" in sys.argv:
    time.sleep(1000)
"""
_IN_FLIGHT = """
import socket, sys, time
made, kept = 0, []
try:
    for _ in range(300):
        ours, theirs = socket.socketpair()
        socket.send_fds(ours, [b"x"], [0] * 250)
        ours.close()
        made += 250
        chain, other = socket.socketpair()
        socket.send_fds(chain, [b"x"], [theirs.fileno()])
        theirs.close()
        kept.append((chain, other))
except OSError as error:
    print(error.strerror, file=sys.stderr)
print(made, flush=True)
if "stay" in sys.argv:
    time.sleep(1000)
"""


@pytest.mark.parametrize(("program", "user"), [(_INOTIFY, "agent"), (_INOTIFY, "root"), (_IN_FLIGHT, "agent")])
async def test_a_sandbox_cannot_use_up_what_the_kernel_counts_per_user(
    program: str, user: str, backend: LocalBackend, identity: Identity
) -> None:
    if identity != "idmap":
        pytest.skip("only a driver that is root has ids to give out")
    argv = ["/usr/bin/python3", "-c", program]
    async with backend.create(SandboxSpec()) as greedy, backend.create(SandboxSpec()) as modest:
        alone = int((await modest.exec(argv, user=user)).stdout)
        holder = await greedy.process([*argv, "stay"], user=user)
        assert int(await anext(holder.stdout())) >= alone > 0
        assert int((await modest.exec(argv, user=user)).stdout) == alone
        fork = await modest.fork()
        assert int((await fork.exec(argv, user=user)).stdout) == alone
        await fork.stop()
        await holder.kill()


def test_two_drivers_never_have_the_same_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_ranges, "_SHARED_FOLDER", str(tmp_path))
    monkeypatch.setattr(id_ranges, "COUNT", 6)
    one, other = IdRanges(""), IdRanges("")
    taken = [one.take(), other.take(), one.take(), other.take(), one.take(), other.take()]
    assert sorted(taken) == [id_ranges.FIRST + number * IDS for number in range(6)]
    with pytest.raises(OSError, match="ranges of user ids are in use"):
        one.take()
    one.give_back(taken[2])
    assert other.take() == taken[2]
    for ranges in (one, other):
        os.close(ranges.file)


def test_the_ranges_of_a_driver_that_was_killed_are_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_ranges, "_SHARED_FOLDER", str(tmp_path))
    monkeypatch.setattr(id_ranges, "COUNT", 1)
    context = multiprocessing.get_context("fork")
    taken = context.Event()

    def hold() -> None:
        IdRanges("").take()
        taken.set()
        context.Event().wait()

    driver = context.Process(target=hold)
    driver.start()
    assert taken.wait(30)
    ours = IdRanges("")
    with pytest.raises(OSError, match="in use"):
        ours.take()
    driver.kill()
    driver.join()
    assert ours.take() == id_ranges.FIRST
    os.close(ours.file)


def test_the_file_of_ranges_lies_in_the_store_where_the_machine_offers_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(id_ranges, "_SHARED_FOLDER", str(tmp_path / "file" / "below"))
    ranges = IdRanges(str(tmp_path / "store"))
    assert os.path.samestat(os.fstat(ranges.file), (tmp_path / "store" / "id-ranges").stat())
    os.close(ranges.file)


async def test_sandboxes_that_share_user_ids_are_announced(backend: LocalBackend, identity: Identity) -> None:
    notes = (await backend.status()).notes
    if identity == "idmap":
        assert notes == ()
    else:
        assert "limits that the kernel keeps per user" in notes[0]


async def test_sandboxes_with_the_machines_own_ids_are_announced(store: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can choose this")
    backend = LocalBackend(store, identity="identity")
    try:
        assert "the file system of the store cannot shift owners" in (await backend.status()).notes[0]
    finally:
        await backend.close()
