"""The other side of a conversation: users that choose the next prompt of the agent.

A user gets the instruction first (`setup`), then one call per round (`run`) with what happened in the last one, and
answers with the next prompt, or None when it has nothing more to say. Users run on this side of the sandbox: what they
know (private facts, the oracle) reaches the agent only through their messages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from benchflow.errors import BenchflowError, InfrastructureFailure
from benchflow.record import Event

if TYPE_CHECKING:
    from benchflow.models import ChatModel
    from benchflow.models.gateway import Access

FOLLOW_UP: Final = "User follow-up:"
MODEL_TRAJECTORY_CHARS: Final = 6_000
MAX_ANSWER_TOKENS: Final = 512
_PART: Final = (
    "You play the user of an assistant that works on a task. Answer as this user would, in a few plain sentences, and"
    " do not do the work yourself. Tell a private fact only when the assistant asked for it."
    " Reply with the single word DONE when there is nothing to say."
)
_SILENCE: Final = re.compile(r"\W*(none|null|stop|done)?\W*", re.IGNORECASE)
_SENTENCE: Final = re.compile(r"[^.!?\n]+[.!?]*|[?]")
_ASKING: Final = re.compile(
    r"\?\s*$|^(what|which|where|when|who|whose|how)\b|\b(clarify|tell me|let me know|need to know"
    r"|please (give|provide|specify|share|confirm)|could you|can you|do you know)\b",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[a-z0-9]+")
_SHORTEST: Final = 3
_EMPTY_WORDS: Final = frozenset(
    ("the", "and", "for", "with", "use", "need", "this", "that", "from", "only", "after", "what", "which", "are", "you")
)

ModelCall = Callable[[str, str], Awaitable[str]]
"""Calls a model (its name, then the prompt) and returns its answer; raises `InfrastructureFailure`."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The outcome of one round."""

    round: int
    trajectory: Sequence[Event] = ()
    """The events of the round, redacted."""
    rewards: Mapping[str, float] | None = None
    """Of the soft verification after the round; None when there was none or it gave no reward."""
    verifier_output: str | None = None
    verifier_error: str | None = None
    n_tool_calls: int = 0
    scene: str | None = None
    role: str | None = None
    handoff_from: str | None = None
    handoff_to: str | None = None

    def messages(self) -> list[str]:
        """What the agent said: its messages only, neither its thoughts nor what tools printed."""
        return [str(event["text"]) for event in self.trajectory if event["type"] == "agent_message" and "text" in event]


class BaseUser:
    """A user of a multi-round rollout. Override `run`, and `setup` when the instruction or the oracle matters."""

    wants_rewards: bool = True
    """Whether the workspace is verified after each round, on a fork, for this user to see the reward."""
    follows_scenes: bool = False
    """Whether declared turns run even when the user has nothing to say about them."""

    async def setup(self, instruction: str, solution: str | None = None) -> None:
        """Called once, before the first round; `solution` is the oracle's script when oracle access was granted."""

    async def run(self, round: int, instruction: str, round_result: RoundResult | None) -> str | None:  # noqa: A002 - the name of the seam
        """The prompt of round `round` (from 0); None ends the conversation."""
        raise NotImplementedError

    def branch(self) -> BaseUser | None:
        """An independent copy that continues in a branch; None: a branch runs only declared turns."""
        return None


class PassthroughUser(BaseUser):
    """Sends the instruction once."""

    wants_rewards = False

    async def run(self, round: int, instruction: str, round_result: RoundResult | None) -> str | None:  # noqa: A002 - the name of the seam
        del round_result
        return instruction if round == 0 else None


Answer = str | None
UserFunction = Callable[[int, str, RoundResult | None], Answer | Awaitable[Answer]]


class FunctionUser(BaseUser):
    """A user made of one function, plain or asynchronous."""

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    async def run(self, round: int, instruction: str, round_result: RoundResult | None) -> str | None:  # noqa: A002 - the name of the seam
        answer = self._function(round, instruction, round_result)
        return await answer if inspect.isawaitable(answer) else answer


class DocumentNudgeUser(BaseUser):
    """A declared user with private facts: says the instruction, then a fact whenever the agent asks for exactly that.

    At most one new fact per round, in the order of declaration; None when nothing was asked for.
    """

    wants_rewards = False
    follows_scenes = True

    def __init__(self, private_facts: Mapping[str, str] | None = None, *, persona: str | None = None) -> None:
        self.persona: Final = persona
        self._facts: Final = dict(private_facts or {})
        self._revealed: set[str] = set()

    def branch(self) -> DocumentNudgeUser:
        copy = DocumentNudgeUser(self._facts, persona=self.persona)
        copy._revealed = set(self._revealed)
        return copy

    @property
    def revealed(self) -> tuple[str, ...]:
        """Keys of the facts that were revealed."""
        return tuple(key for key in self._facts if key in self._revealed)

    async def run(self, round: int, instruction: str, round_result: RoundResult | None) -> str | None:  # noqa: A002 - the name of the seam
        if round == 0 or round_result is None:
            return instruction
        messages = round_result.messages()
        for key, value in self._facts.items():
            if key not in self._revealed and asks_about(messages, key, value):
                self._revealed.add(key)
                return f"Additional user detail for {key.replace('_', ' ')}: {value}"
        return None


class ModelDocumentNudgeUser(BaseUser):
    """A declared user that a model plays: a persona, private facts, or both.

    The model is given the facts only once the agent has asked something, so that it cannot reveal anything
    unasked. An empty answer, or one that says none, stop or done, ends the conversation.
    """

    follows_scenes = True

    def __init__(
        self,
        model: str,
        *,
        persona: str | None = None,
        private_facts: Mapping[str, str] | None = None,
        call_model: ModelCall | None = None,
    ) -> None:
        self.model: Final = model
        self.persona: Final = persona
        self._facts: Final = dict(private_facts or {})
        self._call: Final = call_model or model_caller()

    def branch(self) -> ModelDocumentNudgeUser:
        return self  # it remembers nothing between rounds

    async def run(self, round: int, instruction: str, round_result: RoundResult | None) -> str | None:  # noqa: A002 - the name of the seam
        if round == 0 or round_result is None:
            return instruction
        answer = (await self._call(self.model, self._prompt(instruction, round_result))).strip()
        return None if _SILENCE.fullmatch(answer) else answer

    def _prompt(self, instruction: str, last: RoundResult) -> str:
        asked = bool(questions_in(last.messages()))
        parts = [
            _PART,
            f"Persona:\n{self.persona}" if self.persona else "",
            f"The task, as given to the assistant:\n{instruction}",
            _facts(self._facts) if asked and self._facts else "",
            _state(last),
            f"What the assistant did and said last:\n{_transcript(last.trajectory)}",
        ]
        return "\n\n".join(part for part in parts if part)


def _facts(facts: Mapping[str, str]) -> str:
    return "Private facts:\n" + "\n".join(f"- {key.replace('_', ' ')}: {value}" for key, value in facts.items())


def _state(last: RoundResult) -> str:
    lines = [f"Round {last.round + 1} is over."]
    if last.role is not None:
        lines.append(f"Role: {last.role}; scene: {last.scene}.")
    if last.handoff_to is not None:
        lines.append(f"The work was handed from {last.handoff_from} to {last.handoff_to}.")
    if last.rewards is not None:
        lines.append("Checks so far: " + ", ".join(f"{name} {value:g}" for name, value in last.rewards.items()))
    if last.verifier_error is not None:
        lines.append(f"The checks could not be made: {last.verifier_error}")
    return "\n".join(lines)


def _transcript(events: Sequence[Event]) -> str:
    lines = [f"[{event['type']}] {_said(event)}" for event in events]
    return "\n".join(lines)[-MODEL_TRAJECTORY_CHARS:]


def _said(event: Mapping[str, Any]) -> Any:
    for key in ("text", "title", "content", "output"):
        if event.get(key):
            return event[key]
    return ""


class Helper(Protocol):
    """What a model that plays a user can use before it answers."""

    async def ask(self, chat: ChatModel, prompt: str, *, max_output_tokens: int) -> str:
        """The answer of the model to a prompt."""


def model_caller(
    machine: Mapping[str, str] | None = None, access: Access | None = None, tools: Helper | None = None
) -> ModelCall:
    """Asks models with the keys among these variables; the process's own when left out. Calls are recorded and counted
    by `access`; the models may call `tools`."""

    async def ask(model: str, prompt: str) -> str:
        from benchflow.models import ChatModel, ModelFailure
        from benchflow.models.chat import LIMIT_CODES

        messages = [{"role": "user", "content": prompt}]
        try:
            chat = ChatModel(model, machine, access=access)
            if tools is not None:
                return await tools.ask(chat, prompt, max_output_tokens=MAX_ANSWER_TOKENS)
            reply = await chat.complete(messages, max_output_tokens=MAX_ANSWER_TOKENS)
        except ModelFailure as error:
            if error.code in LIMIT_CODES:
                return ""  # nothing more is said, and what the agent left is verified
            raise InfrastructureFailure(f"The simulated user failed: {error}", code=error.code) from error
        return reply.text

    return ask


def questions_in(messages: Iterable[str]) -> list[str]:
    """The sentences that ask for something."""
    sentences = (sentence.strip() for message in messages for sentence in _SENTENCE.findall(message))
    return [sentence for sentence in sentences if _ASKING.search(sentence)]


def signal_words(text: str) -> frozenset[str]:
    """The words of a text that say what it is about; all of its words when none does."""
    words = _WORD.findall(text.lower().replace("_", " "))
    telling = frozenset(word for word in words if len(word) >= _SHORTEST and word not in _EMPTY_WORDS)
    return telling or frozenset(words)


def asks_about(messages: Iterable[str], key: str, value: str) -> bool:
    """Whether one question names all that a fact's key is about, or says its whole value."""
    subjects = [words for words in (signal_words(key), frozenset(_WORD.findall(value.lower()))) if words]
    for question in questions_in(messages):
        said = _WORD.findall(question.lower())
        if any(all(_mentioned(word, said) for word in words) for words in subjects):
            return True
    return False


def _mentioned(word: str, said: list[str]) -> bool:
    """The word itself, or a form of it: `region` is mentioned in `regions`."""
    return any(other == word or (len(word) >= _SHORTEST and other.startswith(word)) for other in said)


async def next_prompt(
    user: BaseUser | None, number: int, declared: str | None, instruction: str, last: RoundResult | None
) -> str | None:
    """The prompt of round `number`; None ends the conversation.

    `declared` is the prompt of a declared turn, None in a free round, where the user hears the `instruction`.
    """
    if user is None:
        return declared
    with user_boundary():
        said = await user.run(number, instruction if declared is None else declared, last)
    if declared is None or not user.follows_scenes:
        return said
    return declared if said in (None, declared) else f"{declared}\n\n{FOLLOW_UP}\n{said}"


def handoff_note(last: RoundResult | None) -> str:
    """What the next role learns about the previous one: its name, and how much it did."""
    if last is None:
        return ""
    return f"\n\nHandoff from {last.role} (scene {last.scene}): {last.n_tool_calls} tool calls in its last turn."


@contextmanager
def user_boundary() -> Iterator[None]:
    """An exception of a user is a failure of the caller, not of the agent."""
    try:
        yield
    except BenchflowError:
        raise
    except Exception as error:  # a user is the caller's own code
        message = f"The user of this rollout failed: {type(error).__name__}: {error}"
        raise InfrastructureFailure(message[:2000], code="user-failed") from error
