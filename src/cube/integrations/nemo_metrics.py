"""The reply to `/aggregate_metrics` of NeMo Gym: statistics over verify responses, by task and over all.

Names and numbers are NeMo Gym's own: mean, max, min, median, standard deviation of every number. A rollout without a
score is in none of them: it is counted as `unscored`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

TASK_INDEX: Final = "_ng_task_index"
ROLLOUT_INDEX: Final = "_ng_rollout_index"
FAILURE_CLASS: Final = "_ng_failure_class"
"""NeMo Gym keeps a result with this key out of its rollouts, and in a file of failures."""
_NO_METRICS: Final = frozenset({TASK_INDEX, ROLLOUT_INDEX})
_STATISTICS: Final[Mapping[str, Callable[[list[float]], float]]] = {
    "mean": statistics.fmean,
    "max": max,
    "min": min,
    "median": statistics.median,
    "std": lambda numbers: statistics.stdev(numbers) if len(numbers) > 1 else 0.0,
}

Row = Mapping[str, Any]


def aggregate(rows: list[Row]) -> dict[str, Any]:
    """`group_level_metrics` by task, `agent_metrics` over all, `key_metrics`: the means."""
    if not rows:
        return {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}
    by_task: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        by_task[row.get(TASK_INDEX, 0)].append(row)
    groups = [{TASK_INDEX: task, **_described(by_task[task])} for task in sorted(by_task, key=str)]
    metrics = _described(rows)
    key_metrics = {name: value for name, value in metrics.items() if name.startswith("mean/")}
    return {"group_level_metrics": groups, "agent_metrics": metrics, "key_metrics": key_metrics}


def is_scored(row: Row) -> bool:
    reward = row.get("reward")
    number = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
    return number and row.get(FAILURE_CLASS) is None


def _described(rows: Iterable[Row]) -> dict[str, Any]:
    columns: dict[str, list[float]] = defaultdict(list)
    counts = {"scored": 0, "unscored": 0}
    for row in rows:
        if not is_scored(row):
            counts["unscored"] += 1
            continue
        counts["scored"] += 1
        for name, value in {**row, **_usage(row)}.items():
            if isinstance(value, int | float) and name not in _NO_METRICS and math.isfinite(value):
                columns[name].append(float(value))
    described = {
        f"{statistic}/{name}": compute(numbers)
        for statistic, compute in _STATISTICS.items()
        for name, numbers in columns.items()
    }
    return {**described, **counts}


def _usage(row: Row) -> Mapping[str, Any]:
    response = row.get("response")
    usage = response.get("usage") if isinstance(response, Mapping) else None
    return usage if isinstance(usage, Mapping) else {}
