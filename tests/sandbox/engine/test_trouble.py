"""Engines that are missing, stopped or slow: one clear sentence each."""

import os
from pathlib import Path

import anyio
import pytest

from benchflow.errors import InfrastructureFailure, SandboxFailure
from benchflow.sandbox.engine import EngineBackend
from benchflow.sandbox.engine.box.file_records import Record
from benchflow.sandbox.engine.box.running_container import EngineContainer
from benchflow.sandbox.engine.machine.dialect import DOCKER
from benchflow.sandbox.engine.machine.engine_client import EngineClient
from benchflow.sandbox.protocol import Image, SandboxSpec

pytestmark = pytest.mark.anyio

SPEC = SandboxSpec(image=Image("x", "x"))


async def test_a_missing_engine_says_what_to_install(tmp_path):
    backend = EngineBackend("docker", command=["no-such-docker"], state=tmp_path)
    status = await backend.status()
    assert not status.usable
    assert status.capabilities == frozenset()
    assert status.reason is not None
    assert "no-such-docker" in status.reason
    assert "install" in status.reason
    with pytest.raises(InfrastructureFailure):
        await backend.create(SPEC).start()


@pytest.mark.engine
async def test_a_stopped_docker_says_how_to_start_it(tmp_path):
    backend = EngineBackend("docker", env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}, state=tmp_path)
    status = await backend.status()
    assert not status.usable
    assert status.reason is not None
    assert "is not responding" in status.reason
    with pytest.raises(InfrastructureFailure) as caught:
        await backend.resolve("x")
    assert caught.value.code == "engine-stopped"


async def test_an_engine_that_hangs_is_given_up(tmp_path, monkeypatch):
    script = tmp_path / "slow"
    script.write_text("#!/bin/sh\nsleep 60\n")
    script.chmod(0o755)
    with pytest.raises(InfrastructureFailure, match=r"did not respond to `info`"):
        await EngineClient(DOCKER, [str(script)]).run("info", timeout=0.3)


async def test_a_full_disk_is_named(tmp_path):
    script = tmp_path / "full"
    script.write_text("#!/bin/sh\necho 'Error: write /x: no space left on device' >&2; exit 1\n")
    script.chmod(0o755)
    with pytest.raises(InfrastructureFailure) as caught:
        await EngineBackend("podman", command=[str(script)], state=tmp_path).resolve("x")
    assert caught.value.code == "disk-full"


OUT_OF_ORDER = r"""#!/usr/bin/env python3
import struct, sys
data = b"x" * (1 << 22)
if "pack" in sys.argv:
    sys.stdout.buffer.write({header!r})
sys.stdout.buffer.write(data)
sys.stdout.buffer.flush()
sys.stderr.buffer.write(b"\0anchor\0" + struct.pack("<II", 7, 0))
"""
"""A client that delivers all of stdout before the greeting, which was written first."""


async def test_what_a_client_delivers_before_the_greeting_is_neither_lost_nor_waited_for(tmp_path):
    script = tmp_path / "engine"
    script.write_text(OUT_OF_ORDER.format(header=Record("f", "", 1 << 22).header()))
    script.chmod(0o755)
    container = container_of(script)
    with anyio.fail_after(20):
        assert await container.read_file("/data", max_bytes=1 << 22) == b"x" * (1 << 22)
        talking = await container.process(["cat"])
        assert b"".join([data async for data in talking.stdout()]) == b"x" * (1 << 22)
        assert await talking.wait() == 0
    await container.close()


def container_of(script: Path) -> EngineContainer:
    async def restart() -> None:
        pass

    return EngineContainer(EngineClient(DOCKER, [str(script)]), "box", user="0:0", workdir="/", env={}, restart=restart)


STARVED = r"""#!/bin/sh
case "$*" in
  *inspect*) echo "{report}" ;;
  *exec*) printf '\000anchor\000\007\000\000\000\000\000\000\000' >&2; exit 137 ;;
esac
"""


@pytest.mark.parametrize(("report", "from_outside"), [("true 0", True), ("true 536870912", False), ("false 0", False)])
async def test_a_kill_for_lack_of_memory_of_the_machine_is_told_from_the_containers_own_limit(
    tmp_path, report, from_outside
):
    script = tmp_path / "engine"
    script.write_text(STARVED.replace("{report}", report))
    script.chmod(0o755)
    container = container_of(script)
    if from_outside:
        with pytest.raises(SandboxFailure, match="the machine ran out of memory") as caught:
            await container.exec(["true"])
        assert caught.value.code == "killed-from-outside"
    assert (await container.exec(["true"])).exit_code == 137  # one report counts once
