"""What an assessor says, checked: reward events while it works, and the one artifact with its verdict. Pure.

Nothing here is taken from a participant. A verdict is read as far as it is unambiguous; what is missing or wrong in it
is a failure of the assessor that says what, and never a reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchflow.arena.a2a_types import Part
from benchflow.errors import VerifierFailure
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.rewards import RewardRange
from benchflow.rewards.numbers import finite, shown

REWARD_EVENT: Final = "reward_event"
FORFEIT: Final = "forfeit"
WINNER_REWARDS: Final = "winner_rewards"
DRIVER_KEYS: Final = (FORFEIT, WINNER_REWARDS)
"""Keys of a strategy's `config` that are for the driver; the assessor is not sent them."""
_SAYS: Final = ("winner", "rewards", "score", "scores")


@dataclass(frozen=True, slots=True)
class LiveReward:
    """A reward that an assessor gave while it worked."""

    role: str
    reward: float
    terminal: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GameVerdict:
    """How a game ended."""

    rewards: Mapping[str, float]
    """By role; a role that the assessor did not score is not in it."""
    winner: str | None
    participants: Mapping[str, Any] = field(default_factory=dict)
    details: Any = None
    forfeited: tuple[str, ...] = ()
    """Roles that lost because they failed."""


@dataclass(frozen=True, slots=True)
class Forfeit:
    """What a participant that fails loses, where the package says that it does."""

    reward: float = 0.0
    others: float | None = None
    """What the others get if the assessor cannot finish the game; None: they get no reward then."""


def read_forfeit(config: Mapping[str, Any], bounds: RewardRange) -> Forfeit | None:
    """`config.forfeit`: `true`, or `{reward, others}` within the range; None without. Raises `VerifierFailure`."""
    value = config.get(FORFEIT)
    if value is None or value is False:
        return None
    if value is True:
        return Forfeit()
    if not isinstance(value, Mapping) or set(value) - {"reward", "others"}:
        raise _wrong(f"config.{FORFEIT} must be true or an object with reward and others, not {shown(value)}")
    numbers = {name: finite(number) for name, number in value.items() if number is not None}
    if None in numbers.values():
        raise _wrong(f"config.{FORFEIT} must have numbers, not {shown(value)}")
    if any(number is not None and not bounds.low <= number <= bounds.high for number in numbers.values()):
        raise _wrong(f"config.{FORFEIT} has a reward outside {bounds.low:g} to {bounds.high:g}: {shown(value)}")
    return Forfeit(numbers.get("reward") or 0.0, numbers.get("others"))


def reward_events(parts: Iterable[Part], roles: Sequence[str]) -> list[LiveReward | str]:
    """The reward events of a message, and for each that is none the reason."""
    found = [part.value.get(REWARD_EVENT) for part in parts if part.kind == "data" and isinstance(part.value, dict)]
    return [_reward_event(value, roles) for value in found if value is not None]


def _reward_event(value: Any, roles: Sequence[str]) -> LiveReward | str:
    if not isinstance(value, dict):
        return f"a reward event must be an object, not {shown(value)}"
    role, reward = value.get("role"), finite(value.get("reward"))
    if role not in roles:
        return f"a reward event names {shown(role)}, which is not a participant"
    if reward is None:
        return f"a reward event for {role} has the reward {shown(value.get('reward'))}, which is not a number"
    meta = {key: item for key, item in value.items() if key not in ("role", "reward", "terminal")}
    return LiveReward(str(role), reward, value.get("terminal") is True, meta)


def read_verdict(
    artifacts: Iterable[Sequence[Part]],
    roles: Sequence[str],
    scored_role: str,
    bounds: RewardRange,
    winner_rewards: Mapping[str, float] | None = None,
) -> GameVerdict:
    """The verdict of an assessor's artifacts; raises `VerifierFailure` with what is missing, wrong or ambiguous."""
    said: list[Mapping[str, Any]] = []
    for value in (value for parts in artifacts for value in _objects(parts)):
        if any(key in value for key in _SAYS) and value not in said:
            said.append(value)
    if not said:
        raise _wrong("its artifact has no verdict: neither rewards nor a winner")
    if len(said) > 1:
        raise _wrong("its artifacts have more than one verdict, and they differ")
    value = said[0]
    winner = value.get("winner")
    if winner is not None and winner not in roles:
        raise _wrong(f"it names {shown(winner)} as the winner, which is not a participant ({', '.join(roles)})")
    rewards = _rewards(value, roles, winner, winner_rewards)
    for role, reward in rewards.items():
        if not bounds.low <= reward <= bounds.high:
            raise _wrong(f"it gives {role} the reward {shown(reward)}, outside {bounds.low:g} to {bounds.high:g}")
    if scored_role not in rewards:
        raise _wrong(f"its verdict has no reward for {scored_role}, whose reward is that of the rollout")
    told = value.get("participants")
    participants = {role: told[role] for role in roles if role in told} if isinstance(told, dict) else {}
    return GameVerdict(rewards, winner, participants, value.get("details", value.get("detail")))


def _objects(parts: Sequence[Part]) -> Iterable[Mapping[str, Any]]:
    """The JSON objects that an artifact says: its data, and texts that are nothing but an object."""
    for part in parts:
        value = part.value
        if part.kind == "text":
            try:
                value = parse_json(part.value.encode(errors="replace"))
            except StrictJSONError:
                continue
        if part.kind != "file" and isinstance(value, dict):
            yield value


def _rewards(
    value: Mapping[str, Any], roles: Sequence[str], winner: str | None, winner_rewards: Mapping[str, float] | None
) -> dict[str, float]:
    given = next((value[key] for key in ("rewards", "scores", "score") if value.get(key) is not None), None)
    if isinstance(given, dict):
        stranger = next((role for role in given if role not in roles), None)
        if stranger is not None:
            raise _wrong(f"it rewards {shown(stranger)}, which is not a participant ({', '.join(roles)})")
        numbers = {role: finite(reward) for role, reward in given.items() if reward is not None}
        wrong = next((role for role, reward in numbers.items() if reward is None), None)
        if wrong is not None:
            raise _wrong(f"the reward of {wrong} is {shown(given[wrong])}, which is not a number")
        return {role: reward for role in roles if (reward := numbers.get(role)) is not None}
    number = finite(given)
    if number is not None and len(roles) == 1:
        return {roles[0]: number}
    if number is not None:
        raise _wrong("its verdict has one score for several participants; rewards by role are missing")
    if given is not None:
        raise _wrong(f"its rewards are {shown(given)}, and not numbers by role")
    if winner_rewards is None:
        raise _wrong(f"its verdict has no rewards, and config.{WINNER_REWARDS} does not say what a winner gets")
    if winner is None:
        return {role: winner_rewards.get("draw", 0.5) for role in roles}
    return {
        role: winner_rewards.get("winner", 1.0) if role == winner else winner_rewards.get("others", 0.0)
        for role in roles
    }


def read_winner_rewards(config: Mapping[str, Any]) -> Mapping[str, float] | None:
    """`config.winner_rewards`: `{winner, others, draw}`, for assessors that only name a winner."""
    value = config.get(WINNER_REWARDS)
    if value is None:
        return None
    known = {"winner", "others", "draw"}
    if not isinstance(value, Mapping) or set(value) - known or any(finite(item) is None for item in value.values()):
        raise _wrong(f"config.{WINNER_REWARDS} must have numbers for winner, others and draw, not {shown(value)}")
    return {name: float(number) for name, number in value.items()}


def after_forfeits(verdict: GameVerdict, forfeited: Iterable[str], forfeit: Forfeit) -> GameVerdict:
    """The verdict with the loss of those who failed; none of them wins."""
    lost = tuple(forfeited)
    rewards = {**verdict.rewards, **dict.fromkeys(lost, forfeit.reward)}
    winner = None if verdict.winner in lost else verdict.winner
    return replace(verdict, rewards=rewards, winner=winner, forfeited=lost)


def by_forfeit(roles: Sequence[str], forfeited: Sequence[str], forfeit: Forfeit) -> GameVerdict | None:
    """The verdict of a game that its assessor could not finish; None if the package does not say what the first role
    gets, whose reward is that of the rollout. Who failed has lost, whatever becomes of the others."""
    if forfeit.others is None and roles[0] not in forfeited:
        return None
    left = [role for role in roles if role not in forfeited]
    rewards = dict.fromkeys(forfeited, forfeit.reward)
    if forfeit.others is not None:
        rewards |= dict.fromkeys(left, forfeit.others)
    winner = left[0] if len(left) == 1 and forfeit.others is not None else None
    return GameVerdict(rewards, winner, details={"ended": FORFEIT}, forfeited=tuple(forfeited))


def _wrong(reason: str) -> VerifierFailure:
    return VerifierFailure(f"The assessor failed: {reason}.", code="assessor-verdict")
