from __future__ import annotations

import asyncio
import errno

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow import errors
from benchflow.rewards import Attributed, RewardError, attribute, attributed
from benchflow.rewards.verdict import CATEGORIES, MAX_REASON, PHASES

OWN = {
    errors.UsageError("x"): ("package", "usage"),
    errors.PackageError("x"): ("package", "invalid-package"),
    errors.UnsupportedError("x", code="gpu"): ("unsupported", "gpu"),
    errors.EnvironmentFailure("x", code="build-failed"): ("environment", "build-failed"),
    errors.SandboxFailure("x"): ("sandbox", "sandbox-failed"),
    errors.AgentFailure("x"): ("agent", "agent-failed"),
    errors.VerifierFailure("x"): ("verifier", "verifier-failed"),
    RewardError("x", code="reward-missing"): ("verifier", "reward-missing"),
    errors.JudgeFailure("x"): ("judge", "judge-failed"),
    errors.InfrastructureFailure("x"): ("infrastructure", "infrastructure-failed"),
}


@pytest.mark.parametrize("error", OWN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("boundary", CATEGORIES)
def test_an_error_of_the_tree_knows_its_boundary_wherever_it_is_raised(error: Exception, boundary: str) -> None:
    verdict = attribute(error, boundary, "verify")
    assert (verdict.category, verdict.code) == OWN[error]
    assert (verdict.phase, verdict.reason) == ("verify", "x")


FOREIGN = [
    (TimeoutError(), ("judge", "timeout")),
    (ConnectionResetError("gone"), ("judge", "connection-lost")),
    (ValueError("odd"), ("judge", "crashed")),
    (OSError(errno.ENOSPC, "No space left"), ("infrastructure", "disk-full")),
    (OSError(errno.EDQUOT, "Quota"), ("infrastructure", "disk-full")),
    (OSError(errno.EMFILE, "Too many open files"), ("infrastructure", "out-of-descriptors")),
    (BlockingIOError(errno.EAGAIN, "fork"), ("infrastructure", "out-of-processes")),
    (PermissionError(errno.EACCES, "denied"), ("infrastructure", "os-error")),
    (OSError("without a number"), ("infrastructure", "os-error")),
    (OSError(errno.ENOMEM, "Cannot allocate"), ("infrastructure", "out-of-memory")),
    (OSError(errno.ENFILE, "Too many open files"), ("infrastructure", "out-of-descriptors")),
    (MemoryError(), ("infrastructure", "out-of-memory")),
    (asyncio.CancelledError(), ("cancelled", "cancelled")),
    (GeneratorExit(), ("cancelled", "cancelled")),
    (KeyboardInterrupt(), ("cancelled", "interrupted")),
    (SystemExit(1), ("cancelled", "interrupted")),
]


@pytest.mark.parametrize(("error", "expected"), FOREIGN, ids=lambda value: type(value).__name__)
def test_a_foreign_error_belongs_to_the_machine_a_cancellation_or_the_boundary_at_work(
    error: BaseException, expected: tuple[str, str]
) -> None:
    verdict = attribute(error, "judge", "verify")
    assert (verdict.category, verdict.code) == expected


def test_of_a_group_the_failure_counts_and_not_what_it_cancelled() -> None:
    group = BaseExceptionGroup(
        "tasks", [asyncio.CancelledError(), ExceptionGroup("inner", [errors.SandboxFailure("broke")])]
    )
    assert attribute(group, "agent", "agent").category == "sandbox"
    foreign = BaseExceptionGroup("tasks", [asyncio.CancelledError(), ValueError("odd")])
    assert attribute(foreign, "judge", "verify") == attribute(ValueError("odd"), "judge", "verify")
    only = BaseExceptionGroup("tasks", [asyncio.CancelledError(), KeyboardInterrupt()])
    assert attribute(only, "agent", "agent").category == "cancelled"


def test_the_innermost_block_attributes() -> None:
    with pytest.raises(Attributed) as caught, attributed("verifier", "verify"), attributed("judge", "verify"):
        raise ValueError("no answer")
    verdict = caught.value.verdict
    assert (verdict.category, verdict.code, verdict.reason) == ("judge", "crashed", "ValueError: no answer")
    assert (str(caught.value), caught.value.code) == (verdict.reason, verdict.code)
    assert isinstance(caught.value.__cause__, ValueError)
    assert attribute(caught.value, "infrastructure", "record") == verdict
    assert attribute(ExceptionGroup("tasks", [caught.value]), "infrastructure", "record") == verdict


def test_a_block_that_ends_well_changes_nothing() -> None:
    with attributed("agent", "agent"):
        value = 1
    assert value == 1


def test_a_cancellation_is_told_in_one_plain_sentence() -> None:
    error = asyncio.CancelledError("Cancelled via cancel scope 7f00; reason: <Task pending coro=<run()>>")
    assert attribute(error, "agent", "agent").reason == "Cancelled before it finished."


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), asyncio.CancelledError()])
def test_interrupts_pass_through_untouched(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, attributed("agent", "agent"):
        raise error
    assert caught.value is error


def test_cancellation_still_cancels() -> None:
    reached: list[str] = []

    async def work() -> None:
        with anyio.move_on_after(0.01) as scope, attributed("agent", "agent"):
            await anyio.sleep_forever()
        reached.append(f"cancelled {scope.cancelled_caught}")

    anyio.run(work)
    assert reached == ["cancelled True"]


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_a_reason_is_one_bounded_line_whatever_was_raised() -> None:
    assert attribute(UnprintableError(), "agent", "agent").reason == "UnprintableError"
    assert attribute(ValueError("a\n  b\tc"), "agent", "agent").reason == "ValueError: a b c"
    longest = attribute(errors.AgentFailure("x" * 10_000), "agent", "agent").reason
    assert longest == "x" * (MAX_REASON - 3) + "..."
    assert attribute(errors.AgentFailure("x" * MAX_REASON), "agent", "agent").reason == "x" * MAX_REASON
    assert attribute(errors.PackageError(""), "agent", "agent").reason == "PackageError"


@given(
    st.sampled_from([ValueError, OSError, RuntimeError, KeyError, errors.RuntimeFailure, EOFError]),
    st.text(),
    st.sampled_from(CATEGORIES),
    st.sampled_from(PHASES),
)
def test_every_error_gets_exactly_one_boundary(kind: type, text: str, boundary: str, phase: str) -> None:
    verdict = attribute(kind(text), boundary, phase)
    assert verdict.category in CATEGORIES
    assert verdict.phase == phase
    assert verdict.reason
    assert "\n" not in verdict.reason
