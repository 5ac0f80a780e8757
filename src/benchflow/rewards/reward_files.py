"""The reward files of one verification in a host folder: read with a size limit, validated, written in canonical form.

`reward.json` is authoritative, `reward.txt` holds the scalar for other readers, `reward-details.json` is evidence.
`settle`, pure, computes the reward from their contents by the package's policy and range: all statements must agree.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchflow.errors import InfrastructureFailure, Issue, PackageError
from benchflow.files.atomic import write_atomic, write_unseen
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.rewards.aggregate import AggregatePolicy, parse_policy
from benchflow.rewards.numbers import UNIT, RewardRange, agree, shown, take_finite
from benchflow.rewards.reward_errors import RewardError
from benchflow.rewards.verdict import RewardItem, Scored, granularity, space

REWARD_TEXT: Final = "reward.txt"
REWARD_JSON: Final = "reward.json"
REWARD_DETAILS: Final = "reward-details.json"
MAX_BYTES: Final = 1 << 20
"""Size limit of each reward file."""

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
PRESERVED: Final = frozenset(
    {
        "artifacts",
        "debug",
        "details",
        "details_path",
        "errors",
        "evidence",
        "items",
        "metadata",
        "participants",
        "raw",
        "reason",
        "reasons",
        "regressions",
        "winner",
    }
)
"""Keys of `reward.json` that are kept unchanged."""
STRUCTURAL: Final = frozenset({"reward", "metrics", "rubric", "aggregate", "space", "granularity"})
"""Keys of `reward.json` with a defined meaning. Every other key is a metric."""


def read_reward(folder: Path, *, reward_range: RewardRange = UNIT, policy: AggregatePolicy | None = None) -> Scored:
    """The reward stated by the files in `folder`; the caller must make sure that they are new.

    `policy` is declared by the package (the aggregate policy of the verifier document, or of its criteria). Raises
    `RewardError` for invalid files and `InfrastructureFailure` for a folder that cannot be read. Invalid details do not
    affect the score; they become a diagnostic.
    """
    text = _read(folder / REWARD_TEXT)
    data = _read(folder / REWARD_JSON)
    scored = settle(
        None if data is None else _parse(data),
        None if text is None else parse_reward_text(text),
        reward_range=reward_range,
        policy=policy,
    )
    details, problem = _details(folder / REWARD_DETAILS)
    if details is None and problem is None:
        return scored
    diagnostics = scored.diagnostics if problem is None else (*scored.diagnostics, problem)
    return replace(scored, details=details, diagnostics=diagnostics)


def write_reward(folder: Path, scored: Scored, *, unseen: bool = False) -> None:
    """Write the canonical `reward.json` and `reward.txt` to `folder`, each atomically.

    In an `unseen` folder, which nobody reads before it is moved into place, they are written directly. Details are
    written only if the folder has none, so those of a verifier are kept. Raises `InfrastructureFailure`.
    """
    write = write_unseen if unseen else write_atomic
    try:
        write(folder / REWARD_JSON, render_json(scored.document))
        write(folder / REWARD_TEXT, f"{scored.reward!r}\n")
        details = folder / REWARD_DETAILS
        if scored.details is not None and not os.path.lexists(details):
            write(details, render_json(scored.details))
    except OSError as error:
        raise InfrastructureFailure(
            f"cannot write the reward to {folder}: {error.strerror}", code="unwritable"
        ) from error


def parse_reward_text(data: bytes) -> float:
    """The decimal number in a `reward.txt`; its range is not checked. Raises `RewardError`."""
    try:
        text = data.decode("utf-8-sig").strip(" \t\r\n")
    except UnicodeDecodeError as error:
        raise _invalid(REWARD_TEXT, f"is not UTF-8 (byte {error.start})") from error
    if not text:
        raise _invalid(REWARD_TEXT, "is empty")
    if not _NUMBER.fullmatch(text):
        raise _invalid(REWARD_TEXT, f"must contain one decimal number, not {shown(text)}")
    return float(text)


def render_json(value: object) -> str:
    """A JSON document, formatted as this project writes it."""
    plain: Any = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _parse(data: bytes) -> object:
    try:
        value: object = parse_json(data)
    except StrictJSONError as error:
        raise _invalid(REWARD_JSON, str(error)) from error
    if value is None:
        raise _invalid(REWARD_JSON, "must contain an object, not null")
    return value


def _read(path: Path) -> bytes | None:
    """The bytes of the file, or None if it does not exist."""
    try:
        return read_regular(path, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        return None
    except RefusedFileError as error:
        raise _invalid(path.name, str(error)) from error
    except OSError as error:
        raise InfrastructureFailure(
            f"cannot read {path}: {error.strerror}", code="unreadable", file=path.name
        ) from error


def _details(path: Path) -> tuple[Any, Issue | None]:
    try:
        data = _read(path)
        return (None if data is None else parse_json(data)), None
    except StrictJSONError as error:
        message = f"{path.name} {error}"
    except RewardError as error:
        message = str(error)
    return None, Issue("details-invalid", "warning", "", message, path.name)


def _invalid(name: str, problem: str) -> RewardError:
    return RewardError(f"{name} {problem}", file=name)


@dataclass(frozen=True, slots=True)
class RewardMap:
    """A valid `reward.json`, before its reward is computed."""

    reward: float | None
    named: Mapping[str, float] | None
    """The value of `metrics`; None without that key."""
    loose: Mapping[str, float]
    """Metrics given directly beside the structural keys."""
    items: tuple[RewardItem, ...]
    aggregate: AggregatePolicy | None
    document: Mapping[str, Any]

    @property
    def aggregated(self) -> Mapping[str, float]:
        """The metrics that a policy applies to."""
        return self.loose if self.named is None else self.named


def parse_reward_map(value: object, reward_range: RewardRange = UNIT) -> RewardMap:
    """Parse a reward map; raises `RewardError` with the invalid key.

    Only the reward is bound to its range: a metric may count anything.
    """
    if not isinstance(value, Mapping):
        raise RewardError(f"must be an object, not {shown(value)}")
    if "space" in value:
        space(value["space"], "space")
    if "granularity" in value:
        granularity(value["granularity"], "granularity")
    return RewardMap(
        reward=reward_range.take(value["reward"], "reward") if "reward" in value else None,
        named=_named_metrics(value["metrics"]) if "metrics" in value else None,
        loose=_loose_metrics(value),
        items=parse_items(value["rubric"], "rubric") if "rubric" in value else (),
        aggregate=_own_policy(value["aggregate"]) if "aggregate" in value else None,
        document=dict(value),
    )


def settle(
    document: object | None,
    text: float | None,
    *,
    reward_range: RewardRange = UNIT,
    policy: AggregatePolicy | None = None,
) -> Scored:
    """One reward from the contents of `reward.json` and `reward.txt` (None for a missing file).

    A declared aggregate is computed if there is no scalar, and must agree with the scalar if there are `metrics` to
    compute it from. Raises `RewardError`.
    """
    scalar = None if text is None else _text_reward(text, reward_range)
    if document is None:
        return Scored(_text_alone(scalar, policy))
    try:
        return _settle_map(parse_reward_map(document, reward_range), scalar, policy, reward_range)
    except RewardError as error:
        message = f"reward.json: {error}"
        raise RewardError(message, code=error.code, path=error.path, file="reward.json") from error


def _text_reward(text: float, reward_range: RewardRange) -> float:
    try:
        return reward_range.take(text, "reward.txt")
    except RewardError as error:
        raise RewardError(str(error), file="reward.txt") from error


def _text_alone(scalar: float | None, policy: AggregatePolicy | None) -> float:
    if scalar is None:
        raise RewardError("the verifier wrote neither reward.json nor reward.txt", code="reward-missing")
    if policy is not None and policy.criteria is not None:
        raise RewardError(
            "the declared criteria need the metrics of a reward.json, which the verifier did not write",
            code="reward-missing",
            file="reward.json",
        )
    return scalar


def _settle_map(
    found: RewardMap, text: float | None, policy: AggregatePolicy | None, reward_range: RewardRange
) -> Scored:
    effective = found.aggregate if policy is None else policy.over(found.aggregate)
    if effective is not None and effective.criteria is not None:
        if found.named is None:
            raise RewardError("the declared criteria need `metrics`", path="metrics")
        effective.require_criteria(found.named)
    computed = _computed(found, effective, reward_range)
    stated = [
        (value, source)
        for value, source in ((found.reward, "reward"), (computed, "aggregate"), (text, "reward.txt"))
        if value is not None
    ]
    if not stated:
        raise RewardError("there is neither a `reward` nor metrics with a declared aggregate", path="reward")
    reward, first = stated[0]
    for value, source in stated[1:]:
        if not agree(reward, value):
            raise _mismatch(f"the reward is {reward!r} by {first}, but {value!r} by {source}")
    canonical = dict(found.document)
    if computed is not None and effective is not None:
        canonical["aggregate"] = effective.to_dict()
    return Scored(
        reward,
        metrics=_all_metrics(found, reward),
        items=found.items,
        document=canonical,
        diagnostics=_overruled(found.aggregate, effective),
    )


def _computed(found: RewardMap, policy: AggregatePolicy | None, reward_range: RewardRange) -> float | None:
    """The value of the declared aggregate, or None if there is none or the stated reward needs none."""
    if policy is None or policy.effective_method is None:
        return None
    if found.reward is not None and not found.named:
        return None
    if not found.aggregated and found.aggregate is None:
        return None
    return policy.apply(found.aggregated, reward_range)


def _mismatch(message: str) -> RewardError:
    return RewardError(message, code="reward-mismatch", path="reward")


def _all_metrics(found: RewardMap, reward: float) -> dict[str, float]:
    metrics = dict(found.loose)
    for name, value in (found.named or {}).items():
        if metrics.setdefault(name, value) != value:
            raise _mismatch(f"the metric {name!r} is stated twice, as {metrics[name]!r} and {value!r}")
    if not agree(metrics.get("reward", reward), reward):
        raise _mismatch(f"the metric 'reward' is {metrics['reward']!r}, but the reward is {reward!r}")
    return metrics


def _overruled(own: AggregatePolicy | None, effective: AggregatePolicy | None) -> tuple[Issue, ...]:
    """A warning if the package's policy overrides settings in `reward.json`."""
    if own is None or effective is None:
        return ()
    wanted, used = own.to_dict(), effective.to_dict()
    changed = [key for key, value in wanted.items() if used.get(key) != value]
    if not changed:
        return ()
    message = f"the package declares its own aggregate, which overrides {', '.join(changed)} in reward.json"
    return (Issue("aggregate-overruled", "warning", "aggregate", message, "reward.json"),)


def _named_metrics(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise RewardError(f"metrics must map names to numbers, not {shown(value)}", path="metrics")
    return {name: take_finite(number, f"metrics.{name}") for name, number in value.items()}


def _loose_metrics(value: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: take_finite(number, name)
        for name, number in value.items()
        if name not in STRUCTURAL and name not in PRESERVED
    }


def parse_items(value: object, path: str) -> tuple[RewardItem, ...]:
    """Parse a list of scored objects; raises `RewardError` for an entry without a score from 0 to 1."""
    if not isinstance(value, list):
        raise RewardError(f"{path} must be a list of objects, not {shown(value)}", path=path)
    return tuple(_item(entry, f"{path}[{index}]") for index, entry in enumerate(value))


def _item(entry: object, path: str) -> RewardItem:
    if not isinstance(entry, Mapping) or "score" not in entry:
        raise RewardError(f"{path} must be an object with a `score`", path=path)
    names = (entry.get(key) for key in ("name", "id", "criterion", "title"))
    reason = entry.get("reason")
    return RewardItem(
        name=next((name for name in names if isinstance(name, str) and name), path),
        score=UNIT.take(entry["score"], f"{path}.score"),
        space=space(entry["space"], f"{path}.space") if "space" in entry else "output",
        reason=reason if isinstance(reason, str) else None,
    )


def _own_policy(value: object) -> AggregatePolicy:
    try:
        policy = parse_policy(value)
    except PackageError as error:
        raise RewardError(str(error), path=error.path) from error
    if policy.effective_method is None:
        raise RewardError("aggregate must name a method", path="aggregate.method")
    return policy
