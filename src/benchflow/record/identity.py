"""What was run, by content: `TaskId` identifies a task, `WorkKey` one attempt at it by an agent with its settings,
`WholePlan` all the work of a plan, of which a job can be a `Shard`.

Paths never matter. Within a job tasks are distinguished by name, content digest and, among equals only, by
their order (`#2`, `#3`); across jobs they pair by name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NewType, Self

from benchflow.record.codec import plain

ALWAYS_WIN: Final = frozenset({"oracle", "nop", "script"})
"""Agents that replace every role that a document declares."""
WorkKey = NewType("WorkKey", str)
"""The only hash of what was run: the same key is the same work."""
MOST_SHARDS: Final = 100_000
_SHARD: Final = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


def always_wins(agent: str) -> bool:
    """Whether an agent (`NAME` or `NAME:ARGUMENT`) takes the place of the roles of a document."""
    return agent.partition(":")[0] in ALWAYS_WIN


@dataclass(frozen=True, slots=True)
class TaskId:
    """One task of a job."""

    name: str
    content_digest: str | None
    """None for a task whose content cannot be read."""
    ordinal: int = 1
    """Among tasks of one name and content: its place in the order of their paths, from 1."""

    def label(self, *, alone: bool = True) -> str:
        """The display name: the name, with the beginning of the digest unless it is `alone`, and the ordinal."""
        digest = "" if alone or self.content_digest is None else f"@{self.content_digest.removeprefix('sha256:')[:8]}"
        return f"{self.name}{digest}" + (f" #{self.ordinal}" if self.ordinal > 1 else "")


def identify(tasks: Iterable[tuple[str, str | None]]) -> Iterator[TaskId]:
    """The identities of tasks given by name and content digest, in the order of their paths."""
    seen: Counter[tuple[str, str | None]] = Counter()
    for task in tasks:
        seen[task] += 1
        yield TaskId(*task, seen[task])


def labels(tasks: Iterable[TaskId]) -> dict[TaskId, str]:
    """A label for each task, no two of them the same."""
    known = list(dict.fromkeys(tasks))
    digests: dict[str, set[str | None]] = defaultdict(set)
    for task in known:
        digests[task.name].add(task.content_digest)
    return {task: task.label(alone=len(digests[task.name]) == 1) for task in known}


@dataclass(frozen=True, slots=True)
class Pair:
    """One task of two jobs."""

    first: TaskId
    second: TaskId

    @property
    def changed(self) -> bool:
        """Whether its content differs between the jobs."""
        return self.first.content_digest != self.second.content_digest


def pair(first: Iterable[TaskId], second: Iterable[TaskId]) -> tuple[list[Pair], list[TaskId], list[TaskId]]:
    """The tasks that two jobs share, and those that only one of them has.

    Both are given in the order of their paths. Tasks pair by name: those of equal content first, the rest of a name in
    that order.
    """
    left, right = _by_name(first), _by_name(second)
    pairs: list[Pair] = []
    only_first: list[TaskId] = []
    for name, ours in left.items():
        theirs = right.get(name, [])
        equal = [task for task in ours if task in theirs]
        rest, other = ([task for task in tasks if task not in equal] for tasks in (ours, theirs))
        pairs += [Pair(task, task) for task in equal]
        pairs += [Pair(*both) for both in zip(rest, other, strict=False)]
        only_first += rest[len(other) :]
    paired = {both.second for both in pairs}
    return pairs, only_first, [task for tasks in right.values() for task in tasks if task not in paired]


def _by_name(tasks: Iterable[TaskId]) -> dict[str, list[TaskId]]:
    grouped: dict[str, list[TaskId]] = defaultdict(list)
    for task in tasks:
        grouped[task.name].append(task)
    return dict(sorted(grouped.items()))


@dataclass(frozen=True, slots=True)
class Settings:
    """What determines an outcome besides the task and the attempt. A setting that was not given does not count."""

    agent: str
    model: str | None = None
    sandbox: str = "auto"
    base_image: str | None = None
    prompts: tuple[str, ...] | None = None
    scenes: tuple[Mapping[str, Any], ...] | None = None
    user: str | None = None
    max_user_rounds: int | None = None
    oracle_access: bool = False
    agent_env: tuple[str, ...] = ()
    """Names of variables, never their values."""
    max_steps: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_calls: int | None = None
    max_model_time: float | None = None
    replay: str | None = None
    """The rollout whose calls of models are repeated, and how strictly."""
    agent_timeout_sec: float | None = None
    timeout_sec: float | None = None
    participants: Mapping[str, str] | None = None
    """Who plays the other roles of an arena, where that is not left to the document."""
    seed: int | None = None
    isolation: str | None = None
    """A rung, or `auto`, that replaces what packages declare."""

    def digest(self) -> str:
        return _sha256([plain(self)])


def work_key(task: TaskId, settings: str, attempt: int, line_up: Sequence[Any] = ()) -> WorkKey:
    """What the work is, by content; `settings` is the digest of the settings, the same for all work of a job.

    `line_up` says who plays whom, where that differs between items.
    """
    content = [task.name, task.content_digest, task.ordinal, settings, attempt, *([line_up] if line_up else [])]
    return WorkKey(_sha256(content)[:32])


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of a plan, numbered from 1; raises `ValueError` for one that there is not."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_SHARDS:
            raise ValueError(f"{self}: the number of shards is from 1 to {MOST_SHARDS:,}")
        if not 1 <= self.index <= self.count:
            raise ValueError(f"{self}: shards are numbered from 1 to {self.count}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """`I/N`; raises `ValueError`."""
        found = _SHARD.fullmatch(text)
        if found is None:
            raise ValueError(f"'{text}' is not a shard: expected I/N, such as 1/4")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, slots=True)
class WholePlan:
    """The plan that a job carries out, or a shard of it: two jobs with equal ones belong together."""

    rollouts: int
    digest: str
    """Of the keys of all its work: tasks by content, agents, models, settings, attempts."""
    order: str
    """Of what is dealt to shards: the same after packages have changed, but not after some were added or removed."""


def _sha256(content: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
