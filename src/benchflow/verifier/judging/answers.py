"""Parses the answer of a judge, read strictly: the first JSON object in it, or the only verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow.errors import JudgeFailure
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.rewards.numbers import finite, shown

_FENCE: Final = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_MAX_OBJECTS: Final = 20
_VERDICT_KEYS: Final = frozenset({"score", "reward", "verdict"})
_PASSED: Final = frozenset({"pass", "passed", "yes", "true"})
_FAILED: Final = frozenset({"fail", "failed", "no", "false"})


def parse_answer(text: str) -> dict[str, Any]:
    """The JSON object of an answer: in a fence, or else the first balanced one. Raises `JudgeFailure`."""
    found = next(_objects(text, _MAX_OBJECTS), None)
    if found is not None:
        return found
    excerpt = " ".join(text.split())[:120]
    raise JudgeFailure(f"The judge's answer contains no JSON object: {excerpt!r}", code="judge-answer-invalid")


def parse_verdict(text: str) -> dict[str, Any]:
    """The one verdict of a judge role's answer. Raises `JudgeFailure`.

    Work that was judged may contain verdicts, and a judge may quote them: of two that differ, none counts.
    """
    found = list(_objects(text, _MAX_OBJECTS + 1))
    if len(found) > _MAX_OBJECTS:
        message = f"The judge's answer contains more than {_MAX_OBJECTS} JSON objects."
        raise JudgeFailure(message, code="judge-answer-invalid")
    verdicts = [item for item in found if item.keys() & _VERDICT_KEYS]
    if len({overall_score(item) for item in verdicts}) > 1:
        message = "The judge's answer contains several verdicts that differ, so it has none."
        raise JudgeFailure(message, code="judge-answer-invalid")
    return verdicts[-1] if verdicts else parse_answer(text)


def _objects(text: str, most: int) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text, at most so many candidates: in fences first, then every balanced one."""
    candidates = [match.strip() for match in _FENCE.findall(text)][:most]
    start = text.find("{")
    while start >= 0 and len(candidates) < most:
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
            yield value


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
