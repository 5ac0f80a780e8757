"""Waits until an environment is ready, by the rules of a healthcheck.

The command is tried at once, then every `start_interval_sec` while the start period lasts and every
`interval_sec` after it. Failures inside the start period, and the very first one, do not count; `retries`
failures in a row after that mean that the environment is not healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.protocol import ExecResult, Healthcheck


@dataclass(frozen=True, slots=True)
class Health:
    """How an environment became ready."""

    attempts: int
    waited_sec: float


class Executes(Protocol):
    """A sandbox, or one service of it."""

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        max_output: int = 8 << 20,
    ) -> ExecResult: ...


async def wait_healthy(
    sandbox: Executes,
    check: Healthcheck,
    *,
    user: str | None = None,
    env: dict[str, str] | None = None,
    clock: Callable[[], float] = anyio.current_time,
) -> Health:
    """Return once the command has succeeded; an `EnvironmentFailure` (`unhealthy`) shows its last output."""
    started = clock()
    attempts = failures = 0
    while True:
        result = await sandbox.exec(check.command, user=user, env=env, timeout=check.timeout_sec, max_output=1 << 16)
        attempts += 1
        waited = clock() - started
        if result.ok:
            return Health(attempts, waited)
        in_start_period = waited < check.start_period_sec
        if not in_start_period and attempts > 1:
            failures += 1
        if failures >= check.retries:
            raise _unhealthy(check, result, attempts, waited)
        pause = check.interval_sec
        if in_start_period:
            # The last pause of the start period ends with it.
            pause = min(check.start_interval_sec, max(check.start_period_sec - waited, 0.0)) or pause
        await anyio.sleep(pause)


def _unhealthy(check: Healthcheck, result: ExecResult, attempts: int, waited: float) -> EnvironmentFailure:
    command = check.command if isinstance(check.command, str) else " ".join(check.command)
    how = (
        f"exceeded its limit of {check.timeout_sec:g} s" if result.timed_out else f"exited with code {result.exit_code}"
    )
    output = (result.stdout + result.stderr).decode(errors="replace").strip().splitlines()
    last = f" Its last line: {output[-1][:300]}" if output else ""
    message = (
        f"The healthcheck of the environment failed {attempts} times in {waited:.1f} s: `{command[:200]}` {how}.{last}"
    )
    return EnvironmentFailure(message, code="unhealthy", path="environment.healthcheck")
