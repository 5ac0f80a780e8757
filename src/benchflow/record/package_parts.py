"""A package by its parts, each with a digest, so that later changes since a rollout can be found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from benchflow.task.package import TaskPackage

VERIFIER: Final = "verifier"
_FOLDERS: Final[Mapping[str, Sequence[str]]] = {
    VERIFIER: ("verifier", "tests"),
    "environment": ("environment",),
    "oracle": ("oracle", "solution"),
    "task": ("prompts", "workdir"),
}
_KNOWN: Final[dict[str, dict[str, str]]] = {}
"""By the digest of the package, which covers all of it."""
_MOST_KNOWN: Final = 10_000


def package_parts(package: TaskPackage) -> dict[str, str]:
    """Digests of what determines a verdict (`verifier`), of the `environment`, the `oracle`, and the `task` itself.

    Files that decide nothing, such as evidence, belong to none of them. All attempts at a package share the answer.
    """
    known = _KNOWN.get(package.digest)
    if known is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[package.digest] = _parts(package)
    return known


def _parts(package: TaskPackage) -> dict[str, str]:
    hashes: dict[str, dict[str, str]] = {part: {} for part in _FOLDERS}
    for path, digest in package.files.hashes().items():
        part = _part_of(path)
        if part is not None:
            hashes[part][path] = digest
    settings = _settings(package)
    return {part: _digest([files, settings[part]]) for part, files in hashes.items()}


def changed_parts(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The parts that differ."""
    return [part for part in after if before.get(part) != after[part]]


def _part_of(path: str) -> str | None:
    names = path.split("/")
    if names[0] == "steps" and len(names) > 2:
        names = names[2:]
        if names == ["instruction.md"]:
            return "task"
    if len(names) < 2:
        return None
    return next((part for part, folders in _FOLDERS.items() if names[0] in folders), None)


def _settings(package: TaskPackage) -> dict[str, Any]:
    """The definition, each setting in the part that it belongs to."""
    view = package.view
    config = view.config.to_dict()
    namespace = view.namespace.to_dict()
    steps = config.pop("steps", None) or []
    own = [{"name": step["name"], "verifier": step.pop("verifier", None)} for step in steps]
    least = [step.pop("min_reward", None) for step in steps]
    scoring = [config.pop(name, None) for name in ("verifier", "reward", "multi_step_reward_strategy")]
    document = package.document
    people = [view.roles, view.scenes, document.user, document.persona] if document is not None else []
    return {
        VERIFIER: [scoring, own, least, namespace.pop("verifier", None)],
        "environment": config.pop("environment", None),
        "oracle": config.pop("oracle", None),
        "task": [config, steps, namespace, view.prompt, people],
    }


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=repr, ensure_ascii=True)
    return f"sha256:{sha256(text.encode()).hexdigest()}"
