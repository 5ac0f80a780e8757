"""`BuiltinAssessor`: plays a declared game with A2A peers and gives the verdict, as the executor of an A2A server.

In: a message with `{"participants": {role: url}, "config": {…}}`. Out: the live log as status updates, reward events,
one artifact with the verdict, and a state: `completed`, `rejected` (the request is wrong), `failed` (with
`participant_failure` where a participant is to blame).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import anyio.lowlevel

from benchflow.arena.a2a_cards import plain_url
from benchflow.arena.a2a_client import A2APeer, Answer
from benchflow.arena.a2a_exchange import PeerLimits
from benchflow.arena.a2a_tasks import Updates
from benchflow.arena.a2a_types import Message, PeerFailure, Reply, json_parts, parts_of
from benchflow.arena.game_judge import Ask, judged
from benchflow.arena.game_play import (
    Play,
    answered,
    begin,
    facts,
    forfeited,
    payoffs,
    progress,
    question,
    told,
    winner,
)
from benchflow.errors import IssuesError, JudgeFailure
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.task.config.parsed_record import IssueLog
from benchflow.task.verifier.game_expressions import EvaluationError
from benchflow.task.verifier.game_protocol import Game, read_game

ARTIFACT: Final = "Verdict"
MAX_ANSWER: Final = 4 << 20
"""Maximum bytes of an answer of a participant; its text has the limit of the protocol."""
PeerOf = Callable[[str, str], A2APeer]
"""The peer that plays a role at an address; it is not entered yet."""


class Rejected(Exception):
    """A request that the assessor does not take; `str()` is the sentence for its client."""


@dataclass(frozen=True, slots=True)
class AssessmentRequest:
    """What a client asks for: who plays which role, and with which seed."""

    participants: Mapping[str, str]
    seed: int | None


def read_request(
    message: Message, game: Game, config: Mapping[str, Any], refusal: Callable[[str], str | None] = plain_url
) -> AssessmentRequest:
    """The request in a message: a JSON text, or a data part. Raises `Rejected`.

    `refusal` says why a plain address is not called.
    """
    request = _request_object(message)
    unknown = sorted(request.keys() - {"participants", "config"})
    if unknown:
        raise Rejected(f"The request has the key {unknown[0][:60]!r}; it takes participants and config.")
    participants = request.get("participants")
    if not isinstance(participants, dict) or not all(isinstance(url, str) for url in participants.values()):
        raise Rejected("The request needs participants: an object with a URL for each role.")
    for role in game.roles:
        if role not in participants:
            raise Rejected(f"The role {role!r} has no participant; the game has {', '.join(game.roles)}.")
    for role, url in participants.items():
        if role not in game.roles:
            raise Rejected(f"Unknown role {role[:60]!r}; available: {', '.join(game.roles)}.")
        problem = plain_url(url) or refusal(url)
        if problem is not None:
            raise Rejected(f"The address of {role!r} {problem}.")
    return AssessmentRequest(participants, _seed(request.get("config") or {}, config))


def _request_object(message: Message) -> dict[str, Any]:
    """The text has precedence: in a data part, integers may have become floats on the way."""
    found: Any = message.data[0] if message.data else None
    if message.text.strip():
        try:
            found = parse_json(message.text)
        except StrictJSONError as error:
            if found is None:
                raise Rejected(f"The request {error}.") from error
    if not isinstance(found, dict):
        raise Rejected("The request must be one JSON object with participants and config.")
    return found


def _seed(asked: Any, config: Mapping[str, Any]) -> int | None:
    """Only the seed can be chosen; whatever else is sent must be what the package says."""
    if not isinstance(asked, dict):
        raise Rejected("The config of the request must be an object.")
    for key, value in asked.items():
        if key != "seed" and (key not in config or config[key] != value):
            raise Rejected(f"The config has {key[:60]!r}: this game is fixed, and only its seed can be chosen.")
    seed = asked.get("seed")
    if isinstance(seed, float) and seed.is_integer():
        seed = int(seed)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= 2**53):
        raise Rejected("The seed must be an integer from 0 to 2^53.")
    return seed


class BuiltinAssessor:
    """The assessor of a package without one of its own; it plays any number of games at once."""

    def __init__(
        self,
        config: Mapping[str, Any],
        peers: PeerOf | None = None,
        judge: Ask | None = None,
        refusal: Callable[[str], str | None] = plain_url,
    ) -> None:
        """`config` is that of the strategy; a wrong one is an `IssuesError`. `judge` is needed for its criteria.

        `refusal` says why the address of a participant is not called.
        """
        problems = IssueLog("verifier/verifier.md")
        self.game: Final = IssuesError.require(read_game(config, "config", problems), problems.issues)
        self._config: Final = dict(config)
        self._peers: Final = peers or self._plain_peer
        self._judge: Final = judge
        self._refusal: Final = refusal

    def _plain_peer(self, _role: str, url: str) -> A2APeer:
        return A2APeer(url, timeout=self.game.turn_timeout_sec, limits=PeerLimits(MAX_ANSWER))

    async def cancel(self, context_id: str) -> None:
        """Nothing is kept between games: cancelling the answer ends the game and closes its connections."""

    async def answer(self, message: Message, context_id: str, updates: Updates) -> Reply:  # noqa: ARG002 - no memory
        """One game; nothing is remembered of the ones before."""
        try:
            request = read_request(message, self.game, self._config, self._refusal)
        except Rejected as error:
            return Reply.text(str(error), "rejected")
        if self.game.criteria and self._judge is None:
            return Reply.text("The game has criteria for a judge, but no judge.", "failed")
        seed = next(each for each in (request.seed, self.game.seed, secrets.randbelow(2**31)) if each is not None)
        play = begin(self.game, seed)
        await updates.status(f"The game begins: {', '.join(self.game.roles)}; seed {seed}.")
        try:
            async with AsyncExitStack() as stack:
                table = _Table(play, {}, {}, updates)
                await table.seat(stack, self._peers, request.participants)
                play = await table.run()
            return await self._verdict(play, updates)
        except PeerFailure as error:
            return _failed(error)
        except (EvaluationError, JudgeFailure) as error:
            return Reply.text(f"The game cannot be scored: {error}", "failed")

    async def _verdict(self, play: Play, updates: Updates) -> Reply:
        if play.failure is not None:
            return _failed(ParticipantFailure(play.failure.role, PeerFailure("protocol", play.failure.message)))
        grades = await judged(play, self._judge) if self._judge is not None and self.game.criteria else {}
        rewards = payoffs(play, grades)
        first = winner(play, rewards, grades)
        for role, reward in rewards.items():
            await updates.status(data=_reward_event(role, reward, terminal=True))
        messages = {role: sum(each.role == role for each in play.played) for role in self.game.roles}
        participants = {
            role: {
                "reward": reward,
                "status": "forfeited" if role in play.out else "played",
                "messages": messages[role],
            }
            for role, reward in rewards.items()
        }
        details = {**facts(play), **({"grades": grades} if grades else {})}
        verdict = {"participants": participants, "winner": first, "rewards": rewards, "details": details}
        await updates.artifact(json_parts(verdict), ARTIFACT)
        return Reply()


class ParticipantFailure(PeerFailure):
    """A peer's failure, with the role it plays."""

    def __init__(self, role: str, error: PeerFailure) -> None:
        super().__init__(error.problem, str(error))
        self.role: Final = role


def _failed(error: PeerFailure) -> Reply:
    role = error.role if isinstance(error, ParticipantFailure) else None
    failure = {"role": role, "problem": error.problem, "message": str(error)}
    return Reply(parts_of(f"participant-failed: {role}: {error}", {"participant_failure": failure}), "failed")


def _reward_event(role: str, reward: float, *, terminal: bool) -> dict[str, Any]:
    return {"reward_event": {"role": role, "reward": reward, "terminal": terminal}}


@dataclass(slots=True)
class _Table:
    """A game with its peers: every question goes to one, and its answer back into the game."""

    play: Play
    peers: dict[str, A2APeer]
    talks: dict[str, Answer]
    """The last answer of each role: its conversation, and the task if that waits for us."""
    updates: Updates

    async def seat(self, stack: AsyncExitStack, peers: PeerOf, participants: Mapping[str, str]) -> None:
        """Reach everyone before the game begins; who cannot be reached has failed."""
        for role, url in participants.items():
            try:
                self.peers[role] = await stack.enter_async_context(peers(role, url))
            except PeerFailure as error:
                self._lost(role, error)
                await self.updates.status(f"{role} forfeits: {error}")

    async def run(self) -> Play:
        while not self.play.over:
            asked = question(self.play)
            peer = self.peers[asked.role]
            try:
                context, task = self._where(asked.role)
                answer = await peer.ask(asked.text, context_id=context, task_id=task)
                if answer.state in ("failed", "rejected", "canceled", "auth-required"):
                    raise PeerFailure("refused", f"The participant ended its task as {answer.state}.")
            except PeerFailure as error:
                self._lost(asked.role, error)
                await self.updates.status(f"{asked.role} forfeits: {error}")
                continue
            self.talks[asked.role] = answer
            turns = len(self.play.played)
            self.play = answered(self.play, answer.text)
            if len(self.play.played) > turns:
                await self.updates.status(told(self.play))
                for role, reward in progress(self.play).items():
                    await self.updates.status(data=_reward_event(role, reward, terminal=False))
            await anyio.lowlevel.checkpoint()
        return self.play

    def _where(self, role: str) -> tuple[str | None, str | None]:
        """The conversation of a role, and its task if that asked for input."""
        last = self.talks.get(role)
        if last is None:
            return None, None
        return last.context_id, last.task_id if last.state == "input-required" else None

    def _lost(self, role: str, error: PeerFailure) -> None:
        """A participant that failed has lost if the protocol says so; otherwise the game has no result."""
        if self.play.game.forfeit is None:
            raise ParticipantFailure(role, error) from error
        self.play = forfeited(self.play, role)
