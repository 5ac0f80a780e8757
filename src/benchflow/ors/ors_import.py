"""Imports the tasks of an ORS environment as packages, each pinned to the specification that the server gave.

The prompt becomes the body of `task.md`, its images are mounted in the sandbox, `benchflow.ors` says where the episode
is played, and the verifier is an `ors-episode` over the rewards that a rollout writes down.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from benchflow.errors import UsageError
from benchflow.files.atomic import staged_folder
from benchflow.ors.ors_client import PROMPT_IMAGES, OrsClient, OrsPrompt, spec_digest
from benchflow.task.document.markdown import escape_headings

_IMAGES: Final = "prompt-images"
VERIFIER: Final = """---
document_version: "0.3"
verifier:
  default_strategy: episode
  strategies:
    episode: {type: ors-episode, reward_aggregation: last_non_null, terminal_policy: finished_true}
  rubric: {dimensions: {episode: {weight: 1.0, source: episode}}}
---
The last reward of a finished episode.
"""


@dataclass(frozen=True, slots=True)
class OrsSelection:
    """Which tasks to import."""

    environment: str | None = None
    """None: the first."""
    split: str | None = None
    """None: the first."""
    limit: int | None = None
    token_env: str | None = None
    """The variable with the token, whose name is written down."""


async def import_tasks(client: OrsClient, selection: OrsSelection, target: Path) -> AsyncIterator[Path]:
    """Write the packages below `target`, which must not exist; yields each when it is written."""
    offered = await client.environments()
    environment = selection.environment or next(iter(offered), None)
    if environment is None or environment not in offered:
        raise UsageError(f"{client.url} has no environment '{environment}'; available: {', '.join(offered) or 'none'}.")
    splits = await client.splits(environment)
    split = selection.split or next(iter(splits), None)
    if split is None or split not in splits:
        raise UsageError(f"'{environment}' has no split '{split}'; available: {', '.join(splits) or 'none'}.")
    count = await client.count(environment, split)
    chosen = range(count if selection.limit is None else min(count, selection.limit))
    if not chosen:
        raise UsageError(f"The split '{split}' of '{environment}' has no tasks.", code="no-packages")
    for index in chosen:
        spec = await client.task(environment, split, index)
        async with client.session(environment, spec) as session:
            prompt = await session.prompt()
        place = target / f"{_name(environment)}-{_name(split)}-{index}"
        where = {"url": client.url, "environment": environment, "split": split, "index": index}
        pinned = {**where, "spec_digest": spec_digest(spec)}
        if selection.token_env is not None:
            pinned["token_env"] = selection.token_env
        _write(place, f"{_name(environment)}/{_name(split)}-{index}", prompt, pinned)
        yield place


def _write(place: Path, name: str, prompt: OrsPrompt, pinned: dict[str, Any]) -> None:
    front = {
        "schema_version": "1.3",
        "task": {"name": name},
        "environment": {"network_mode": "no-network"},
        "benchflow": {"document_version": "0.6", "ors": pinned, **_assets(prompt)},
    }
    body = escape_headings(prompt.text.strip())
    with staged_folder(place) as folder:
        (folder / "task.md").write_text(f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n{body}\n")
        for image, data in prompt.images.items():
            (folder / _IMAGES).mkdir(exist_ok=True)
            (folder / _IMAGES / image).write_bytes(data)
        (folder / "verifier").mkdir()
        (folder / "verifier" / "verifier.md").write_text(VERIFIER)


def _assets(prompt: OrsPrompt) -> dict[str, Any]:
    """What puts the images of a prompt where its text says that they are."""
    if not prompt.images:
        return {}
    return {"assets": [{"path": _IMAGES, "visibility": "agent", "mount_phase": "environment", "target": PROMPT_IMAGES}]}


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.") or "tasks"
