"""Authoring shorthands: presets and short keys, replaced by the canonical keys they stand for.

`expand_authoring` takes the frontmatter as written and returns an equivalent mapping without `preset`, `name`, `image`
and path-valued `verifier` or `oracle`. The author's own keys always take precedence over a preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final, NamedTuple

from benchflow.task.config.kinds import unsafe_path
from benchflow.task.config.namespace import PRESET_KEYS, DocumentRoot
from benchflow.task.config.parsed_record import IssueLog, describe
from benchflow.task.document.merging import merge_below

_ROLE: Final = {
    "agent": "codex-acp",
    "model": "gpt-5.5",
    "reasoning_effort": "xhigh",
    "capabilities": ["code-edit", "tests"],
}

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "code-change": {
        "schema_version": "1.3",
        "metadata": {"category": "code-change"},
        "agent": {"timeout_sec": 7200, "network_mode": "no-network"},
        "verifier": {"timeout_sec": 1200, "user": "root"},
        "environment": {
            "docker_image": "ubuntu:24.04",
            "network_mode": "no-network",
            "cpus": 4,
            "memory_mb": 8192,
            "storage_mb": 10240,
            "workdir": "/repo",
        },
        "benchflow": {
            "document_version": "0.3",
            "prompt": {"composition": "append", "order": ["base", "role", "scene", "turn"]},
        },
    },
    "harbor-compatible": {
        "schema_version": "1.3",
        "metadata": {"category": "harbor-compatible"},
        "environment": {"cpus": 1, "memory_mb": 2048},
        "benchflow": {"compatibility": {"harbor": {"export": "supported"}}},
    },
    "reward-kit": {
        "benchflow": {
            "verifier": {
                "spec": "verifier/verifier.md",
                "rubric": "verifier/rubrics/verifier.md",
                "entrypoint": "verifier/reward_kit/reward.py",
                "implementation": {"type": "reward-kit"},
            }
        }
    },
    "acceptance-live": {
        "benchflow": {
            "evidence": {
                "acceptance_live": {
                    "workspace": {"source": "current-worktree", "target": "/repo"},
                    "calibration": {"from": "calibration.report", "reruns": 1, "flake_rate_max": 0.0},
                    "cases": [
                        {
                            "name": "live-oracle-rerun",
                            "type": "oracle",
                            "reruns": 1,
                            "expect": {"reward_min": 0.99, "flake_rate_max": 0.0},
                        },
                        {
                            "name": "live-reference-verifier",
                            "type": "reference",
                            "reruns": 1,
                            "expect": {"reward_min": 0.99, "flake_rate_max": 0.0},
                        },
                    ],
                }
            }
        }
    },
    "multi-agent": {
        "agents": {
            "roles": {
                "architect": _ROLE,
                "implementer": _ROLE,
                "reviewer": {"agent": "claude-agent-acp", "model": "claude-sonnet-4-6", "capabilities": ["review"]},
            }
        },
        "scenes": [
            {"name": "design", "turns": [{"role": "architect"}]},
            {"name": "implement", "turns": [{"role": "implementer"}]},
            {"name": "review", "turns": [{"role": "reviewer"}]},
        ],
    },
    "leaderboard-local": {
        "benchflow": {"evidence": {"acceptance_live": {"leaderboard": {"required": True, "max_flake_rate": 0.0}}}}
    },
}
"""What each preset stands for."""


class Expanded(NamedTuple):
    """The expanded frontmatter, the presets it used, and its shorthands (canonical path -> key written)."""

    mapping: dict[str, Any]
    presets: tuple[str, ...]
    renames: dict[str, str]


def expand_authoring(frontmatter: Mapping[str, Any], problems: IssueLog) -> Expanded:
    """Expand presets and shorthands; what cannot be expanded is reported and dropped."""
    names = _preset_names(frontmatter, problems)
    bundle: dict[str, Any] = {}
    for name in names:
        bundle = merge_below(DocumentRoot, bundle, deepcopy(dict(PRESETS[name])))
    own = {key: value for key, value in frontmatter.items() if key not in PRESET_KEYS}
    renames: dict[str, str] = {}
    own = _expand_shorthands(own, renames, problems)
    return Expanded(merge_below(DocumentRoot, bundle, own), names, renames)


def _preset_names(frontmatter: Mapping[str, Any], problems: IssueLog) -> tuple[str, ...]:
    used = [key for key in PRESET_KEYS if frontmatter.get(key) is not None]
    if {key.removesuffix("s") for key in used} == {"preset", "profile"}:
        problems.error("conflicting-keys", used[-1], f"'{used[0]}' and '{used[-1]}' mean the same; use only 'preset'")
    names: list[str] = []
    for key in used:
        value = frontmatter[key]
        for index, name in enumerate(value if isinstance(value, list) else [value]):
            where = f"{key}[{index}]" if isinstance(value, list) else key
            if not isinstance(name, str):
                problems.error("invalid-type", where, f"{where} must be a preset name, not {describe(name)}")
            elif name not in PRESETS:
                known = ", ".join(sorted(PRESETS))
                problems.error(
                    "unknown-preset", where, f"{where} is not a known preset: '{name[:60]}'; available: {known}"
                )
            elif name not in names:
                names.append(name)
    return tuple(names)


def _expand_shorthands(own: dict[str, Any], renames: dict[str, str], problems: IssueLog) -> dict[str, Any]:
    section = "sandbox" if "sandbox" in own else "environment"
    name = own.pop("name", None)
    if isinstance(name, str):
        full = name if "/" in name else f"benchflow/{name}"
        own = _set_default(own, "task", "name", full, "name", renames)
    elif name is not None:
        problems.error("invalid-type", "name", f"name must be a string, not {describe(name)}")
    image = own.pop("image", None)
    if isinstance(image, str):
        if not _declares(own.get(section), "image"):
            own = _set_default(own, section, "docker_image", image, "image", renames)
    elif image is not None:
        problems.error("invalid-type", "image", f"image must be a string, not {describe(image)}")
    for key in ("verifier", "oracle", "solution"):
        if isinstance(own.get(key), str):
            own = _expand_path(own, key, problems)
    return own


def _declares(section: Any, key: str) -> bool:
    return isinstance(section, dict) and key in section


def _set_default(
    own: dict[str, Any], section: str, key: str, value: Any, written: str, renames: dict[str, str]
) -> dict[str, Any]:
    current = own.get(section)
    if current is None:
        current = {}
    if not isinstance(current, dict) or key in current:
        return own
    renames[f"{section}.{key}"] = written
    return {**own, section: {**current, key: value}}


def _expand_path(own: dict[str, Any], key: str, problems: IssueLog) -> dict[str, Any]:
    path: str = own[key]
    rest = {name: value for name, value in own.items() if name != key}
    problem = unsafe_path(path)
    if problem:
        problems.error("unsafe-path", key, f"{key} {problem}")
        return rest
    base = path.rstrip("/")
    wiring: dict[str, Any] = {"path": f"{base}/"}
    if key == "verifier":
        wiring |= {"spec": f"{base}/verifier.md", "entrypoint": f"{base}/test.sh"}
    namespace = rest.get("benchflow") or {}
    if not isinstance(namespace, dict):
        return rest
    where = "verifier" if key == "verifier" else "oracle"
    given = namespace.get(where) or {}
    if isinstance(given, dict):
        rest["benchflow"] = {**namespace, where: {**wiring, **given}}
    return rest
