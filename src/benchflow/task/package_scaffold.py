"""The files of a new package, with a placeholder wherever the author has to write something.

A scaffold passes every check up to `publication-grade` once its placeholders are filled in; until then each of them is
an error with its file and line. They are in comments or block text, so that any text may replace them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from benchflow.errors import UsageError

MARKER: Final = "[REPLACE:"
"""The start of a placeholder."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class ScaffoldFile:
    text: str
    executable: bool = False


def scaffold_package(name: str, *, organisation: str = "local", preset: str | None = None) -> dict[str, ScaffoldFile]:
    """The files of a new package by relative path; `preset` must be a known preset.

    Raises `UsageError` for a name that is not a plain folder name.
    """
    for what, value in (("name", name), ("organisation", organisation)):
        if not _NAME.fullmatch(value) or ".." in value or len(value) > 100:
            raise UsageError(
                f"{value!r} cannot be used as the {what} of a task: use letters, digits, '.', '_' and '-', "
                "start with a letter or digit, at most 100 characters",
                code="bad-name",
            )
    return {
        "task.md": ScaffoldFile(_task_md(name, organisation, preset)),
        "environment/Dockerfile": ScaffoldFile(_DOCKERFILE),
        "oracle/solve.sh": ScaffoldFile(_SOLVE, executable=True),
        **(_reward_kit_verifier(name) if preset == "reward-kit" else _script_verifier(name)),
        "verifier/rubrics/verifier.md": ScaffoldFile(_RUBRIC),
    }


def _task_md(name: str, organisation: str, preset: str | None) -> str:
    settings = "" if preset == "code-change" else _SETTINGS
    if preset == "leaderboard-local":
        settings += _LIVE_REPORT
    chosen = f"preset: {preset}\n" if preset else ""
    return f"""---
schema_version: "1.3"
{chosen}task:
  name: {organisation}/{name}
  description: >-
    [REPLACE: one sentence that describes the task]
{settings}---
[REPLACE: what the agent has to do; name each file it has to write; say nothing about scoring]
"""


_SETTINGS: Final = """agent:
  timeout_sec: 900
environment:
  cpus: 1
  memory_mb: 2048
  network_mode: no-network
  workdir: /app
"""

_LIVE_REPORT: Final = """benchflow:
  evidence:
    acceptance_live:
      report: evidence/acceptance/live-report.json
"""

_DOCKERFILE: Final = """FROM debian:bookworm-slim
WORKDIR /app
# [REPLACE: install what the task needs and copy the files that the agent starts with]
"""

_SOLVE: Final = """#!/bin/sh
# Solves the task as a good agent would, to prove that it can be solved. The agent never sees this file.
set -eu
# [REPLACE: the reference solution]
"""

_RUBRIC: Final = """# What earns the reward

- correctness: [REPLACE: when the result is correct, in one sentence that a reviewer can check]
"""


def _verifier_md(name: str, strategy: str, settings: str) -> ScaffoldFile:
    return ScaffoldFile(f"""---
document_version: "0.3"
verifier:
  name: {name}
  default_strategy: {strategy}
  strategies:
    {strategy}:
{settings}  rubric:
    combine: weighted_sum
    dimensions:
      correctness: {{weight: 1.0, source: {strategy}}}
    files: {{human: rubrics/verifier.md}}
  outputs:
    reward_text: /logs/verifier/reward.txt
    reward_json: /logs/verifier/reward.json
---
[REPLACE: what this verifier reads, and why an agent cannot cheat]
""")


def _script_verifier(name: str) -> dict[str, ScaffoldFile]:
    return {
        "verifier/verifier.md": _verifier_md(name, "tests", "      type: script\n      command: ./test.sh\n"),
        "verifier/test.sh": ScaffoldFile(_TEST, executable=True),
    }


_TEST: Final = """#!/bin/sh
# Scores the result: one number from 0.0 to 1.0, as text and as JSON. Exits with 0 whatever the score.
set -u
reward=0.0
# [REPLACE: check the result and set reward=1.0 if it is correct]
printf '%s\\n' "$reward" > /logs/verifier/reward.txt
printf '{"reward": %s}\\n' "$reward" > /logs/verifier/reward.json
"""


def _reward_kit_verifier(name: str) -> dict[str, ScaffoldFile]:
    settings = (
        "      type: reward-kit\n      root: reward_kit\n      entrypoint: reward.py\n"
        "      criteria: reward_kit/criteria.toml\n"
    )
    return {
        "verifier/verifier.md": _verifier_md(name, "kit", settings),
        "verifier/reward_kit/reward.py": ScaffoldFile(_REWARD_PY),
        "verifier/reward_kit/criteria.toml": ScaffoldFile(_CRITERIA),
    }


_REWARD_PY: Final = '''"""Scores the result: one metric from 0.0 to 1.0 for each criterion in criteria.toml."""

import json
import os
from pathlib import Path

metrics = {"correctness": 0.0}
# [REPLACE: check the result and set each metric]
Path(os.environ["BENCHFLOW_REWARD_JSON"]).write_text(json.dumps({"metrics": metrics}))
'''

_CRITERIA: Final = '''[[criterion]]
id = "correctness"
description = """
[REPLACE: when the result is correct]
"""
type = "numeric"
min = 0
max = 1
'''
