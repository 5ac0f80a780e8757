"""Every declared limit holds, also for what a sandbox forks, and `nproc` tells the truth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchflow.errors import UnsupportedError
from benchflow.sandbox.local.cgroups import Machine, restrain
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import Limits, SandboxSpec

pytestmark = pytest.mark.anyio


async def sh(box: LocalSandbox, command: str) -> str:
    result = await box.exec(command, timeout=60)
    return result.stdout.decode().strip()


async def test_nproc_agrees_with_cpus_and_cannot_be_widened(backend: LocalBackend) -> None:
    widen = "import os; os.sched_setaffinity(0, range(os.cpu_count()))"
    async with backend.create(SandboxSpec(limits=Limits(cpus=1))) as box:
        assert await sh(box, "nproc") == "1"
        await sh(box, f'/usr/bin/python3 -c "{widen}"')
        assert await sh(box, f"/usr/bin/python3 -c '{widen}' 2>/dev/null; nproc") == "1"
        fork = await box.fork()
        assert await sh(fork, "nproc") == "1"
        await fork.stop()


async def test_more_cpus_than_there_are_is_all_of_them(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(cpus=4096))) as box:
        assert await sh(box, "nproc") == str(len(os.sched_getaffinity(0)))


async def test_a_sandbox_has_4096_processes_unless_told_otherwise(backend: LocalBackend) -> None:
    found = "grep -h . /proc/self/limits | grep 'Max processes'; cat /sys/fs/cgroup/pids.max 2>/dev/null"
    async with backend.create(SandboxSpec()) as box, backend.create(SandboxSpec(limits=Limits(pids=9000))) as large:
        if "pids" in backend.machine.controllers:
            assert [pids_of(item) for item in (box, large)] == [4097, 9001]
        else:
            assert " 4096 " in await sh(box, found)
            assert " 9000 " in await sh(large, found)


def pids_of(box: LocalSandbox) -> int:
    """The limit of the control group, which counts the process that starts the others."""
    paths = [folder / "pids.max" for folder in box.groups.folders]
    return int(next(path for path in paths if path.exists()).read_text())


async def test_running_out_of_processes_is_noticed(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(pids=20))) as box:
        await box.exec("for i in $(seq 10); do sleep 30 & done")
        assert await box.limits_reached() == ()
        await box.exec("for i in $(seq 30); do sleep 30 & done")
        expected = ("processes",) if "pids" in backend.machine.controllers else ()
        assert await box.limits_reached() == expected
        await box.kill_processes()
        assert await box.limits_reached() == expected


async def test_the_number_of_processes_is_limited_and_the_sandbox_still_answers(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(pids=20))) as box:
        started = await sh(box, "for i in $(seq 40); do sleep 30 & done 2>/dev/null; jobs -p | wc -l")
        assert started == "" or int(started) <= 20
        await box.kill_processes()
        assert await sh(box, "echo alive") == "alive"


async def test_storage_and_inodes_are_limited_across_forks(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(storage_mb=64, inodes=500))) as box:
        await sh(box, "head -c 40000000 /dev/zero > first")
        fork = await box.fork()
        assert int(await sh(fork, "head -c 80000000 /dev/zero > second 2>/dev/null; stat -c %s second")) < 34 << 20
        made = await sh(fork, "rm second; for i in $(seq 600); do touch f$i || break; done 2>/dev/null; ls | wc -l")
        assert int(made) < 510
        assert await sh(fork, "stat -c %s first") == "40000000"
        await fork.stop()


async def test_a_copy_with_reverted_paths_has_the_whole_storage_limit_to_itself(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(storage_mb=32))) as box:
        await sh(box, "head -c 80000000 /dev/zero > first 2>/dev/null; true")
        fork = await box.fork(revert=lambda changes: [])
        assert await sh(fork, "head -c 20000000 /dev/zero > second; stat -c %s second") == "20000000"
        await fork.stop()


async def test_a_storage_limit_alone_leaves_room_for_many_small_files(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(storage_mb=64))) as box:
        assert await sh(box, "for i in $(seq 2000); do : > f$i; done; ls | wc -l") == "2000"


@pytest.mark.parametrize("written", [1, 40])
async def test_the_next_sandbox_with_a_storage_limit_finds_nothing_of_the_last_one(
    backend: LocalBackend, store: Path, written: int
) -> None:
    for size in range(8, 26):  # kinds that were used before leave room for this one
        async with backend.create(SandboxSpec(limits=Limits(storage_mb=size))):
            pass
    spec = SandboxSpec(limits=Limits(storage_mb=48))
    fill = f"mkdir -p a/b; head -c {written}M /dev/zero > a/b/c; chmod 0 a/b/c; chmod 111 a; touch /tmp/d"
    async with backend.create(spec) as box:
        await sh(box, fill)
    volumes = set(store.glob("owners/*/volume-*"))
    for _ in range(3):
        async with backend.create(spec) as box:
            assert await box.changes() == []
            assert await sh(box, "ls -A . /tmp | grep -v :") == ""
            assert await sh(box, "head -c 45M /dev/zero > all; stat -c %s all") == str(45 << 20)
    assert set(store.glob("owners/*/volume-*")) <= volumes


async def test_limits_that_cannot_be_kept_are_refused_before_anything_starts(backend: LocalBackend) -> None:
    with pytest.raises(UnsupportedError, match="GPUs"):
        await backend.create(SandboxSpec(limits=Limits(gpus=1))).start()
    with pytest.raises(UnsupportedError, match="0 cpus"):
        await backend.create(SandboxSpec(limits=Limits(cpus=0))).start()


def test_without_control_groups_other_means_keep_the_limits() -> None:
    bare = Machine(cpus=(0, 1, 2, 3), hierarchies=())
    kept = restrain(Limits(cpus=2, memory_mb=100, pids=30), bare)
    assert dict(kept.rlimits) == {"CORE": 0, "NPROC": 30, "DATA": 100 << 20}
    assert (len(kept.cpus), kept.pin_cpus, kept.memory_watch) == (2, True, 100 << 20)
    with pytest.raises(UnsupportedError, match="whole numbers"):
        restrain(Limits(cpus=0.5), bare)


def test_sandboxes_spread_over_the_processors() -> None:
    bare = Machine(cpus=(0, 1, 2, 3), hierarchies=())
    used = {restrain(Limits(cpus=1), bare).cpus for _ in range(4)}
    assert len(used) == 4
