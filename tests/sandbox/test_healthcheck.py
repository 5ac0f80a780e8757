"""Healthchecks count failures, wait, and say what failed."""

import pytest

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.healthcheck import wait_healthy
from benchflow.sandbox.protocol import ExecResult, Healthcheck

pytestmark = pytest.mark.anyio


class Scripted:
    """Answers each attempt with the next exit code and lets a clock of its own go on by the given seconds."""

    def __init__(self, *codes, seconds=0.0):
        self.codes = list(codes)
        self.seconds = seconds
        self.now = 0.0
        self.attempts = []

    async def exec(self, command, **options):
        self.attempts.append((command, options))
        self.now += self.seconds
        code = self.codes.pop(0) if self.codes else 1
        return ExecResult(code, b"", f"attempt {len(self.attempts)}".encode(), 0.0, timed_out=code == 124)

    def clock(self):
        return self.now


def check(**values):
    return Healthcheck("ready?", **{"interval_sec": 0.001, "start_interval_sec": 0.001, **values})


async def test_a_healthy_environment_is_ready_at_once():
    sandbox = Scripted(0)
    health = await wait_healthy(sandbox, check(timeout_sec=7.0), user="root", clock=sandbox.clock)
    assert health.attempts == 1
    assert sandbox.attempts == [("ready?", {"user": "root", "env": None, "timeout": 7.0, "max_output": 1 << 16})]


async def test_it_may_fail_fewer_times_than_retries():
    sandbox = Scripted(1, 1, 1, 0)
    assert (await wait_healthy(sandbox, check(retries=3), clock=sandbox.clock)).attempts == 4


async def test_retries_failures_in_a_row_mean_unhealthy():
    sandbox = Scripted()
    with pytest.raises(EnvironmentFailure, match="attempt 4") as caught:
        await wait_healthy(sandbox, check(retries=3), clock=sandbox.clock)
    assert len(sandbox.attempts) == 4
    assert (caught.value.code, caught.value.path) == ("unhealthy", "environment.healthcheck")


async def test_failures_in_the_start_period_do_not_count():
    sandbox = Scripted(*[1] * 9, 0, seconds=1.0)
    health = await wait_healthy(sandbox, check(retries=1, start_period_sec=9.5), clock=sandbox.clock)
    assert health.attempts == 10


async def test_after_the_start_period_failures_count():
    sandbox = Scripted(seconds=1.0)
    with pytest.raises(EnvironmentFailure):
        await wait_healthy(sandbox, check(retries=2, start_period_sec=4.5), clock=sandbox.clock)
    assert len(sandbox.attempts) == 6


async def test_a_check_that_takes_too_long_is_said():
    sandbox = Scripted(124, 124)
    with pytest.raises(EnvironmentFailure, match="limit of 30 s"):
        await wait_healthy(sandbox, check(retries=1), clock=sandbox.clock)
