"""`AssessorServer`: the two applications of `bench serve a2a`.

The harness's port plays games: a client with its token names the participants and reads the verdict. The agents' port
tells the public rules, and nothing else: an agent can begin no game there, and learn nothing of one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchflow.arena.a2a_app import A2AApp, Updates, a2a_app
from benchflow.arena.a2a_cards import Card
from benchflow.arena.a2a_types import Message, Reply
from benchflow.arena.assessor_builtin import BuiltinAssessor
from benchflow.arena.game_judge import Ask
from benchflow.errors import UsageError
from benchflow.serve.a2a.reachable import Reachable
from benchflow.serve.http_server import Application, Port
from benchflow.serve.server_log import Log
from benchflow.task.package import TaskPackage
from benchflow.task.verifier.declared_strategies import AssessorStrategy
from benchflow.task.verifier.game_protocol import Game
from benchflow.verifier.judging.judge_client import JudgeModel
from cube.access import new_token

SKILL: Final = "assess"


def served_strategy(package: TaskPackage) -> AssessorStrategy:
    """The strategy of a package that can be served. Raises `UsageError`."""
    document, name = package.verifier_document, package.path.name
    strategy = document.selected if document is not None else None
    if not isinstance(strategy, AssessorStrategy):
        raise UsageError(f"{name} is not an arena: its verifier.md selects no strategy of type assessor.")
    if strategy.agent is not None:
        raise UsageError(
            f"{name} has its own assessor ({strategy.agent}), which speaks A2A itself: start it as it is documented."
            " Only the built-in assessor is served."
        )
    if not strategy.config:
        raise UsageError(f"{name} has an assessor without agent and config: there is no game to play.")
    return strategy


class AssessorServer:
    """The built-in assessor of a package, with what it may call."""

    def __init__(
        self,
        package: TaskPackage,
        reachable: Reachable,
        log: Log,
        *,
        most_games: int,
        game_timeout: float,
        path: str | None = None,
    ) -> None:
        """`path` is where the assessor is; None: at the root with a token, otherwise where nobody can guess it."""
        strategy = served_strategy(package)
        self._name: Final = package.name
        self._assessor: Final = BuiltinAssessor(
            strategy.config, judge=_judge(package, strategy), refusal=reachable.refusal
        )
        self._log: Final = log
        self._most: Final = most_games
        self._timeout: Final = game_timeout
        self._path: Final = path
        self._secret_path: Final = f"/{new_token()}"
        self._apps: list[A2AApp] = []

    def harness_url(self, port: Port) -> str:
        """Without a token the path cannot be guessed, so that a local participant does not find it."""
        return f"{port.url}{self._prefix(port)}"

    def _prefix(self, port: Port) -> str:
        if self._path is not None:
            return self._path.rstrip("/")
        return "" if port.token is not None else self._secret_path

    def applications(self, harness: Port, agent: Port) -> list[Application]:
        game = self._assessor.game
        roles = ", ".join(game.roles)
        description = (
            f'Plays {self._name} with {roles}. Send {{"participants": {{ROLE: URL}}, "config": {{"seed": N}}}}.'
        )
        assess = a2a_app(
            Card(f"{self._name} assessor", description, self.harness_url(harness), skill=SKILL),
            self._assessor,
            prefix=self._prefix(harness),
            most_running=self._most,
            time_limit=self._timeout,
            told=lambda error: self._log("game_failed", error=f"{type(error).__name__}: {error}"),
        )
        rules = a2a_app(
            Card(
                f"{self._name} rules", f"Tells the rules of {self._name} to its participants.", agent.url, skill="rules"
            ),
            RulesDesk(self._name, game),
        )
        self._apps = [assess, rules]
        return [Application(assess, harness), Application(rules, agent)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While it is entered, games are played; at its end those under way are cancelled."""
        assess, rules = self._apps
        async with assess.running(), rules.running():
            yield


class RulesDesk:
    """Answers every message with what is public of a game: its rules, roles and moves."""

    def __init__(self, name: str, game: Game) -> None:
        self._text: Final = public_rules(name, game)

    async def answer(self, message: Message, context_id: str, updates: Updates) -> Reply:  # noqa: ARG002 - one answer
        return Reply.text(self._text)

    async def cancel(self, context_id: str) -> None:
        """Nothing takes long here."""


def public_rules(name: str, game: Game) -> str:
    """The rules as far as they name no value that a seed decides or only a role knows."""
    public = game.rules is not None and game.rules.names <= {"rounds"}
    moves = "\n".join(str(move.form) for move in game.moves.values())
    told = [
        f"{name}: a game of {', '.join(game.roles)}, at most {game.rounds} rounds.",
        game.rules.fill({"rounds": game.rounds}).strip() if game.rules is not None and public else "",
        f"Moves, each on a line of its own at the end of a message:\n{moves}",
        f"A message may have {game.message_limit} characters, and an answer may take {game.turn_timeout_sec:g} s.",
    ]
    return "\n\n".join(text for text in told if text)


def _judge(package: TaskPackage, strategy: AssessorStrategy) -> Ask | None:
    criteria = strategy.config.get("judge")
    if not criteria:
        return None
    declared = package.view.config.verifier.judge.model
    model = JudgeModel(criteria.get("model") or strategy.model or declared, os.environ)

    async def ask(messages: list[dict[str, str]]) -> str:
        return (await model.ask(messages)).text

    return ask
