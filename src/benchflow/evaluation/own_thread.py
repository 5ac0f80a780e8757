"""Calls of foreign code, one after the other, in a thread that can be left behind.

A call that is cancelled is not waited for. Nothing can end its thread: it goes on until the call returns, or until the
process ends, which does not wait for it either. Whoever calls next gets a new thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
_Calls = SimpleQueue[Callable[[], None] | None]


class OwnThread:
    """Runs calls in order, all in the same thread as long as none of them is cancelled."""

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._calls: _Calls | None = None

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """What the function returns or raises. Cancelling leaves it, and its thread, behind at once."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            outcome = _outcome(function, arguments)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
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
    """Call; how to hand over what comes of it. What would end the process or the loop is a failure of the call."""
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
