"""A loop in which waiting costs nothing, and work in threads takes no time."""

import time

import anyio
import anyio.to_thread
import pytest

from benchflow.testing import VirtualTimeLoop


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualTimeLoop}


pytestmark = pytest.mark.anyio


async def test_an_hour_passes_at_once_and_deadlines_follow_it():
    began, real = anyio.current_time(), time.monotonic()
    with anyio.move_on_after(3600) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert anyio.current_time() - began == pytest.approx(3600)
    assert time.monotonic() - real < 60


async def test_waits_end_in_the_order_of_their_deadlines():
    order = []

    async def wait(seconds: float) -> None:
        await anyio.sleep(seconds)
        order.append(seconds)

    async with anyio.create_task_group() as group:
        for seconds in (30, 0.5, 600, 2):
            group.start_soon(wait, seconds)
    assert order == [0.5, 2, 30, 600]


async def test_time_stands_still_while_a_thread_works():
    began = anyio.current_time()
    with anyio.fail_after(0.001):
        await anyio.to_thread.run_sync(time.sleep, 0.1)
    assert anyio.current_time() == began
