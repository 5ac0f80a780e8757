"""Who plays whom: the line-ups of each task of a job, and the seeds of its games. Pure.

Without rotation a task has one line-up: the agent of the job, and the participants that were named for other roles.
With it, an arena has every line-up in which as many different players as possible take part, so that each of them has
each role equally often; a task of another kind is done by each player.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Final

from benchflow.arena.needed_libraries import require_arena
from benchflow.errors import UsageError, did_you_mean
from benchflow.evaluation.work import LineUp, TaskRef, WorkItem, plan_items
from benchflow.record import JobRequest, Player, TaskId

MOST: Final = 10_000
"""Line-ups of one task: more of them are a mistake."""


def planned_items(tasks: Sequence[TaskRef], request: JobRequest) -> Iterator[WorkItem]:
    """All items of a job, attempt by attempt, each with who takes part."""

    def of(task: TaskRef, attempt: int) -> list[LineUp]:
        return list(line_ups(request, task.id, task.roles, attempt))

    return plan_items(tasks, request.attempts, request.settings(), of)


def check_line_ups(tasks: Sequence[TaskRef], request: JobRequest) -> None:
    """Refuse participants and a rotation that no task of a job has a use for."""
    arenas = [task for task in tasks if task.roles]
    known = sorted({role for task in arenas for role in task.roles})
    for role in request.participants:
        if role not in known:
            has = f"the roles of its arenas are {', '.join(known)}" if known else "it has no arena packages"
            message = f"--participant {role}: the job has no role '{role}'; {has}.{did_you_mean(role, known)}"
            raise UsageError(message, code="unknown-role")
    if request.rotation and not arenas:
        raise UsageError("--rotate-roles applies to arena packages; the job has none.", code="unused-option")
    if arenas:
        require_arena()
    for task in arenas:
        _check_seats(task, request)


def _check_seats(task: TaskRef, request: JobRequest) -> None:
    first = task.roles[0]
    held = request.participants.get(first)
    if held is not None and not request.rotation:
        message = f"--participant {first}: --agent plays the role '{first}' of {task.name}, its first participant."
        raise UsageError(message, code="role-taken")
    if held is not None and held.url is not None:
        message = f"--participant {first}: the first role of {task.name} takes an agent, not a URL."
        raise UsageError(message, code="role-taken")
    free = _free(request, task.roles)
    if request.rotation and not free:
        message = f"--rotate-roles: every role of {task.name} has a --participant; none is left for the agents."
        raise UsageError(message, code="role-taken")
    if too_many(request, task.roles):
        count = line_up_count(len(request.rotation), len(free))
        message = f"{len(request.rotation)} agents have {count:,} line-ups for the {len(free)} roles of {task.name}"
        raise UsageError(f"{message}; the limit is {MOST:,}. Give fewer agents.", code="too-many-games")


def line_ups(request: JobRequest, task: TaskId, roles: Sequence[str], attempt: int) -> Iterator[LineUp]:
    """The line-ups of one attempt at a task: none where the agent of the job is alone."""
    seed = game_seed(request.choice.seed, task, attempt) if roles else None
    if not roles:
        yield from (LineUp(player) for player in request.rotation)
        return
    if not request.rotation:
        named = {role: player for role, player in request.participants.items() if role in roles}
        yield LineUp(Player(request.agent, request.model), named, seed)
        return
    free = _free(request, roles)
    for chosen in _chosen(request.rotation, len(free)):
        seated = {**request.participants, **dict(zip(free, chosen, strict=True))}
        yield LineUp(seated[roles[0]], {role: seated[role] for role in roles[1:]}, seed)


def too_many(request: JobRequest, roles: Sequence[str]) -> bool:
    """Whether a task with these roles has more line-ups than are planned."""
    return bool(request.rotation) and line_up_count(len(request.rotation), len(_free(request, roles))) > MOST


def _free(request: JobRequest, roles: Sequence[str]) -> list[str]:
    return [role for role in roles if role not in request.participants]


def _chosen(players: Sequence[Player], places: int) -> Iterator[tuple[Player, ...]]:
    """Every way to seat as many different players as possible."""
    if len(players) >= places:
        return permutations(players, places)
    return (seated for seated in product(players, repeat=places) if len(set(seated)) == len(players))


def line_up_count(players: int, places: int) -> int:
    """How many ways there are."""
    if players >= places:
        return math.perm(players, places)
    signed = ((-1) ** left_out * math.comb(players, left_out) for left_out in range(players + 1))
    return sum(sign * (players - left_out) ** places for left_out, sign in enumerate(signed))


def game_seed(seed: int, task: TaskId, attempt: int) -> int:
    """The seed of the games of one attempt: the same for all line-ups, so that they differ in who plays alone."""
    text = f"{seed}\0{task.name}\0{task.ordinal}\0{attempt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1
