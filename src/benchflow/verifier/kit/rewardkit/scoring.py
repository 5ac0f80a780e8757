"""Scores a folder of checks: its modules, its folders, and their combination by `reward.toml`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from .session import SESSION, Criterion, Session

_KNOWN = ("weighted_mean", "weighted_sum", "all_pass", "any_pass", "threshold", "required_pass")


class KitError(Exception):
    """A kit that cannot be run; the message is the reason."""


def score_folder(folder: Path, workspace: Path) -> tuple[float, list[dict[str, Any]]]:
    """The reward of a folder, and the score of every criterion below it."""
    settings = _settings(folder)
    parts: list[tuple[str, float, float]] = []
    graded: list[dict[str, Any]] = []
    for module in sorted(folder.glob("*.py")):
        rows = [_grade(item, workspace) for item in _criteria(module)]
        graded += rows
        own = settings["scoring"].get(module.stem)
        if own is not None and rows:
            pairs = [(row["name"], row["score"], row["weight"]) for row in rows]
            parts.append((module.stem, _combine(pairs, own), 1.0))
        else:
            parts += [(row["name"], row["score"], row["weight"]) for row in rows]
    for below in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))):
        if any(below.rglob("*.py")):
            score, rows = score_folder(below, workspace)
            graded += [dict(row, name="{}/{}".format(below.name, row["name"])) for row in rows]
            parts.append((below.name, score, 1.0))
    if not parts:
        raise KitError(f"{folder} contains no criteria")
    weights = settings["reward"].get("weights", {})
    weighted = [(name, score, float(weights.get(name, weight))) for name, score, weight in parts]
    return _combine(weighted, settings["reward"]), graded


def _grade(item: Criterion, workspace: Path) -> dict[str, Any]:
    score = item.grade(workspace)
    return {"name": item.name, "score": score, "weight": item.weight, "description": item.description}


def _criteria(module: Path) -> list[Criterion]:
    """The criteria that a module adds while it is imported."""
    SESSION.criteria = Session().criteria
    spec = importlib.util.spec_from_file_location(f"checks_{module.stem}", str(module))
    if spec is None or spec.loader is None:
        raise KitError(f"{module} cannot be imported")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return list(SESSION.criteria)


def _settings(folder: Path) -> dict[str, Any]:
    for path in sorted(folder.glob("*.toml")):
        if path.name != "reward.toml":
            raise KitError(f"{path.name} is a judge; declare it as a strategy of type llm-judge")
    path = folder / "reward.toml"
    if not path.is_file():
        return {"reward": {}, "scoring": {}}
    try:
        import tomllib
    except ImportError as error:
        raise KitError("reward.toml needs Python 3.11 or newer in the environment") from error
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = sorted(set(found) - {"reward", "scoring"})
    rewards = found.get("reward", [{}])
    if unknown or not isinstance(rewards, list) or len(rewards) != 1:
        raise KitError("{} must contain one [[reward]] and [scoring], not {}".format(path, unknown or "several"))
    for table in [rewards[0], *list(found.get("scoring", {}).values())]:
        wrong = sorted(set(table) - {"name", "aggregation", "threshold", "weights"})
        if wrong:
            raise KitError(f"{path}: unknown key {wrong[0]}")
    return {"reward": rewards[0], "scoring": found.get("scoring", {})}


def _combine(parts: list[tuple[str, float, float]], settings: dict[str, Any]) -> float:
    method = str(settings.get("aggregation", "weighted-mean")).replace("-", "_")
    if method not in _KNOWN:
        raise KitError("unknown aggregation {}; known: {}".format(method, ", ".join(_KNOWN)))
    scores = [score for _, score, _ in parts]
    total = sum(weight for _, _, weight in parts)
    weighted = sum(score * weight for _, score, weight in parts)
    if method == "weighted_sum":
        return min(max(weighted, 0.0), 1.0)
    if any(weight < 0 for _, _, weight in parts):
        raise KitError("a negative weight needs the aggregation weighted-sum")
    if method in ("all_pass", "required_pass"):  # no check written in Python is optional
        return 1.0 if all(score >= 1.0 for score in scores) else 0.0
    if method == "any_pass":
        return 1.0 if any(score >= 1.0 for score in scores) else 0.0
    if total <= 0:
        raise KitError("the weights of the criteria add up to 0")
    mean = weighted / total
    return (1.0 if mean >= float(settings.get("threshold", 0.5)) else 0.0) if method == "threshold" else mean
