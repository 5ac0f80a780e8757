"""A participant of an arena as its assessor meets it: an executor behind an endpoint that records, limits and judges.

Whatever answers (an agent of ours through the bridge, a program in a box, somebody else's server), every message passes
`Participant.answer` in both directions. A participant that cannot be reached, crashes, is silent past its limit or
breaks the protocol has failed: it says nothing more, and the first failure stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio

from benchflow.arena.a2a_tasks import Executor, Updates
from benchflow.arena.a2a_types import Message, Part, PeerFailure, PeerProblem, Reply, parts_of
from benchflow.arena.peers.message_log import MAX_STATUS, MessageLog, size_of
from benchflow.record import RoleStatus
from benchflow.rewards import Unscored, attribute
from benchflow.sandbox.protocol import OF_THE_FILE

FAILED: Final = "participant-failed:"
"""The beginning of what an assessor gets in place of an answer."""
MAX_ANSWER: Final = 4 << 20
"""Bytes of one answer."""
MAX_MESSAGES: Final = 20_000
"""Messages to one participant in one game."""
_STATUS: Final[Mapping[PeerProblem, RoleStatus]] = {
    "unreachable": "unreachable",
    "silent": "silent",
    "protocol": "broke-protocol",
    "flood": "broke-protocol",
    "refused": "broke-protocol",
}


class Silent(PeerFailure):
    """A participant that did not answer within its limit."""

    def __init__(self, role: str, limit: float) -> None:
        super().__init__("silent", f"The participant '{role}' did not answer within its limit of {limit:g} s.")


class Crashed(PeerFailure):
    """A participant that ended in the middle of a game."""

    def __init__(self, role: str, how: str) -> None:
        super().__init__("unreachable", f"The participant '{role}' {how}.")


@dataclass(frozen=True, slots=True)
class Failure:
    """How a participant failed."""

    status: RoleStatus
    verdict: Unscored
    """What the game is if the package does not count it as a loss."""

    @property
    def forfeitable(self) -> bool:
        """Whether it is the participant's own doing: a provider or a sandbox that fails is nobody's loss."""
        return self.verdict.category == "agent"


class Participant:
    """One role and who plays it."""

    def __init__(
        self, role: str, executor: Executor, log: MessageLog, assessor: str, *, on_failure: Callable[[], None]
    ) -> None:
        """`assessor` is the name of the other side in the record; `on_failure` is called at the first failure."""
        self.role: Final = role
        self.failure: Failure | None = None
        self.limit_sec: float | None = None
        """Time limit of one answer."""
        self.card: Mapping[str, Any] = {}
        """As the participant serves it; our own for an agent behind the bridge."""
        self.waiting = 0
        """Messages under way."""
        self._executor: Final = executor
        self._log: Final = log
        self._assessor: Final = assessor
        self._on_failure: Final = on_failure
        self._count = 0

    async def answer(self, message: Message, context_id: str, updates: Updates) -> Reply:
        """Pass a message on, and its answer back, both written down."""
        began = time.perf_counter()
        self._count += 1
        sent = self._log.add(
            self._assessor, self.role, message.parts, context=context_id, message_id=message.message_id
        )
        writing = time.perf_counter() - began
        if self.failure is not None or self._count > MAX_MESSAGES:
            reason = f"it was sent more than {MAX_MESSAGES} messages" if self.failure is None else "it has failed"
            return self._refused(sent.seq, context_id, reason, began)
        self.waiting += 1
        watched = _Watched(self, updates, self._log, self._assessor, sent.seq, context_id)
        try:
            with anyio.fail_after(self.limit_sec):
                asked = time.perf_counter()
                reply = await self._executor.answer(message, context_id, watched)
                answered = time.perf_counter()
            if size_of(reply.parts) > MAX_ANSWER:
                raise PeerFailure("flood", f"The participant '{self.role}' answered with more than {MAX_ANSWER} bytes.")
            if not reply.parts and reply.state == "completed":  # a message has parts: no assessor can stumble over it
                reply = replace(reply, parts=(Part.of_text(""),))
        except Exception as error:  # noqa: BLE001 - the boundary: a participant's failure is a value of the game
            self.fail(Silent(self.role, self.limit_sec or 0.0) if isinstance(error, TimeoutError) else error)
            return self._refused(sent.seq, context_id, "it has failed", began)
        finally:
            self.waiting -= 1
        self._log.add(
            self.role,
            self._assessor,
            reply.parts,
            context=context_id,
            message_id=None,
            reply_to=sent.seq,
            latency_ms=_ms(answered - began),
            overhead_ms=_ms(writing + time.perf_counter() - answered + asked - began - writing),
            state=None if reply.state == "completed" else reply.state,
        )
        return reply

    def fail(self, error: Exception) -> None:
        """The participant has failed; the first failure counts."""
        if self.failure is not None:
            return
        status: RoleStatus = "crashed"
        if isinstance(error, PeerFailure):
            status = "crashed" if isinstance(error, Crashed) else _STATUS[error.problem]
        verdict = attribute(error, "agent", "agent")
        spoilt = verdict.category == "sandbox" and verdict.code in OF_THE_FILE  # its own files, in its own box
        if verdict.category == "agent" or spoilt:
            reason = verdict.reason if self.role in verdict.reason else f"Participant '{self.role}': {verdict.reason}"
            verdict = Unscored("agent", "agent", f"participant-{status}", reason)
        self.failure = Failure(status, verdict)
        self._on_failure()

    async def cancel(self, context_id: str) -> None:
        self._log.add(self._assessor, self.role, (), "cancel", context=context_id)
        await self._executor.cancel(context_id)

    def _refused(self, reply_to: int, context_id: str, reason: str, began: float) -> Reply:
        text = f"{FAILED} the participant '{self.role}' does not answer: {reason}."
        code = "too-many-messages" if self.failure is None else self.failure.verdict.code
        latency = _ms(time.perf_counter() - began)
        known: dict[str, Any] = {"context": context_id, "reply_to": reply_to, "code": code, "latency_ms": latency}
        self._log.add(self.role, self._assessor, (Part.of_text(text),), "error", **known)
        return Reply.text(text, "failed")


class _Watched:
    """Updates on their way: written down, and bounded in number."""

    def __init__(
        self, participant: Participant, updates: Updates, log: MessageLog, assessor: str, reply_to: int, context: str
    ) -> None:
        self._participant: Final = participant
        self._updates: Final = updates
        self._log: Final = log
        self._assessor: Final = assessor
        self._known: Final[dict[str, Any]] = {"reply_to": reply_to, "context": context}
        self._count = 0

    async def status(
        self, text: str | None = None, data: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self._count += 1
        if self._count > MAX_STATUS:
            return
        self._note(parts_of(text, data), "status", state="working")
        await self._updates.status(text, data, metadata)

    async def artifact(self, parts: tuple[Part, ...], name: str | None = None) -> None:
        self._count += 1
        if self._count > MAX_STATUS or size_of(parts) > MAX_ANSWER:
            role = self._participant.role
            raise PeerFailure("flood", f"The participant '{role}' sent more artifacts than it may.")
        self._note(parts, "artifact")
        await self._updates.artifact(parts, name)

    def _note(self, parts: tuple[Part, ...], kind: Any, **more: Any) -> None:
        self._log.add(self._participant.role, self._assessor, parts, kind, **self._known, **more)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
