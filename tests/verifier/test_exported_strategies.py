"""The `test.sh` that an export generates gives the reward that the strategy gives: both run in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.task.interop.split_export import export_task_to_split_layout

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

DOCUMENT = """\
---
verifier:
  default_strategy: main
  strategies:
    main: {MAIN}
    half: {type: script, command: sh half.sh}
    answer: {type: script, command: ./test.sh --quietly}
    kit: {type: reward-kit, root: kit, criteria: kit/criteria.toml}
---
"""
FILES = {
    "half.sh": "echo 0.5 > /logs/verifier/reward.txt\n",
    "test.sh": '#!/bin/sh\n[ -f half.sh ] && echo "{\\"reward\\": $(cat /app/answer.txt)}" > $LOGS/reward.json\n',
    "kit/reward.py": """\
import json, os
metrics = {"right": float(open("/app/answer.txt").read()), "there": 1.0}
json.dump({"metrics": metrics}, open(os.environ["BENCHFLOW_REWARD_JSON"], "w"))
""",
    "kit/criteria.toml": """\
[[criteria]]
id = "right"
description = "The answer is right."
weight = 3
[[criteria]]
id = "there"
description = "There is an answer."
weight = 1
""",
}
SUM = "combine: weighted_sum, factors: {a: {strategy: half, weight: 0.5}, b: {strategy: kit, weight: 0.25}}"
STRATEGIES = {
    "script": ("{type: script, command: ./test.sh --quietly}", 0.8),
    "kit": ("{type: reward-kit, root: kit, criteria: kit/criteria.toml}", 0.85),
    "product": ("{type: hybrid, factors: {a: half, b: answer}}", 0.4),
    "sum": (f"{{type: hybrid, {SUM}}}", 0.4625),
}


@pytest.mark.parametrize(("strategy", "reward"), STRATEGIES.values(), ids=STRATEGIES)
async def test_the_export_scores_what_the_package_scores(bench, package, tmp_path: Path, strategy, reward):
    files = {f"verifier/{path}": text for path, text in FILES.items()}
    files["verifier/test.sh"] = FILES["test.sh"].replace("$LOGS", "/logs/verifier")
    files["verifier/verifier.md"] = DOCUMENT.replace("{MAIN}", strategy)
    native = package("environment: {docker_image: debian}\n", files)
    (native / "verifier/test.sh").chmod(0o755)
    report = export_task_to_split_layout(native, tmp_path / "out")
    assert report.status == "degraded"
    (tmp_path / "out/tests/verifier.md").unlink()  # as in Harbor, which does not read it
    for folder in (native, tmp_path / "out"):
        async with bench(folder, base_image="host") as it:
            await it.agent("mkdir -p /app; echo 0.8 > /app/answer.txt")
            verdict = (await it.verify()).verdict
            assert verdict.reward == pytest.approx(reward), verdict
