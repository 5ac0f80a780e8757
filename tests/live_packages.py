"""A package with complete evidence and live cases, for tests that then break one thing."""

import copy
import json

import yaml

VERIFIER = """#!/bin/sh
answer=$(cat /app/answer.txt 2>/dev/null)
case "$answer" in done) echo 1;; half) echo 0.5;; *) echo 0;; esac > /logs/verifier/reward.txt
"""
VERIFIER_MD = """---
document_version: "0.3"
verifier:
  default_strategy: tests
  strategies:
    tests: {type: script, command: ./test.sh}
  rubric: {dimensions: {correctness: {weight: 1.0, source: tests}}}
  outputs: {reward_json: /logs/verifier/reward.json}
---
"""
RUNS = [{"status": "passed", "reward": 1.0}] * 3
EVIDENCE_FILES = {
    "oracle-run.json": {"reward": 1.0, "status": "passed"},
    "verifier-stability-report.json": {
        "kind": "verifier-stability-report",
        "reruns": 3,
        "flake_rate": 0.0,
        "min_reward": 1.0,
        "runs": RUNS,
    },
    "review.json": {"kind": "acceptance-review", "anti_cheat": "passed", "instruction_alignment": "passed"},
    "calibration-report.json": {
        "kind": "calibration-report",
        "cases": [
            {"name": "nothing", "type": "no-op", "reward": 0.0, "command": "true"},
            {"name": "wrong", "type": "known-bad", "reward": 0.0, "command": "echo bad > answer.txt"},
            {"name": "half", "type": "partial", "reward": 0.5, "command": "echo half > answer.txt"},
            {"name": "gold", "type": "reference", "reward": 1.0},
        ],
    },
    "gold-result.json": {"expected_reward": 1.0},
}
FOLDER = "evidence/acceptance"
CLAIMS = {
    "oracle_runs": {"required_reward": 1.0, "artifact": f"{FOLDER}/oracle-run.json"},
    "verifier": {"reruns": 3, "flake_rate": 0.0, "report": f"{FOLDER}/verifier-stability-report.json"},
    "review": {
        "anti_cheat": "passed",
        "instruction_alignment": "passed",
        "artifact": f"{FOLDER}/review.json",
    },
    "calibration": {
        "no_op_reward_max": 0.0,
        "known_bad_reward_max": 0.2,
        "partial_solution_range": [0.3, 0.8],
        "report": f"{FOLDER}/calibration-report.json",
        "human_or_reference_examples": [
            {"name": "gold", "expected_reward": 1.0, "artifact": f"{FOLDER}/gold-result.json"}
        ],
    },
}
REPORT = f"{FOLDER}/live-report.json"
LIVE = {
    "cases": [{"name": "live-oracle", "type": "oracle", "reruns": 2, "expect": {"reward_min": 0.99}}],
    "calibration": {"from": "calibration.report"},
    "leaderboard": {"required": True, "max_flake_rate": 0.0},
    "report": REPORT,
}


def write_live_package(folder, *, live=None, claims=None, files=None, root=None, pin=True):
    """A package that passes `acceptance`, with these live cases; gives its folder."""
    evidence = {**copy.deepcopy(CLAIMS if claims is None else claims)}
    if live is None or live:
        evidence["acceptance_live"] = copy.deepcopy(LIVE if live is None else live)
    frontmatter = {
        "task": {"name": f"acme/{folder.name}"},
        "environment": {"workdir": "/app"},
        "benchflow": {"evidence": evidence} if evidence else {},
        **(root or {}),
    }
    everything = {
        "task.md": f"---\n{yaml.safe_dump(frontmatter)}---\nWrite done into answer.txt.\n",
        "oracle/solve.sh": "#!/bin/sh\necho done > /app/answer.txt\n",
        "verifier/test.sh": VERIFIER,
        "verifier/verifier.md": VERIFIER_MD,
        "verifier/rubrics/verifier.md": "# Correctness\n",
        **{f"{FOLDER}/{name}": json.dumps(content) for name, content in EVIDENCE_FILES.items()},
        **(files or {}),
    }
    for name, text in everything.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if pin:
        pin_package(folder)
    return folder


def pin_package(folder):
    """What `bench tasks pin` writes."""
    from benchflow.task.checks.conventional_evidence import effective_evidence
    from benchflow.task.checks.pins import build_pins, pinnable_hashes, render_pins
    from benchflow.task.package import load_package

    package = load_package(folder)
    pins = build_pins(effective_evidence(package), pinnable_hashes(package))
    (folder / "evidence/pins.json").write_text(render_pins(pins))
