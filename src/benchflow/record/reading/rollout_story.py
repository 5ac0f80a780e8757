"""One rollout as a reader wants it: how it ended and why, what the verifier said, its reward by parts, its files.

Everything is derived from the folder of a rollout through the readers of this package; nothing is rendered here. What
may be large is bounded: of an output the beginning and the end are kept, and a trajectory is not read at all
(`trajectory_steps` reads it by pages). All texts are as an agent or a verifier wrote them: escape them before showing.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record.arena_record import ArenaPart
from benchflow.record.layout import RolloutFolder, StepFolder, is_folder_name
from benchflow.record.outcome import FULL
from benchflow.record.reading.failing_tests import CTRF, FailingTest, printed_failures, reported_failures
from benchflow.record.result import Result
from benchflow.record.trajectory import RewardLine, read_rewards

ReasonKind = Literal[
    "unscored", "agent-timeout", "agent-exit", "limit", "stopped", "game", "test", "part", "step", "withheld", "reward"
]

OUTPUT: Final = "test-stdout.txt"
ASSESSOR: Final = "assessor"
"""The source of rewards that an assessor gives while a game lasts."""
KEPT: Final = 64 << 10
"""Bytes of an output that are kept of its beginning, and as many of its end."""
_DETAILS: Final = "reward-details.json"
_MAX_DOCUMENT: Final = 8 << 20
_MAX_FILES: Final = 2_000
_MAX_PARTS: Final = 1_000
_ENDS: Final = ("end_turn", "completed", "exited", "done", "")
"""How an agent stops by itself, which explains nothing."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a reward is not full, or why there is none."""

    kind: ReasonKind
    text: str
    """In a few words, without a full stop."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a program printed, without its middle if it is long."""

    path: Path
    name: str
    """Its place below the folder of the rollout."""
    size: int
    text: str
    dropped: int = 0
    """How many bytes of the middle are left out of `text`."""


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One part of a reward: a criterion of a rubric, a metric, a factor, or a step."""

    name: str
    value: float
    words: str = ""
    """The rubric's own words for it, if they were recorded."""
    reason: str = ""
    """What the judge or the verifier said about it."""
    weight: float | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True)
class RolloutFile:
    """A file of a rollout."""

    path: Path
    name: str
    """Its place below the folder of the rollout."""
    size: int


@dataclass(frozen=True, slots=True)
class RolloutStory:
    """Everything about one rollout except its trajectory."""

    name: str
    folder: RolloutFolder
    verdict: RolloutFolder
    """Where the newest verdict is: the same folder, or one of its rescores."""
    result: Result | None
    problem: str | None
    """Why there is no result that can be read; a rollout that is still running has none either."""
    reasons: tuple[Reason, ...]
    """Why the reward is not full, the most telling first; empty if it is."""
    parts: tuple[RewardPart, ...]
    verifier: tuple[Output, ...]
    """What each verification printed."""
    agent: tuple[Output, ...]
    """What each agent printed outside its protocol."""
    files: tuple[RolloutFile, ...]

    @property
    def trajectory(self) -> Path:
        return self.folder.trajectory


def read_story(folder: Path, result: Result | None = None) -> RolloutStory:
    """The story of the rollout in a folder; `result` is its newest one where the caller has it. Never raises."""
    places = RolloutFolder(folder)
    verdict = places.newest()
    problem = None
    if result is None:
        result, problem = read_result(verdict.result)
    verifier = tuple(_verifier_outputs(places, verdict, result))
    parts = reward_parts(verdict)
    return RolloutStory(
        folder.name,
        places,
        verdict,
        result,
        problem,
        () if result is None else why_not_full(result, verdict, verifier=verifier, parts=parts),
        parts,
        verifier,
        tuple(_agent_outputs(places, result)),
        tuple(_files(folder)),
    )


def read_result(path: Path) -> tuple[Result | None, str | None]:
    """The result in a file, or None and why."""
    try:
        return Result.from_dict(parse_json(read_regular(path, max_bytes=_MAX_DOCUMENT))), None
    except FileNotFoundError:
        return None, f"{path.name} does not exist"
    except (StrictJSONError, RefusedFileError) as error:
        return None, f"{path.name} {error}"
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror or error}"
    except ValueError as error:
        return None, f"{path.name} cannot be read: {' '.join(str(error).split())}"


def why_not_full(
    result: Result,
    verdict: RolloutFolder | None = None,
    *,
    verifier: tuple[Output, ...] | None = None,
    parts: tuple[RewardPart, ...] | None = None,
) -> tuple[Reason, ...]:
    """Why a result is not a full reward, the most telling first. Without the folder of its verdict only the result is
    asked; with it, what the verifier left is read unless it is given.
    """
    if result.error is not None:
        error = result.error
        return (Reason("unscored", f"{error.category}/{error.code} in phase {error.phase}: {error.message}"),)
    if (result.reward or 0.0) >= FULL:
        return ()
    found = [*_of_agent(result)]
    if verdict is not None and verifier is None:
        verifier = tuple(_verifier_outputs(verdict, verdict, result))
    if result.arena is not None:
        found.append(Reason("game", _of_game(result.arena)))
    elif verdict is not None:
        found += [_test_reason(test) for test in failing_tests(verdict, result, verifier)[:1]]
        found += _of_parts(reward_parts(verdict) if parts is None else parts)
    found += _of_steps(result)
    for reward, check in result.wider:
        if check.reward is not None and check.reward > (reward or 0.0):
            text = f"the verifier did not see all changes; at '{check.rung}' the same work scores {check.reward:g}"
            found.append(Reason("withheld", text))
    return tuple(found) or (Reason("reward", f"the verifier gave {result.reward:g}{_last_words(verifier or ())}"),)


def failing_tests(
    verdict: RolloutFolder, result: Result | None, outputs: tuple[Output, ...] | None = None
) -> tuple[FailingTest, ...]:
    """The tests that failed in the verifications of a verdict, in their order, as far as their files say."""
    found: list[FailingTest] = []
    for place in _steps(verdict, result):
        found += reported_failures(place.verifier / CTRF)
    if found:
        return tuple(found)
    known = tuple(_verifier_outputs(verdict, verdict, result)) if outputs is None else outputs
    return tuple(test for output in known for test in printed_failures(output.text))


def reward_parts(verdict: RolloutFolder) -> tuple[RewardPart, ...]:
    """The parts of the reward of a verdict, as its events and details say; none if nothing does."""
    criteria = _criteria(_document(verdict.verifier / _DETAILS))
    found: list[RewardPart] = []
    known: set[tuple[str | None, str]] = set()
    for line in read_rewards(verdict.rewards):
        if line.source == ASSESSOR:
            continue  # given during a game: how it stood, not what the reward is made of
        for part in _parts_of(line, criteria):
            if (part.step, part.name) not in known and len(found) < _MAX_PARTS:
                known.add((part.step, part.name))
                found.append(part)
    return tuple(found)


def read_output(path: Path, below: Path) -> Output | None:
    """A text file without its middle if it is long; None if it is not a plain file below a folder that can be read."""
    try:
        if not path.resolve().is_relative_to(below.resolve()):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return None
        data, dropped = _ends(stream, about.st_size)
    return Output(path, _below(path, below), about.st_size, data.decode(errors="replace"), dropped)


def _ends(stream: IO[bytes], size: int) -> tuple[bytes, int]:
    if size <= 2 * KEPT:
        return stream.read(2 * KEPT), 0
    first = stream.read(KEPT)
    stream.seek(size - KEPT)
    last = stream.read(KEPT)
    dropped = size - 2 * KEPT
    return first + f"\n[{dropped:,} bytes from the middle are not shown]\n".encode() + last, dropped


def _of_game(arena: ArenaPart) -> str:
    """How a game ended for its players."""
    got = [
        f"{role} {'no reward' if one.reward is None else f'{round(one.reward, 3):g}'}"
        for role, one in arena.roles.items()
    ]
    return f"{f'{arena.winner} won' if arena.winner is not None else 'nobody won'}: {', '.join(got)}"


def _of_agent(result: Result) -> Iterator[Reason]:
    agent = result.agent
    if agent.timed_out:
        yield Reason("agent-timeout", "the agent reached its time limit")
    elif agent.exit_code:
        yield Reason("agent-exit", f"the agent exited with code {agent.exit_code}")
    elif agent.stop_reason not in (None, *_ENDS):
        yield Reason("stopped", f"the agent stopped: {agent.stop_reason}")
    for limit in result.notes.limits_reached:
        yield Reason("limit", f"the agent reached the sandbox's limit of {limit}")


def _last_words(outputs: tuple[Output, ...]) -> str:
    """The last line that a verifier printed, to complete a sentence."""
    lines = [line.strip() for output in outputs for line in output.text.splitlines() if line.strip()]
    return f" and printed: {lines[-1]}" if lines else ""


def _test_reason(test: FailingTest) -> Reason:
    return Reason("test", f"{test.name} failed" + (f": {test.message}" if test.message else ""))


def _of_parts(parts: tuple[RewardPart, ...]) -> Iterator[Reason]:
    """The lowest part, with what was said about it."""
    low = [part for part in parts if part.value < FULL]
    if low:
        worst = min(low, key=lambda part: part.value)
        said = worst.reason or worst.words
        yield Reason("part", f"{worst.name} is {worst.value:g}" + (f": {said}" if said else ""))


def _of_steps(result: Result) -> Iterator[Reason]:
    for step in result.steps:
        if step.reward is None or step.reward < FULL:
            shown = step.status if step.reward is None else f"{step.reward:g}"
            yield Reason("step", f"step {step.name}: {shown}")
            return


def _steps(folder: RolloutFolder, result: Result | None) -> Iterator[StepFolder]:
    """The folders with the verifications of a rollout."""
    names = [step.name for step in result.steps if is_folder_name(step.name)] if result is not None else []
    if not names and (folder.path / "steps").is_dir():
        names = sorted(path.name for path in (folder.path / "steps").iterdir())
    yield from ((folder.step(name) for name in names) if names else (folder,))


def _verifier_outputs(places: RolloutFolder, verdict: RolloutFolder, result: Result | None) -> Iterator[Output]:
    for step in _steps(verdict, result):
        for path in (step.verifier / OUTPUT, *sorted(step.verifier.glob(f"factors/*/{OUTPUT}"))):
            found = read_output(path, places.path)
            if found is not None:
                yield found


def _agent_outputs(places: RolloutFolder, result: Result | None) -> Iterator[Output]:
    for step in _steps(places, result):
        for path in sorted(step.agent.glob("*.txt"))[:_MAX_PARTS]:
            found = read_output(path, places.path)
            if found is not None and found.size:
                yield found


def _parts_of(line: RewardLine, criteria: Mapping[str, Mapping[str, Any]]) -> Iterator[RewardPart]:
    step = line.meta.get("step")
    at = step if isinstance(step, str) else None
    said = line.meta.get("reason")
    if line.source == "verifier":
        metrics = line.meta.get("metrics")
        if line.granularity == "step" and at is not None:
            yield RewardPart(at, line.value)
        for name, value in metrics.items() if isinstance(metrics, dict) else ():
            if isinstance(value, int | float) and not name.startswith("steps."):
                yield _part(name, float(value), criteria, at, "")
        return
    yield _part(line.tag, line.value, criteria, at, said if isinstance(said, str) else "")


def _part(
    name: str, value: float, criteria: Mapping[str, Mapping[str, Any]], step: str | None, said: str
) -> RewardPart:
    known = criteria.get(name, {})
    words, reason, weight = (known.get(key) for key in ("description", "reason", "weight"))
    return RewardPart(
        name,
        value,
        words if isinstance(words, str) else "",
        said or (reason if isinstance(reason, str) else ""),
        float(weight) if isinstance(weight, int | float) and not isinstance(weight, bool) else None,
        step,
    )


def _criteria(details: Any) -> dict[str, Mapping[str, Any]]:
    """What the details of a reward say about its criteria, by name."""
    listed: list[Any] = []
    for key in ("criteria", "rubric", "items", "factors"):
        value = details.get(key) if isinstance(details, dict) else None
        listed += value if isinstance(value, list) else []
    names = (
        (next((item[k] for k in ("name", "id") if isinstance(item.get(k), str)), None), item)
        for item in listed
        if isinstance(item, dict)
    )
    return {name: item for name, item in names if name is not None}


def _document(path: Path) -> Any:
    try:
        return json.loads(read_regular(path, max_bytes=_MAX_DOCUMENT))
    except (OSError, RefusedFileError, ValueError, RecursionError):
        return None


def _files(folder: Path) -> Iterator[RolloutFile]:
    """The plain files below a folder, by name; links are left out, and so are parts of model calls: there are many."""
    count, parts = 0, RolloutFolder(folder).model_call_parts
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if Path(root, name) != parts)
        for name in sorted(names):
            path = Path(root, name)
            try:
                about = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(about.st_mode):
                yield RolloutFile(path, _below(path, folder), about.st_size)
                count += 1
                if count >= _MAX_FILES:
                    return


def _below(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
