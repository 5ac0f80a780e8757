"""Parses the answer of a judge: the first JSON object in it, read strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from benchflow.errors import JudgeFailure
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.rewards.numbers import finite, shown

_FENCE: Final = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_PASSED: Final = frozenset({"pass", "passed", "yes", "true"})
_FAILED: Final = frozenset({"fail", "failed", "no", "false"})


def parse_answer(text: str) -> dict[str, Any]:
    """The JSON object of an answer: in a fence, or else the first balanced one. Raises `JudgeFailure`."""
    candidates = [match.strip() for match in _FENCE.findall(text)]
    start = text.find("{")
    while start >= 0 and len(candidates) < 20:
        end = _balanced(text, start)
        if end is not None:
            candidates.append(text[start:end])
        start = text.find("{", end or start + 1)
    for candidate in candidates:
        try:
            value = parse_json(candidate.encode())
        except StrictJSONError:
            continue
        if isinstance(value, dict):
            return value
    excerpt = " ".join(text.split())[:120]
    raise JudgeFailure(f"The judge's answer contains no JSON object: {excerpt!r}", code="judge-answer-invalid")


def _balanced(text: str, start: int) -> int | None:
    """The end of the object that begins at `start`."""
    depth, quoted, escaped = 0, False, False
    for index in range(start, len(text)):
        char = text[index]
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = quoted
        elif char == '"':
            quoted = not quoted
        elif not quoted and char in "{}":
            depth += 1 if char == "{" else -1
            if depth == 0:
                return index + 1
    return None


def overall_score(answer: Mapping[str, Any]) -> float:
    """The one score of a judge role's answer: `score` or `reward` from 0 to 1, or a verdict in words."""
    for key in ("score", "reward"):
        if key in answer:
            number = finite(answer[key])
            if number is None or isinstance(answer[key], bool) or not 0 <= number <= 1:
                raise JudgeFailure(
                    f"The judge's {key} must be a number from 0 to 1, not {shown(answer[key])}.",
                    code="judge-answer-invalid",
                )
            return number
    verdict = answer.get("verdict")
    word = str(verdict).strip().lower()
    if word in _PASSED | _FAILED:
        return float(word in _PASSED)
    raise JudgeFailure("The judge's answer has neither score, reward nor verdict.", code="judge-answer-invalid")
