"""Packages with complete, consistent evidence, for tests that then break one thing."""

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILES: dict[str, Any] = {
    "evidence/oracle.json": {"reward": 1.0, "status": "passed"},
    "evidence/stability.json": {
        "kind": "verifier-stability-report",
        "reruns": 3,
        "flake_rate": 0.0,
        "min_reward": 0.95,
        "runs": [{"status": "passed", "reward": reward} for reward in (1.0, 1.0, 0.97)],
    },
    "evidence/review.json": {
        "kind": "acceptance-review",
        "anti_cheat": "passed",
        "instruction_alignment": "passed",
    },
    "evidence/calibration.json": {
        "kind": "calibration-report",
        "cases": [
            {"name": "nothing", "type": "no-op", "reward": 0.0, "command": "true"},
            {"name": "wrong", "type": "known-bad", "reward": 0.1, "command": "echo bad > /app/out.txt"},
            {"name": "half", "type": "partial", "reward": 0.5, "command": "echo half > /app/out.txt"},
            {"name": "gold", "type": "reference", "reward": 1.0},
        ],
    },
    "evidence/gold.json": {"expected_reward": 1.0},
}
CLAIMS: dict[str, Any] = {
    "oracle_runs": {"required_reward": 1.0, "artifact": "evidence/oracle.json"},
    "verifier": {"reruns": 3, "flake_rate": 0.0, "report": "evidence/stability.json"},
    "review": {"anti_cheat": "passed", "instruction_alignment": "passed", "artifact": "evidence/review.json"},
    "calibration": {
        "no_op_reward_max": 0.0,
        "known_bad_reward_max": 0.2,
        "partial_solution_range": [0.3, 0.8],
        "report": "evidence/calibration.json",
        "human_or_reference_examples": [{"name": "gold", "expected_reward": 1.0, "artifact": "evidence/gold.json"}],
    },
}


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def evidence_files() -> dict[str, Any]:
    """Evidence files by path, as data."""
    return copy.deepcopy(FILES)


@pytest.fixture
def evidence_claims() -> dict[str, Any]:
    """Claims that agree with the files; nothing is pinned."""
    return copy.deepcopy(CLAIMS)


@pytest.fixture
def evidence_folder(tmp_path) -> Callable[[], tuple[Path, dict[str, Any]]]:
    """Write the evidence files; the folder, and claims that agree with them and pin them."""

    def make() -> tuple[Path, dict[str, Any]]:
        root = tmp_path / "proven"
        for name, content in FILES.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        claims = copy.deepcopy(CLAIMS)
        claims["artifacts"] = [{"path": name, "sha256": digest} for name, digest in digests(root).items()]
        return root, claims

    return make
