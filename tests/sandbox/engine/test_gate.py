"""The limits on starts and the circuit that opens when an engine fails."""

import anyio
import pytest

from benchflow.errors import InfrastructureFailure, SandboxFailure
from benchflow.sandbox.engine.machine.gate import EngineGate, GateLimits

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


async def fail(gate, error):
    with pytest.raises(type(error)):
        async with gate.slot():
            raise error


async def test_no_more_starts_at_once_than_allowed():
    gate = EngineGate("docker", GateLimits(concurrent=2, per_second=10_000))
    running, most = 0, 0

    async def start():
        nonlocal running, most
        async with gate.slot():
            running += 1
            most = max(most, running)
            await anyio.sleep(0.01)
            running -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(start)
    assert most == 2


async def test_the_circuit_opens_after_failures_in_a_row_and_closes_again():
    clock = Clock()
    gate = EngineGate("docker", GateLimits(failures=3, pause_sec=30, per_second=10_000), clock)
    for _ in range(3):
        await fail(gate, InfrastructureFailure("gone"))
    with pytest.raises(InfrastructureFailure, match=r"3 times in a row.*30 seconds.*gone"):
        async with gate.slot():
            pytest.fail("let through")
    async with gate.turn():
        pass
    clock.now = 31
    async with gate.slot():
        pass
    await fail(gate, InfrastructureFailure("gone"))
    async with gate.slot():
        pass


async def test_failures_of_sandboxes_do_not_open_it():
    gate = EngineGate("docker", GateLimits(failures=1, per_second=10_000), Clock())
    await fail(gate, SandboxFailure("its own fault"))
    async with gate.slot():
        pass
