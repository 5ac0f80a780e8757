"""How a game ended, pure: the verdict by what was said and who failed, its envelope, and its part of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchflow.arena.assessing.assessment import Assessment
from benchflow.arena.assessing.live_verdict import Forfeit, GameVerdict, after_forfeits, by_forfeit, read_verdict
from benchflow.arena.peers.participant import Failure, Participant
from benchflow.errors import VerifierFailure
from benchflow.record import ArenaPart, ArenaRole
from benchflow.rewards import Attributed, RewardRange, Scored, Unscored
from benchflow.rollout.seats import Seat
from benchflow.task.verifier.declared_strategies import AssessorStrategy
from benchflow.verifier.strategy_run import Run

BUILT_IN: Final = "built-in"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a verdict must keep to, and what the package says about losses."""

    roles: Sequence[str]
    """The first is the one whose reward is that of the rollout."""
    bounds: RewardRange
    forfeit: Forfeit | None = None
    winners: Mapping[str, float] | None = None

    def fatal(self, failures: Mapping[str, Failure | None]) -> Unscored | None:
        """The failure of a participant that ends the game: the package does not count it as a loss."""
        for failure in failures.values():
            if failure is not None and not (self.forfeit is not None and failure.forfeitable):
                return failure.verdict
        return None


def settled(
    heard: Assessment, ended: Unscored | None, rules: Rules, failures: Mapping[str, Failure | None]
) -> GameVerdict:
    """The verdict of the game; a game without one raises why. `ended` is what ended it before its assessor did."""
    fatal = rules.fatal(failures)
    if fatal is not None:
        raise Attributed(fatal)
    forfeit = rules.forfeit
    blamed = heard.blamed[0] if heard.blamed is not None and heard.state == "failed" else None
    lost = tuple(role for role, failure in failures.items() if failure is not None or role == blamed)
    try:
        if ended is not None:
            raise Attributed(ended)
        if heard.state != "completed":
            raise Attributed(_unfinished(heard))
        found = read_verdict(heard.artifacts.values(), rules.roles, rules.roles[0], rules.bounds, rules.winners)
    except (Attributed, VerifierFailure):
        if not lost or forfeit is None:
            raise
        other = by_forfeit(rules.roles, lost, forfeit)
        if other is None:
            first = next((failure.verdict for failure in failures.values() if failure is not None), None)
            raise Attributed(first or _unfinished(heard)) from None
        return other
    return after_forfeits(found, lost, forfeit) if lost and forfeit is not None else found


def _unfinished(heard: Assessment) -> Unscored:
    """Why a task that did not complete has no verdict."""
    said = f": {heard.said[:500]}" if heard.said else ""
    if heard.blamed is not None:
        role, message = heard.blamed
        reason = f"Participant '{role}': {message[:500]}"
        return Unscored("agent", "agent", "participant-broke-protocol", reason)
    if heard.state == "rejected":
        return Unscored("package", "verify", "assessor-rejected", f"The assessor rejected the game{said}.")
    if heard.state == "canceled":
        return Unscored("cancelled", "verify", "assessor-cancelled", f"The assessor cancelled the game{said}.")
    state = heard.state or "nothing"
    return Unscored("verifier", "verify", "assessor-failed", f"The assessor ended its task as {state}{said}.")


def scored(
    run: Run, strategy: AssessorStrategy, seats: Sequence[Seat], verdict: GameVerdict, heard: Assessment
) -> Scored:
    """The canonical envelope of a verdict, with `participants` and `winner`."""
    names = [seat.role.name for seat in seats]
    reward = verdict.rewards[names[0]]
    participants = {
        seat.role.name: {
            "reward": verdict.rewards.get(seat.role.name),
            "agent": "url" if seat.url is not None else seat.role.agent,
            "model": seat.role.model,
            **_told(verdict.participants.get(seat.role.name)),
        }
        for seat in seats
    }
    who = strategy.agent or BUILT_IN
    source = {"source": "assessor", "strategy": run.name, "role": strategy.role, "agent": who}
    given = {"winner": verdict.winner, "metadata": source, "participants": participants}
    events = [{"role": event.role, "reward": event.reward, "terminal": event.terminal} for event in heard.rewards]
    return Scored(
        reward,
        metrics=dict(verdict.rewards),
        document={"reward": reward, "metrics": dict(verdict.rewards), **given},
        details={
            **source,
            "rewards": dict(verdict.rewards),
            "winner": verdict.winner,
            "forfeited": list(verdict.forfeited),
            "details": verdict.details,
            "events": events,
        },
    )


def _told(value: Any) -> dict[str, Any]:
    """What an assessor says of a participant beside its reward."""
    told = value if isinstance(value, dict) else {}
    return {key: item for key, item in told.items() if key not in ("reward", "agent", "model")}


def played(
    part: ArenaPart,
    seats: Sequence[Seat],
    opened: Mapping[str, Participant],
    verdict: GameVerdict | None,
    messages: Mapping[str, int],
    calls: Mapping[str, int],
) -> ArenaPart:
    """The part of a result with who played which role, and how it ended for them."""
    roles: dict[str, ArenaRole] = {}
    for seat in seats:
        name = seat.role.name
        participant = opened.get(name)
        failure = participant.failure if participant is not None else None
        roles[name] = ArenaRole(
            agent="url" if seat.url is not None else seat.role.agent,
            model=seat.role.model,
            url=seat.url,
            reward=verdict.rewards.get(name) if verdict is not None else None,
            status="not-started" if participant is None else failure.status if failure is not None else "played",
            forfeited=verdict is not None and name in verdict.forfeited,
            messages=messages.get(name, 0),
            tool_calls=calls.get(name, 0),
        )
    rotation = {name: role.url or role.agent for name, role in roles.items()}
    return replace(part, roles=roles, rotation=rotation, winner=verdict.winner if verdict is not None else None)
