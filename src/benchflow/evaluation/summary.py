"""The summary of a job, from its results; and which of them a new plan leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from benchflow.evaluation.games.arena_statistics import Game, arena_statistics
from benchflow.evaluation.games.ratings import Seat
from benchflow.evaluation.statistics import Sample, summarise
from benchflow.record import ArenaRole, Counted, Job, Result, Statistics, Summary, WorkKey


def job_summary(job: Job) -> Summary:
    """The summary of a job as its results are now."""
    counted = job.counted
    statistics = statistics_of([sample(result) for _, result in counted])
    superseded = len(job.results.latest) - len(counted)
    shard = job.record.request.shard
    return Summary(job.folder.name, statistics, tuple(job.results.damaged), counted, superseded, shard)


def statistics_of(samples: Iterable[Sample]) -> Statistics:
    """The statistics of results, with those of the games among them."""
    everything = list(samples)
    games = (Game(each.task, each.seats, each.scored) for each in everything if each.seats)
    return replace(summarise(everything), arena=arena_statistics(games))


def superseded_keys(results: Iterable[Counted], planned: Collection[WorkKey]) -> tuple[WorkKey, ...]:
    """The keys of results without a place in the plan.

    One result per planned key has one: its own, or else one that was rescored and would have this key now.
    """
    found = list(results)
    taken = {counted.result.key for counted in found} & set(planned)
    left_out = []
    for _, result in found:
        rescore = result.notes.rescore
        now = rescore.key if rescore is not None else None
        if result.key in planned:
            continue
        if now is not None and now in planned and now not in taken:
            taken.add(now)
        else:
            left_out.append(result.key)
    return tuple(left_out)


def sample(result: Result) -> Sample:
    """What statistics need of a result."""
    metrics = {name: value for name, value in result.rewards.items() if name != "reward"}
    category = result.error.category if result.error else None
    higher = [check.reward is not None and check.reward > (reward or 0.0) for reward, check in result.wider]
    seated = seats(result)
    agent = result.agent.name if result.agent.model is None else f"{result.agent.name} ({result.agent.model})"
    who = "\n".join(f"{seat.role} {seat.player}" for seat in seated) or agent
    return Sample(
        result.task.id, result.reward, metrics, category, result.usage, result.rung, tuple(higher), seated, who
    )


def seats(result: Result) -> tuple[Seat, ...]:
    """Who played which role of a game and what they got; nothing of a task that is not one."""
    if result.arena is None:
        return ()
    return tuple(Seat(role, player_name(part), part.reward) for role, part in result.arena.roles.items())


def player_name(role: ArenaRole) -> str:
    """Who played a role, as tables name it: two roles with the same name were played by the same player."""
    return role.url or (role.agent if role.model is None else f"{role.agent} ({role.model})")
