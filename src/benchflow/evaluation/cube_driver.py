"""`CubeDriver`: a policy plays one episode of a cube's task, on a course of one step.

Code of a cube runs in threads that can be abandoned, so that time limits and interrupts always work. An
action that fails is the agent's fault unless the machine, a connection or broken code caused it (`trouble_of`).
"""

from __future__ import annotations

import asyncio
import errno
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

import anyio

from benchflow.agents.protocol import Policy
from benchflow.errors import Category, EnvironmentFailure, RuntimeFailure
from benchflow.record import AgentEnd, JobRequest, Trajectory
from benchflow.rewards import Attributed, Scored, Unscored, attributed
from benchflow.rewards.verdict import MAX_REASON
from benchflow.rollout.course import Checkpoint, Course, Past
from benchflow.rollout.lifecycle import Draft, Driver
from benchflow.rollout.plan import time_for_agents
from cube.core import Action, EnvironmentOutput, Observation, StepError
from cube.task import Task, UnscoredError, evaluate_task, take_step

if TYPE_CHECKING:
    from benchflow.models.gateway import Grant

DEFAULT_MAX_STEPS: Final = 100
GRACE_SEC: Final = 5.0
"""How long an action may continue after the agent's time limit, so that its state can be scored."""
CLOSE_SEC: Final = 10.0
"""How long a task or a benchmark may take to close before it is abandoned."""
MACHINE: Final = frozenset(
    {
        "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError",
        "BrokenPipeError", "BlockingIOError", "MemoryError", "BrokenProcessPool", "gaierror", "herror",
        "URLError", "RemoteDisconnected", "BadStatusLine", "IncompleteRead", "IncompleteReadError",
        "ConnectError", "ConnectTimeout", "ReadError", "ReadTimeout", "WriteError", "WriteTimeout", "PoolTimeout",
        "NetworkError", "TransportError", "RemoteProtocolError", "ProtocolError", "MaxRetryError",
        "NewConnectionError", "NameResolutionError", "SSLError", "ClientConnectionError", "ClientConnectorError",
        "ClientOSError", "ServerDisconnectedError", "ServerTimeoutError", "ConnectionClosed", "ConnectionClosedError",
        "TargetClosedError",
    }
)  # fmt: skip
"""Failures of connections and the machine, by the names that Python and common libraries use."""
BROKEN: Final = frozenset(
    {"ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError", "NotImplementedError", "SystemError"}
)
"""Failures of code that no argument can avoid."""
_PLAIN: Final = frozenset({"OSError", "TimeoutError"})
"""The machine's if they are Python's own; a browser raises its own TimeoutError if the agent clicks on nothing."""
_OF_ARGUMENTS: Final = frozenset(
    {errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTEMPTY, errno.EXDEV, errno.EBUSY, errno.ESPIPE}
)
"""Errors of the system about paths and values that were passed to it."""

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
_Calls = SimpleQueue[Callable[[], None] | None]


class CubeDriver(Driver):
    """One episode: reset, act until done or out of steps, evaluate; the task is always closed."""

    def __init__(
        self,
        spawn: Callable[[], Task[Any]],
        policy: Policy,
        request: JobRequest,
        draft: Draft,
        trajectory: Trajectory,
        *,
        began: float,
        grant: Grant | None = None,
    ) -> None:
        """`spawn` makes the live task; `began` is when the rollout did, on the clock of the event loop."""
        super().__init__(Course())
        self._spawn: Final = spawn
        self._policy: Final = policy
        self._request: Final = request
        self._draft: Final = draft
        self._trajectory: Final = trajectory
        self._thread: Final = OwnThread(draft.task.name)
        self._began: Final = began
        self._grant: Final = grant
        self._timed_out = False

    async def take_step(self, step: Checkpoint) -> Past:
        del step  # a cube's task has one
        draft, run = self._draft, self._thread.run
        with draft.timed("environment"), attributed("environment", "environment"):
            task = await run(self._spawn)
        try:
            with draft.timed("environment"), attributed("environment", "environment"):
                observation, _ = await run(task.reset)
                self._trajectory("user_message", text=observation.to_markdown())
            with draft.timed("agent"), attributed("agent", "agent"):
                output = await self._play(task, observation)
            with draft.timed("verify"), attributed("verifier", "verify"):
                if output is not None and output.done:
                    return Past(Scored(output.reward))
                return Past(Scored((await run(_scored, task, None))[0]))
        finally:
            with anyio.move_on_after(CLOSE_SEC, shield=True):
                await run(task.close)
            self._thread.close()

    async def _play(self, task: Task[Any], observation: Observation) -> EnvironmentOutput | None:
        policy = self._policy
        try:
            policy.reset()
            return await self._act(task, observation, self._agents_until())
        finally:
            self._draft.add_agent(AgentEnd(None, self._timed_out), policy.usage)
            self._draft.note_calls(self._grant)

    def _agents_until(self) -> float:
        """When an agent that starts now has to end; a deadline of the whole rollout leaves time to evaluate."""
        whole, limit = self._request.timeout_sec, self._request.agent_timeout_sec
        latest = math.inf if whole is None else self._began + time_for_agents(whole, whole)
        return latest if limit is None else min(latest, anyio.current_time() + limit)

    async def _act(self, task: Task[Any], observation: Observation, until: float) -> EnvironmentOutput | None:
        """The output of the last action; None when there was none."""
        output: EnvironmentOutput | None = None
        for _ in range(self._request.max_steps or task.metadata.recommended_max_steps or DEFAULT_MAX_STEPS):
            with anyio.CancelScope(deadline=until) as limit:
                actions = await self._policy.act(observation, task.action_set)
            self._timed_out = limit.cancelled_caught or anyio.current_time() >= until
            if self._timed_out or not actions:
                break
            for action in actions:
                self._trajectory("tool_call", tool=action.name, arguments=action.arguments, tool_call_id=action.id)
            output = await self._step(task, actions, until)
            observation = output.obs
            error = output.error.exception_str if output.error else None
            self._trajectory("tool_result", text=observation.to_markdown(), reward=output.reward, error=error)
            blame = trouble_of(output.error) if output.error else None
            if blame is not None:
                raise Attributed(blame)
            if output.done:
                break
        return output

    async def _step(self, task: Task[Any], actions: list[Action], until: float) -> EnvironmentOutput:
        """One step; a step that does not end leaves a state that cannot be scored."""
        with attributed("environment", "agent"):
            with anyio.CancelScope(deadline=until + GRACE_SEC):
                return await self._thread.run(take_step, task, actions, partial(_scored, task))
            self._timed_out = True
            called = ", ".join(action.name for action in actions)
            raise EnvironmentFailure(
                f"The action {called} was still running {GRACE_SEC:g} s after the agent's time limit.",
                code="timeout",
            )


def _scored(task: Task[Any], obs: Observation | None) -> tuple[float, dict[str, Any]]:
    """The reward of the current state and its info; a failure is the verifier's, wherever it occurs."""
    with attributed("verifier", "verify"):
        try:
            return evaluate_task(task, obs)
        except UnscoredError as error:
            raise Attributed(attribute_unscored(error)) from error


def attribute_unscored(error: UnscoredError) -> Unscored:
    """The record of a cube's own statement that there is no score."""
    told = error.unscored
    try:
        return Unscored(told["category"], told["phase"], told["code"], told["reason"])  # type: ignore[arg-type]  # checked by it
    except (KeyError, ValueError):
        return Unscored("verifier", "verify", "evaluate-failed", str(error) or "The cube gave no reason.")


def trouble_of(error: StepError) -> Unscored | None:
    """The verdict on a failed action that is not the agent's fault; None if it is."""
    category = _category(error)
    if category is None:
        return None
    code = "tool-crashed" if error.error_type in BROKEN else "tool-failed"
    reason = " ".join(f"An action of the cube failed: {error.error_type}: {error.exception_str}".split())
    return Unscored(category, "agent", code, reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 3]}...")


def _category(error: StepError) -> Category | None:
    name = error.error_type
    if name in MACHINE or (name in _PLAIN and not _from_library(error) and _errno(error) not in _OF_ARGUMENTS):
        return "infrastructure"
    if name in BROKEN:
        return "environment"
    return next((kind.category for kind in _kinds(RuntimeFailure) if kind.__name__ == name), None)


def _from_library(error: StepError) -> bool:
    """Whether the trace names the class with a module, as it does for all that are not built in."""
    return re.search(rf"^[\w.]+\.{re.escape(error.error_type)}(:|$)", error.stack_trace, re.MULTILINE) is not None


def _errno(error: StepError) -> int | None:
    found = re.match(r"\[Errno (\d+)\]", error.exception_str)
    return int(found[1]) if found else None


def _kinds(root: type[RuntimeFailure]) -> Iterator[type[RuntimeFailure]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


class OwnThread:
    """Runs calls of foreign code in order, in one thread as long as none of them is cancelled.

    A call that is cancelled is not waited for. Nothing can end its thread: it continues until the call returns or the
    process ends, which does not wait for it either. The next call gets a new thread.
    """

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._calls: _Calls | None = None

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """What the function returns or raises. Cancelling abandons it and its thread at once."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            outcome = _outcome(function, arguments)
            with suppress(RuntimeError):  # the loop is closed: nothing is waiting
                loop.call_soon_threadsafe(_answer, answer, outcome)

        self._open().put(call)
        try:
            return await answer
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """The thread ends after the call it is in; safe to call again, and before another `run`."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None

    def _open(self) -> _Calls:
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(target=_serve, args=(self._calls,), name=self._name, daemon=True).start()
        return self._calls


def _serve(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        call()


def _outcome(function: Callable[[*Arguments], T], arguments: tuple[*Arguments]) -> Callable[[asyncio.Future[T]], None]:
    """Call, and return how to deliver the outcome. An exception that would end the loop is a failure of the call."""
    try:
        result = function(*arguments)
    except StopIteration as error:
        failure: Exception = _told(error)
    except Exception as error:  # noqa: BLE001  # the caller's to judge, in the caller's thread
        failure = error
    except BaseException as error:  # noqa: BLE001  # SystemExit, for instance, is not for foreign code to say here
        failure = _told(error)
    else:
        return lambda answer: answer.set_result(result)
    return lambda answer: answer.set_exception(failure)


def _told(error: BaseException) -> RuntimeError:
    failure = RuntimeError(f"it raised {type(error).__name__}")
    failure.__cause__ = error
    return failure


def _answer(answer: asyncio.Future[T], hand_over: Callable[[asyncio.Future[T]], None]) -> None:
    if not answer.done():
        hand_over(answer)
