"""`rewardkit TESTS_DIR… [--workspace DIR] [--output FILE]`: grades a folder of checks and writes the reward."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .scoring import KitError, score_folder


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rewardkit")
    parser.add_argument("folders", nargs="+", type=Path, metavar="TESTS_DIR")
    parser.add_argument("--workspace", type=Path, default=Path("/app"))
    parser.add_argument("--output", type=Path, default=Path("/logs/verifier/reward.json"))
    parser.add_argument("--max-concurrent-programmatic", type=int, default=1, help="accepted; checks run in order")
    options = parser.parse_args(arguments)
    graded: list[dict[str, Any]] = []
    rewards = []
    try:
        for folder in options.folders:
            reward, rows = score_folder(folder, options.workspace)
            rewards.append(reward)
            graded += rows
    except KitError as error:
        print(f"rewardkit: {error}", file=sys.stderr)
        return 2
    document = {"reward": sum(rewards) / len(rewards), "metrics": _metrics(graded)}
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    details = options.output.with_name("reward-details.json")
    details.write_text(json.dumps({"source": "reward-kit", "criteria": graded}, indent=2) + "\n")
    return 0


def _metrics(graded: list[dict[str, Any]]) -> dict[str, float]:
    """Scores by name; a repeated name is numbered."""
    metrics: dict[str, float] = {}
    for row in graded:
        name, number = row["name"], 2
        while name in metrics:
            name, number = f"{row['name']} ({number})", number + 1
        metrics[name] = row["score"]
    return metrics


if __name__ == "__main__":
    sys.exit(main())
