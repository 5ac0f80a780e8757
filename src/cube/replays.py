"""Episodes of a debug agent, and the same actions again: after a reset, with evaluations between, beside another task.

The result of an episode must not depend on what happened before or happens at the same time. Rewards and ends are
compared; observations only if two new tasks agree on them, since a terminal may show the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final

from cube.core import Action, EnvironmentOutput, Observation
from cube.differences import observation_difference, shown
from cube.episodes import DebugAgent
from cube.findings import Broken, Played, require
from cube.task import Task, UnscoredError, evaluate_task
from cube.task_rules import reset

LAST_WORDS: Final = 200
"""Maximum characters of the last observation in a finding."""


@dataclass(slots=True)
class Play:
    """What was done, and the results."""

    first: Observation
    actions: list[list[Action]] = field(default_factory=list)
    outputs: list[EnvironmentOutput] = field(default_factory=list)

    def outcome_difference(self, other: Play) -> str:
        """Where rewards or ends differ, if they do."""
        for number, (mine, its) in enumerate(zip(self.outputs, other.outputs, strict=False), 1):
            for name, left, right in (
                ("reward", mine.reward, its.reward),
                ("done", mine.done, its.done),
                ("error", mine.error and mine.error.error_type, its.error and its.error.error_type),
            ):
                if left != right:
                    return f"step {number}, {name}: {shown(left)} != {shown(right)}"
        return ""

    def seen_difference(self, other: Play) -> str:
        """Where observations differ, if they do."""
        pairs = zip(self.outputs, other.outputs, strict=False)
        for number, (left, right) in enumerate([(self.first, other.first), *((a.obs, b.obs) for a, b in pairs)]):
            difference = observation_difference(left, right)
            if difference:
                return f"step {number}, {difference}"
        return ""


def play(task: Task[Any], agent: DebugAgent, max_steps: int) -> Play:
    """Let an agent act until the task is done; a `Broken` if that does not end with reward 1."""
    played = Play(reset(task))
    obs, done = played.first, False
    while not done and len(played.outputs) < max_steps:
        action = agent(obs, task.action_set)
        actions = [action] if isinstance(action, Action) else list(action)
        played.actions.append([each.model_copy(deep=True) for each in actions])
        output = task.step(actions)
        played.outputs.append(output)
        obs, done = output.obs, output.done
        if output.error is not None:
            raise Broken(f"Episode error: {output.error.error_type}: {output.error.exception_str}")
    said = " ".join(obs.to_markdown().split())[:LAST_WORDS]
    require(done, f"Episode did not complete in {len(played.outputs)} steps", f"the last observation is {said!r}")
    reward = played.outputs[-1].reward if played.outputs else 0.0
    require(reward == 1.0, f"Expected reward=1.0, got {reward}")
    return played


def summary(task_id: str, played: Play) -> Played:
    return Played(task_id, played.outputs[-1].reward, len(played.outputs))


def check_final_state(task: Task[Any], played: Play) -> None:
    """Evaluating the final state again gives the same reward."""
    last = played.outputs[-1]
    rewards = [evaluate_task(task, last.obs)[0] for _ in range(2)]
    if type(task).obs_postprocess is Task.obs_postprocess:  # else the step was scored by what it saw before that
        rewards.insert(0, last.reward)
    listed = ", ".join(map(str, rewards))
    require(len(set(rewards)) == 1, "evaluations of the final state differ", listed)


def check_repeated(task: Task[Any], other: Task[Any], known: Play, thread: Executor) -> tuple[str, Broken] | None:
    """Play the same again, in the task that was played and in a new one, in turns: the broken rule, if there is one.

    Everything of the new one is done in `thread`, where it was made.
    """
    mine, its = _Replay(task, known, evaluating=True), _Replay(other, known)
    try:
        for _ in zip(mine, _in_thread(its, thread), strict=True):
            pass
    except Exception as error:  # noqa: BLE001  # judged below, where the task is alone
        suspicion: str | None = f"{type(error).__name__}: {error}"
    else:
        suspicion = known.outcome_difference(mine.play) or known.outcome_difference(its.play)
        if not suspicion and not known.seen_difference(its.play):
            suspicion = known.seen_difference(mine.play)
    if not suspicion:
        return None
    steady = not known.seen_difference(its.play)
    return (
        _again(task, known, "reset", "after reset() the same actions have different results", steady=steady)
        or _again(task, known, "evaluate", "evaluate() changes the state", evaluating=True, steady=steady)
        or thread.submit(
            _again,
            other,
            known,
            "reproducible",
            "in another task of the config the same actions have different results",
        ).result()
        or ("isolated", Broken("a task changes another task of its config that is played at the same time", suspicion))
    )


def _again(
    task: Task[Any], known: Play, check: str, sentence: str, *, evaluating: bool = False, steady: bool = False
) -> tuple[str, Broken] | None:
    again = _Replay(task, known, evaluating=evaluating)
    try:
        for _ in again:
            pass
    except Exception as error:  # noqa: BLE001  # whatever the task raises now, it did not raise before
        return check, Broken(sentence, f"{type(error).__name__}: {error}")
    difference = known.outcome_difference(again.play) or (known.seen_difference(again.play) if steady else "")
    return (check, Broken(sentence, difference)) if difference else None


def _in_thread(steps: Iterable[None], thread: Executor) -> Iterator[None]:
    iterator, over = iter(steps), object()
    while thread.submit(next, iterator, over).result() is not over:
        yield


class _Replay:
    """The actions of a play once more, one step per iteration."""

    def __init__(self, task: Task[Any], known: Play, *, evaluating: bool = False) -> None:
        self._task: Final = task
        self._known: Final = known
        self._evaluating: Final = evaluating
        self.play = Play(Observation())

    def __iter__(self) -> Iterator[None]:
        self.play = Play(reset(self._task))
        last = len(self._known.actions) - 1
        yield
        for index, actions in enumerate(self._known.actions):
            if self._evaluating and index in (0, 1, last):  # scoring may be slow; these are enough to show
                self._evaluate()
            copies = [action.model_copy(deep=True) for action in actions]
            self.play.outputs.append(self._task.step(copies))
            yield

    def _evaluate(self) -> None:
        try:
            evaluate_task(self._task)
        except UnscoredError:
            return  # a state that has no score yet
